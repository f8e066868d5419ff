"""Runs on the driver. Compare two files by their content: archives, HDF5, arrays, text, bytes.

Files of one model are rarely equal byte for byte: a Keras file is an archive (`.keras`) that has
the time at which it was saved. Archives and HDF5 files are therefore compared part by part. Any
other file is the same only if all of its bytes are.
"""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, BinaryIO

from sparkdl.runs.verification.mismatch import ABSENT, Mismatch, compare_arrays, text_of

PIECE_BYTES = 1 << 20
# A longer file is no text that anybody compares line by line.
MAX_TEXT_BYTES = 1 << 24

# The file of an archive of Keras with the time at which it was saved, and the name of this time.
_KERAS_METADATA, _SAVED = "metadata.json", "date_saved"

Compare = Callable[[str, BinaryIO, BinaryIO], Iterator[Mismatch]]


def compare_contents(what: str, before: BinaryIO, now: BinaryIO) -> list[Mismatch]:
    """Return what differs between the contents of two files; nothing if they are the same.

    Args:
        what: the file, for messages.
        before, now: the files, at their beginning.

    Example:
        >>> [str(one) for one in compare_contents("a", io.BytesIO(b"x\\n1"), io.BytesIO(b"x\\n2"))]
        ["a, line 2 differs: '1' before, '2' now"]
    """
    place = _first_difference(before, now)
    if place is None:
        return []
    for file in (before, now):
        file.seek(0)
    heads = [file.read(8) for file in (before, now)]
    for signature, compare in _FORMATS.items():
        if all(head.startswith(signature) for head in heads):
            try:
                return list(compare(what, before, now))
            except (ImportError, OSError, ValueError, KeyError, zipfile.BadZipFile):
                break  # It is not what it looks like, or the package that reads it is absent.
    return [_plain(what, before, now, place)]


def _first_difference(before: BinaryIO, now: BinaryIO) -> int | None:
    """Return the place of the first byte that differs; None if there is none."""
    place = 0
    while True:
        old, new = before.read(PIECE_BYTES), now.read(PIECE_BYTES)
        if old != new:
            pairs = enumerate(zip_longest(old, new))
            return place + next(number for number, (a, b) in pairs if a != b)
        if not old:
            return None
        place += len(old)


def _plain(what: str, before: BinaryIO, now: BinaryIO, place: int) -> Mismatch:
    """Return the first line of a text that differs, or of other files the first byte."""
    lengths = [file.seek(0, io.SEEK_END) for file in (before, now)]
    if max(lengths) <= MAX_TEXT_BYTES:
        contents = []
        for file in (before, now):
            file.seek(0)
            contents.append(file.read())
        if b"\0" not in contents[0] + contents[1]:
            lines = zip_longest(*(content.split(b"\n") for content in contents))
            number, pair = next((n, p) for n, p in enumerate(lines, 1) if p[0] != p[1])
            old, new = (None if line is None else line.decode(errors="replace") for line in pair)
            name = f"{what}, line {number}"
            return Mismatch(what=name, before=text_of(old), now=text_of(new))
    sides = [f"{length} bytes" for length in lengths]
    other = "" if lengths[0] != lengths[1] else ", others"
    return Mismatch(what=f"{what}, from byte {place} on,", before=sides[0], now=sides[1] + other)


def _archive(what: str, before: BinaryIO, now: BinaryIO) -> Iterator[Mismatch]:
    """Yield the files of two archives that differ, whatever the times at which they were added."""
    with zipfile.ZipFile(before) as old, zipfile.ZipFile(now) as new:
        for name in dict.fromkeys([*old.namelist(), *new.namelist()]):
            sides = [
                archive.read(name) if name in archive.namelist() else None for archive in (old, new)
            ]
            if None in sides:
                words = [ABSENT if side is None else f"{len(side)} bytes" for side in sides]
                yield Mismatch(what=f"{what}, {name}", before=words[0], now=words[1])
                continue
            if name == _KERAS_METADATA:
                sides = [_without_time(side or b"") for side in sides]
            streams = [io.BytesIO(side or b"") for side in sides]
            yield from compare_contents(f"{what}, {name}", streams[0], streams[1])


def _without_time(text: bytes) -> bytes:
    try:
        content = json.loads(text)
    except ValueError:
        return text
    if not isinstance(content, dict) or _SAVED not in content:
        return text
    return json.dumps({**content, _SAVED: None}, indent=1).encode()


def _hdf5(what: str, before: BinaryIO, now: BinaryIO) -> Iterator[Mismatch]:
    """Yield the datasets and the attributes of two HDF5 files that differ."""
    import h5py  # type: ignore[import-untyped]

    with h5py.File(before, "r") as old, h5py.File(now, "r") as new:
        sides = [dict(_hdf5_parts(file)) for file in (old, new)]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        if name not in sides[0] or name not in sides[1]:
            words = [ABSENT if name not in side else "present" for side in sides]
            yield Mismatch(what=f"{what}, {name}", before=words[0], now=words[1])
        elif found := compare_arrays(f"{what}, {name}", sides[0][name], sides[1][name]):
            yield found


def _hdf5_parts(file: Any) -> Iterator[tuple[str, Any]]:
    import h5py
    import numpy as np

    objects = {"": file}
    file.visititems(lambda name, each: objects.update({name: each}))
    for name, each in objects.items():
        if isinstance(each, h5py.Dataset):
            yield name, np.asarray(each[()])
        else:
            yield f"{name}/", np.empty(0)
        for key, value in each.attrs.items():
            yield f"{name}@{key}", np.asarray(value)


def _array(what: str, before: BinaryIO, now: BinaryIO) -> Iterator[Mismatch]:
    import numpy as np

    for file in (before, now):
        file.seek(0)
    arrays = [np.load(file, allow_pickle=False) for file in (before, now)]
    if found := compare_arrays(what, arrays[0], arrays[1]):
        yield found


_FORMATS: dict[bytes, Compare] = {
    b"PK\x03\x04": _archive,
    b"\x89HDF\r\n\x1a\n": _hdf5,
    b"\x93NUMPY": _array,
}
