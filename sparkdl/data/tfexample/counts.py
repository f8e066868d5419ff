"""Runs anywhere. Numbers and places of records, kept in the `_SUCCESS` of a folder by its writer.

Counting the records of a TFRecord file means reading the file: its format has no index. A count
holds for a file of the same name and size. Times would tell more, but are others in a copy of the
folder, whose files would all be read.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from sparkdl.files import storage

SUCCESS = "_SUCCESS"
_KEY = "tfrecord_files"


@dataclass(frozen=True, kw_only=True)
class FileCount:
    """The content of a file.

    Attributes:
        rows: number of records.
        size: size of the file in bytes.
        num_bytes: its size before compression.
        compression: `gzip` or None.
        mark_rows, mark_offsets: numbers and places of some records, see `Marks`.
    """

    rows: int
    size: int
    num_bytes: int
    compression: str | None
    mark_rows: Sequence[int] = (0,)
    mark_offsets: Sequence[int] = (0,)


def pack_counts(counts: Mapping[str, FileCount]) -> bytes:
    """Return the content of `_SUCCESS`.

    Args:
        counts: the content of each file, by its name.
    """
    return json.dumps({_KEY: {name: asdict(count) for name, count in counts.items()}}).encode()


def counts_of(sizes: Mapping[str, int]) -> dict[str, FileCount]:
    """Return the content of files as far as it is known; a file of another size is not known.

    Args:
        sizes: the size in bytes of each file, by its URL.
    """
    folders = {url.rpartition("/")[0] for url in sizes}
    counts = {
        storage.join(folder, name): count
        for folder in folders
        for name, count in _counts_in(folder).items()
    }
    return {u: counts[u] for u, size in sizes.items() if u in counts and counts[u].size == size}


def _counts_in(folder: str) -> dict[str, FileCount]:
    """Return the counts that a job has left in a folder, by the name of the file."""
    content = storage.read_many([storage.join(folder, SUCCESS)])
    try:
        described = json.loads(next(iter(content.values()), b""))
        return {name: FileCount(**fields) for name, fields in described[_KEY].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}  # Other writers leave the file empty, or have a content of their own.
