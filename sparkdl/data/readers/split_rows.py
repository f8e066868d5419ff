"""Runs in the training process. Read only the rows of a split."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from sparkdl.data.agreed_pieces import Call, agree
from sparkdl.data.readers.base import ArrowSource, Source
from sparkdl.data.row_split import RowSplit
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError

__all__ = ["SplitRows", "split_rows"]


def split_rows(source: Source, split: RowSplit) -> "SplitRows":
    """Return the rows of a source that belong to a split.

    The first rank reads the column of the split once to count rows, for all ranks.

    Args:
        source: all rows.
        split: the split.

    Raises:
        ConfigError: if the source has no columns of Arrow, or the column cannot be hashed.
    """
    if not isinstance(source, ArrowSource):
        raise ConfigError(
            f"split={split.column!r} is for data.parquet, csv and petastorm; {source.name} is read "
            "by TensorFlow. Write the rows of each split to files of their own, or as Parquet."
        )
    split.check(source.schema)
    call = Call("split", {"column": split.column, "begin": split.begin, "end": split.end})
    pieces = agree(call, lambda: {"rows": list(_counts(source, split))})
    return SplitRows(source, split, pieces["rows"])


def _counts(source: ArrowSource, split: RowSplit) -> Iterator[int]:
    """Yield the number of rows of each piece that belong to the split."""
    for piece, rows in enumerate(source.sizes):
        batches = source.read([Range(piece, 0, rows)] if rows else [], [split.column])
        yield sum(int(split.mask(batch.column(split.column)).sum()) for batch in batches)


class SplitRows(ArrowSource):
    """The rows of another source that belong to a split; the pieces are those of the source.

    Args:
        source: all rows.
        split: the split.
        sizes: number of rows of each piece that belong to the split.
    """

    def __init__(self, source: ArrowSource, split: RowSplit, sizes: Sequence[int]) -> None:
        self.name = source.name
        self.sizes = sizes
        self.schema = source.schema
        self.options = source.options
        self._source = source
        self._split = split

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `ArrowSource.read`; a piece is read from its start."""
        for part in ranges:
            yield from self._read_range(part, names)

    def _read_range(self, part: Range, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        needed = list(dict.fromkeys([*names, self._split.column]))
        whole = Range(part.piece, 0, self._source.sizes[part.piece])
        position = 0
        with closing(self._source.read([whole], needed)) as batches:  # type: ignore[type-var]
            for batch in batches:
                kept = batch.filter(pa.array(self._split.mask(batch.column(self._split.column))))
                start = max(part.start - position, 0)
                wanted = kept.slice(start, max(part.stop - position - start, 0))
                position += kept.num_rows
                if wanted.num_rows:
                    yield wanted.select(list(names))
                if position >= part.stop:
                    return
        raise ValueError(
            f"{self.name} has {position} rows of the split in a piece, and had more when they were "
            "counted. Start again."
        )
