"""The index of a TFRecord file."""

import random
from itertools import accumulate
from pathlib import Path

import pytest

from sparkdl.data.tfexample.framing import chunks, ends, frame, measure
from sparkdl.data.tfexample.marks import MAX_MARKS, MIN_DISTANCE_BYTES, Marks, distance_for


@pytest.mark.parametrize(("distance", "max_marks"), [(1, 1000), (100, 1000), (1000, 3), (10**6, 5)])
def test_parts_have_the_records_and_few_others(distance: int, max_marks: int) -> None:
    sizes = [random.Random(0).randrange(1, 300) for _ in range(200)]
    places = [0, *accumulate(sizes)]
    marks = Marks(distance, max_marks)
    marks.add(places[1:50])
    marks.add(places[50:])
    assert (marks.rows_seen, marks.end) == (200, places[-1])
    assert len(marks.rows) <= max_marks
    for start in range(0, 200, 7):
        for stop in range(start + 1, 201, 11):
            first, begin, end = marks.around(start, stop, places[-1])
            assert begin == places[first] <= places[start] and places[stop] <= end
            assert end in places
            if (distance, max_marks) == (1, 1000):  # All fit.
                assert (first, begin, end) == (start, places[start], places[stop])
            # Marks that are thinned are up to one and a half times the distance apart.
            assert places[start] - begin < 1.5 * marks.distance + 300
            assert end - places[stop] < 1.5 * marks.distance + 300


def test_a_file_without_records() -> None:
    assert Marks().around(0, 0, 0) == (0, 0, 0)


def test_many_files_have_few_marks_together() -> None:
    assert distance_for(10) == MIN_DISTANCE_BYTES
    assert 10**12 // distance_for(10**12) <= MAX_MARKS


def test_a_part_of_a_file_is_read_alone(tmp_path: Path) -> None:
    records = [bytes([n]) * (n + 1) for n in range(100)]
    path, marks = tmp_path / "a", Marks(distance=100)
    path.write_bytes(frame(records))
    assert measure(str(path), None, None, marks) == (100, path.stat().st_size)
    assert list(ends(records))[-1] == marks.end
    first, begin, end = marks.around(30, 60, marks.end)
    path.write_bytes(b"x" * begin + path.read_bytes()[begin:end] + b"x" * 50)
    parts = chunks(str(path), None, num_bytes=64, begin=begin, end=end)
    found = [data[start:stop] for _, data, spans in parts for start, stop in spans]
    assert found[30 - first : 60 - first] == records[30:60]
