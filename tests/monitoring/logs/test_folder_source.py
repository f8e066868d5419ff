"""A folder of JSON lines whose files grow, read piece by piece."""

from pathlib import Path

import pytest

from sparkdl.monitoring.logs import folder
from sparkdl.monitoring.logs.folder import log_files
from sparkdl.monitoring.logs.folder_source import LogFolderStream
from tests.helpers.counted_store import CountedStore


def read(stream: LogFolderStream, start: object, end: object) -> list[str]:
    """The lines between two offsets, in any order."""
    return sorted(
        line.decode()
        for part in stream.partitions(start, end)
        for batch in stream.read(part)
        for line in batch.column(0).to_pylist()
    )


def append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_files_that_grow_are_read_once_and_half_a_line_waits(tmp_path: Path) -> None:
    first, later = (tmp_path / f"date=2026-11-23/hour={hour}/w-1.jsonl" for hour in (10, 11))
    stream = LogFolderStream(str(tmp_path))
    none = stream.initialOffset()
    assert stream.latestOffset(none, None) == none
    append(first, "a\nb\nhal")
    one = stream.latestOffset(none, None)
    assert read(stream, none, one) == ["a", "b"]
    append(first, "f\n")
    append(later, 'c\n{"no": "line break"}')
    two = stream.latestOffset(one, None)
    assert read(stream, one, two) == ["c", "half", '{"no": "line break"}']
    assert stream.latestOffset(two, None)["files"] == two["files"]
    assert read(stream, none, two) == ["a", "b", "c", "half", '{"no": "line break"}']


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_parts_of_a_file_have_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    lines = [str(10**n) for n in range(12)]
    append(tmp_path / "log.jsonl", "\n".join(lines) + "\n\n")
    monkeypatch.setattr(folder, "PART_BYTES", size)
    monkeypatch.setattr(folder, "TAIL_BYTES", max(1, size // 2))
    stream = LogFolderStream(str(tmp_path))
    end = stream.latestOffset()
    assert read(stream, stream.initialOffset(), end) == lines
    half = {**end, "files": {"log.jsonl": len("1\n10\n")}}
    assert read(stream, half, end) == lines[2:]


def test_a_stream_that_ends_reads_nothing_that_comes_later(tmp_path: Path) -> None:
    append(tmp_path / "log.jsonl", "a\n")
    stream = LogFolderStream(str(tmp_path))
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), None)
    append(tmp_path / "log.jsonl", "b\n")
    assert stream.latestOffset(end, None) == end


def test_old_hours_are_forgotten_and_not_read_again(tmp_path: Path) -> None:
    names = [f"date=2026-11-{day}/hour=00/w-1.jsonl" for day in ("01", "20", "21")]
    for name in names:
        append(tmp_path / name, f"{name}\n")
    stream = LogFolderStream(str(tmp_path))
    one = stream.latestOffset(stream.initialOffset(), None)
    assert list(one["files"]) == names
    two = stream.latestOffset(one, None)
    assert (list(two["files"]), two["since"]) == (names[1:], "date=2026-11-18/hour=00")
    append(tmp_path / names[0], "late\n")
    assert stream.latestOffset(two, None) == two


def test_hour_that_has_not_come_yet_hides_no_other_hour(tmp_path: Path) -> None:
    names = ["date=2026-11-20/hour=00/w-1.jsonl", "date=2999-01-01/hour=00/w-1.jsonl"]
    for name in names:
        append(tmp_path / name, f"{name}\n")
    stream = LogFolderStream(str(tmp_path))
    offset = stream.latestOffset(stream.initialOffset(), None)
    offset = stream.latestOffset(offset, None)
    assert list(offset["files"]) == names


def test_hidden_files_and_other_names_are_left_out(tmp_path: Path) -> None:
    for name in (".a.jsonl", "_b/c.jsonl", "d.txt", "2026/11/e.json", "f.jsonl"):
        append(tmp_path / name, "x\n")
    assert list(log_files(str(tmp_path))) == ["2026/11/e.json", "f.jsonl"]


def test_a_store_is_asked_for_no_size_of_a_file() -> None:
    store = CountedStore.start()
    for hour in range(10, 14):
        for writer in "abc":
            store.objects[f"log/date=2026-11-23/hour={hour}/{writer}-1.jsonl"] = b"a\nb\n"
    store.objects["log/date=2026-11-23/.hidden/x.jsonl"] = b"a\n"
    store.objects["log/top.jsonl"] = b"a\n"
    stream = LogFolderStream("counted://log")
    one = stream.latestOffset()
    assert len(one["files"]) == 13 and set(one["files"].values()) == {2, 4}
    store.requests.clear()
    # Nothing is new: the store lists the folder, its files with their sizes, and the day.
    assert stream.latestOffset(one)["files"] == one["files"]
    assert (store.count("LIST"), store.count("HEAD"), store.count("GET")) == (3, 0, 0)
    store.objects["log/date=2026-11-23/hour=13/c-1.jsonl"] += b"c\nhal"
    two = stream.latestOffset(one)
    assert store.count("GET") == 1 and read(stream, one, two) == ["c"]


def test_a_stream_begins_with_an_hour(tmp_path: Path) -> None:
    for hour in (9, 10, 11):
        append(tmp_path / f"date=2026-11-23/hour={hour:02}/w-1.jsonl", f"{hour}\n")
    stream = LogFolderStream(str(tmp_path), "date=2026-11-23/hour=10")
    begin = stream.initialOffset()
    assert read(stream, begin, stream.latestOffset(begin)) == ["10", "11"]


def test_lines_have_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "PART_BYTES", 4)
    append(tmp_path / "log.jsonl", "a\n\nbcd\nefghijk\nl\n")
    stream = LogFolderStream(str(tmp_path))
    places = [
        (offset, value)
        for part in stream.partitions(stream.initialOffset(), stream.latestOffset())
        for batch in stream.read(part)
        for value, offset in zip(
            *(batch[name].to_pylist() for name in ("value", "offset")), strict=True
        )
    ]
    assert sorted(places) == [(0, b"a"), (3, b"bcd"), (7, b"efghijk"), (15, b"l")]
