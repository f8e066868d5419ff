"""Files are compared by their content. NumPy, h5py and zipfile write them and tell what differs."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sparkdl.runs.verification.contents import compare_contents
from sparkdl.runs.verification.mismatch import Mismatch, compare_arrays, is_same


def compared(before: bytes, now: bytes) -> list[Mismatch]:
    return compare_contents("f", io.BytesIO(before), io.BytesIO(now))


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(members: dict[str, bytes], year: int = 2000) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as each:
        for name, content in members.items():
            each.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), content)
    return file.getvalue()


def test_the_size_of_a_difference_is_that_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64, np.float16, np.int16):
        before = (100 * rng.normal(size=(7, 5))).astype(dtype)
        now = before.copy()
        places = rng.choice(35, 6, replace=False)
        now.flat[places] += dtype(3)
        assert compared(npy(before), npy(before)) == []
        (one,) = compared(npy(before), npy(now))
        old, new = before.astype(np.float64), now.astype(np.float64)
        gaps = np.abs(old - new)
        assert one.num_differing == np.count_nonzero(gaps) and one.num_compared == 35
        assert one.largest == gaps.max()
        assert one.relative == (gaps / np.maximum(np.abs(old), np.abs(new))).max()


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (np.array([0.0]), np.array([-0.0])),
        (np.array([1.0]), np.nextafter(np.array([1.0]), 2)),
        (np.array([1.0]), np.array([np.nan])),
        (np.array([1, 2]), np.array([1, 2], np.int32)),
        (np.array([[1, 2]]), np.array([1, 2])),
        (np.array(["a"], object), np.array(["b"], object)),
    ],
    ids=["sign of zero", "last bit", "nan", "dtype", "shape", "objects"],
)
def test_arrays_differ_by_a_bit(before: np.ndarray, now: np.ndarray) -> None:
    assert compare_arrays("w", before, now) is not None
    assert compare_arrays("w", before, before.copy()) is None


def test_numbers_are_the_same_only_to_the_last_bit() -> None:
    nan = float("nan")
    assert is_same({"a": [1.5, nan]}, {"a": [1.5, nan]})
    for other in ({"a": [1.5]}, {"a": [1.5, 1.0]}, {"b": [1.5, nan]}, {"a": (1.5, nan)}):
        assert not is_same({"a": [1.5, nan]}, other)
    assert not is_same(True, 1) and not is_same(0.1 + 0.2, 0.3)


def test_an_archive_is_the_same_whenever_its_files_were_added() -> None:
    weights = {"w.npy": npy(np.arange(4.0)), "names": b"a\nb"}
    assert archive(weights, 2001) != archive(weights, 2002)
    assert compared(archive(weights, 2001), archive(weights, 2002)) == []
    (one,) = compared(archive(weights), archive({**weights, "w.npy": npy(np.arange(4.0) ** 2)}))
    assert one.what == "f, w.npy" and one.largest == 6.0
    (one,) = compared(archive(weights), archive({**weights, "more": b"x"}))
    assert (one.what, one.before, one.now) == ("f, more", "absent", "1 bytes")


def test_the_time_at_which_keras_has_saved_is_no_difference() -> None:
    def saved(time: str, version: str = "3") -> bytes:
        metadata = json.dumps({"keras_version": version, "date_saved": time})
        return archive({"metadata.json": metadata.encode(), "config.json": time[:0].encode()})

    assert compared(saved("2026-01-01"), saved("2026-01-02")) == []
    assert compared(saved("2026-01-01"), saved("2026-01-01", "4")) != []


def test_hdf5_files_are_compared_by_datasets_and_attributes(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")

    def written(name: str, weight: float, attribute: str = "relu", **more: float) -> bytes:
        with h5py.File(tmp_path / name, "w", track_order=name > "b") as file:
            file["layers/dense/w"] = np.array([1.0, weight])
            file["layers"].attrs["activation"] = attribute
            for key, value in more.items():
                file[key] = value
        return (tmp_path / name).read_bytes()

    first, other = written("a", 2.0), written("c", 2.0)
    assert first != other
    assert compared(first, other) == []
    (one,) = compared(first, written("d", 2.5))
    assert (one.what, one.largest, one.num_differing) == ("f, layers/dense/w", 0.5, 1)
    (one,) = compared(first, written("e", 2.0, "tanh"))
    assert one.what == "f, layers@activation"
    (one,) = compared(first, written("g", 2.0, extra=1.0))
    assert (one.what, one.before) == ("f, extra", "absent")


def test_other_files_are_the_same_only_byte_for_byte() -> None:
    (one,) = compared(b"a\nb\nc\n", b"a\nB\nc\n")
    assert str(one) == "f, line 2 differs: 'b' before, 'B' now"
    (one,) = compared(b"a\n", b"a\nb")
    assert one.what == "f, line 2"
    before, now = pickle.dumps([1.0] * 9), pickle.dumps([1.0] * 8 + [2.0])
    place = next(n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b)
    (one,) = compared(before, now)
    assert f"from byte {place} on" in one.what
    # What only looks like an archive, or like an array.
    for head in (b"PK\x03\x04", b"\x93NUMPY", b"\x89HDF\r\n\x1a\n"):
        assert len(compared(head + b"\0a", head + b"\0b")) == 1


def test_a_difference_behind_the_first_piece_is_found() -> None:
    large = bytes(3 << 20)
    (one,) = compared(large, large[:-1] + b"\1")
    assert f"from byte {(3 << 20) - 1} on" in one.what
