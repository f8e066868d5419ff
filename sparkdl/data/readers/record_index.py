"""Runs in the training process. The index of TFRecord files: numbers and places of their records.

The first rank makes it for all ranks, see `agreed_pieces`, and keeps it in the run directory.
"""

import gzip
import hashlib
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkdl import context
from sparkdl.data.agreed_pieces import Pieces
from sparkdl.data.readers.paths import Files, Paths, find, urls_of
from sparkdl.data.tfexample.counts import FileCount, counts_of
from sparkdl.data.tfexample.framing import compression_of, measure
from sparkdl.data.tfexample.marks import Marks, Part, distance_for
from sparkdl.data.tfexample.schema_inference import check_compression, has_lists, inspect
from sparkdl.files import storage
from sparkdl.files.layout import INDEXES

# An index of another format, by another version of sparkdl, is not found.
FORMAT = 2

NUM_THREADS = 8  # The threads mostly wait for a store.

_logger = logging.getLogger("sparkdl.data")


class FileParts:
    """The parts of files that have some records.

    Args:
        sizes: sizes of the files in bytes.
        mark_rows, mark_offsets: the marks of each file, see `Marks`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        mark_rows: Sequence[list[int]],
        mark_offsets: Sequence[list[int]],
    ) -> None:
        self._sizes = sizes
        self._marks = [
            Marks(rows=rows, offsets=offsets)
            for rows, offsets in zip(mark_rows, mark_offsets, strict=True)
        ]

    def around(self, piece: int, start: int, stop: int) -> Part:
        """Return a part that has records `start <= i < stop` of a file, and few others."""
        return self._marks[piece].around(start, stop, self._sizes[piece])


def index_records(
    paths: Paths, schema: Mapping[str, Any] | None, compression: str | None
) -> Pieces:
    """Return the files, their records, and the columns of the first records, in JSON form.

    Within a run the files are read once; the result is cache for as long as they do not change.

    Args:
        paths, schema, compression: see `tfrecord`.

    Raises:
        ConfigError: if `compression` is invalid, or there is no record to infer a schema from.
        ValueError: if a file is damaged or cut off, or its records are not Examples.
    """
    check_compression(compression)
    matches = find(paths)
    files = [each.to_dict() for each in matches]
    cache = _IndexCache(matches, [compression, schema is None])
    pieces = cache.read()
    if pieces is None:
        pieces = _index(matches, compression, is_inspected=schema is None)
        if schema is None:
            pieces["inspected"] = _inspect(urls_of(matches), compression)
            pieces["has_lists"] = bool(pieces["inspected"]["lists"])
        cache.write(pieces)
    return {"files": files, **pieces}


def _index(matches: Sequence[Files], compression: str | None, is_inspected: bool) -> Pieces:
    urls = urls_of(matches)
    sizes = dict(zip(urls, (size for files in matches for size in files.sizes), strict=True))
    known_counts = counts_of(sizes)
    distance = distance_for(sum(sizes.values()))

    def count(url: str) -> tuple[FileCount, Marks]:
        if (count_of_writer := known_counts.get(url)) and compression in (
            "auto",
            count_of_writer.compression,
        ):
            marks = Marks(
                rows=list(count_of_writer.mark_rows), offsets=list(count_of_writer.mark_offsets)
            )
            marks.thin(distance)
            return count_of_writer, marks
        own_compression = compression_of(url, compression)
        marks = Marks(distance)
        rows, num_bytes = measure(url, own_compression, sizes[url] or None, marks)
        count = FileCount(
            rows=rows, size=sizes[url], num_bytes=num_bytes, compression=own_compression
        )
        return count, marks

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        counted = list(pool.map(count, urls))
    uncounted = [url for url in urls if url not in known_counts]
    return {
        "compressions": [file.compression for file, _ in counted],
        "rows": [file.rows for file, _ in counted],
        "num_bytes": sum(file.num_bytes for file, _ in counted),
        "mark_rows": [marks.rows for _, marks in counted],
        "mark_offsets": [marks.offsets for _, marks in counted],
        # data.write_tfrecord writes none.
        "has_lists": not is_inspected and has_lists(uncounted, compression),
    }


def _inspect(urls: Sequence[str], compression: str | None) -> dict[str, Any]:
    inspected = inspect(urls, compression)
    return {
        "records": inspected.records,
        "kinds": {name: kind.value for name, kind in inspected.kinds.items()},
        "lengths": {name: sorted(lengths) for name, lengths in inspected.lengths.items()},
        "lists": sorted(inspected.lists),
    }


class _IndexCache:
    """The index of some files in the run directory; outside a run there is none.

    Args:
        matches: the files; an index of files that have changed is not found.
        arguments: what else the index depends on.
    """

    def __init__(self, matches: Sequence[Files], arguments: Sequence[Any]) -> None:
        listed = [[f.root, f.folder, f.paths, f.sizes, f.marks] for f in matches]
        digest = hashlib.sha256(json.dumps([FORMAT, listed, *arguments]).encode()).hexdigest()[:32]
        # Without marks, a file that was written again with the same size would not be noticed.
        root = context.current().run_path if all(f.mark_key for f in matches) else ""
        self._url = root and storage.join(root, INDEXES, f"{digest}.json.gz")

    def read(self) -> Pieces | None:
        """Return the index; None if there is none that can be read."""
        try:
            content = storage.read(self._url) if self._url else b""
            return dict(json.loads(gzip.decompress(content))) if content else None
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, zlib.error) as exc:
            _logger.debug("the index %s cannot be read: %s", self._url, exc)
            return None

    def write(self, pieces: Pieces) -> None:
        """Keep the index, if the run directory allows it."""
        try:
            if self._url:
                storage.write(self._url, gzip.compress(json.dumps(pieces).encode(), 1))
        except OSError as exc:
            _logger.debug("the index %s is not kept: %s", self._url, exc)
