"""Runs in the training process. Read several sources as one, one after the other."""

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa

from sparkdl.data.readers.base import ArrowSource
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError


class JoinedSource(ArrowSource):
    """The rows of several sources with the same columns; the pieces are those of all sources.

    Args:
        sources: at least one source.

    Raises:
        ConfigError: if the columns differ.
    """

    def __init__(self, sources: Sequence[ArrowSource]) -> None:
        first = sources[0]
        for other in sources[1:]:
            if _kinds(other.schema) != _kinds(first.schema):
                raise ConfigError(
                    f"{other.name} has the columns {_describe(other.schema)}; expected those of "
                    f"{first.name}: {_describe(first.schema)}. Name the common ones in columns=."
                )
        others = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        self.name = f"{first.name}{others}"
        self.sizes = [rows for source in sources for rows in source.sizes]
        self.schema = first.schema
        self.options = first.options
        self._sources = sources
        self._begins = [0, *itertools.accumulate(len(source.sizes) for source in sources)]
        self._source_of = [
            number for number, source in enumerate(sources) for _ in range(len(source.sizes))
        ]

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `ArrowSource.read`."""
        for number, group in itertools.groupby(ranges, lambda part: self._source_of[part.piece]):
            begin = self._begins[number]
            own_ranges = [Range(part.piece - begin, part.start, part.stop) for part in group]
            yield from self._sources[number].read(own_ranges, names)


def _kinds(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)
