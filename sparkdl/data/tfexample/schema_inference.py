"""Runs anywhere. Infer a schema from the first records of TFRecord files."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.data.tfexample.columns import Kind
from sparkdl.data.tfexample.decode import Examples, NotAnExample, decode
from sparkdl.data.tfexample.framing import COMPRESSIONS, chunks, compression_of
from sparkdl.data.tfexample.to_arrow import values_of
from sparkdl.errors import ConfigError, suggest

# Limits of the records from which a schema is inferred.
INSPECTED_RECORDS = 1000
INSPECTED_CHUNKS = 4

# Bytes that are read at once for the first record of a file.
FIRST_BYTES = 64 << 10


def check_compression(compression: str | None, also: Sequence[str | None] = (None, "auto")) -> None:
    """Validate the compression of TFRecord files.

    Args:
        compression: the user's value.
        also: valid values besides `COMPRESSIONS`.

    Raises:
        ConfigError: if the value is invalid.
    """
    names = (*COMPRESSIONS, *also)
    if compression not in names:
        hint = suggest(str(compression).lower(), COMPRESSIONS)
        raise ConfigError(f"compression is {compression!r}; expected one of {names}.{hint}")


@dataclass(frozen=True)
class Inspected:
    """The features of the first records of some files.

    Attributes:
        records: number of records that were read.
        kinds: kind of each feature, by name.
        lengths: the numbers of values that each feature has in a record, by name; -1 for records
            without the feature.
        lists: names of the feature lists of SequenceExamples.
    """

    records: int
    kinds: dict[str, Kind]
    lengths: dict[str, frozenset[int]]
    lists: frozenset[str] = frozenset()

    def length(self, name: str) -> int | None:
        """Return the number of values in every record; None if the numbers differ or are 0."""
        [first, *others] = self.lengths[name]
        return None if others or first < 1 else first

    def is_array(self, name: str) -> bool:
        """Return True unless it is a feature that has one value in all records that have it."""
        return name in self.lists or self.lengths[name] - {-1} != {1}


def inspect(urls: Iterable[str], compression: str | None) -> Inspected:
    """Inspect the first records of files: 1000 records, or fewer if they exceed 32 MiB.

    Args:
        urls: the files.
        compression: see `framing.compression_of`.

    Raises:
        ConfigError: if there is no record, or the records have no features.
        NotAnExample: if a record is not an Example, or a feature changes its kind.
        CorruptRecord: if a file is damaged.
    """
    urls = list(urls)
    chunks_read, records = [], 0
    for examples, lengths in _first_records(urls, compression):
        chunks_read.append((examples, lengths))
        records += examples.rows
        if records >= INSPECTED_RECORDS or len(chunks_read) >= INSPECTED_CHUNKS:
            break
    names = list(dict.fromkeys(name for _, lengths in chunks_read for name in lengths))
    if not names:
        problem = (
            f"the first {records} records have no features" if records else "there is no record"
        )
        raise ConfigError(
            f"cannot infer a schema from {urls[0]!r} and the files after it: {problem}. Pass a "
            "schema."
        )
    return Inspected(
        records,
        {name: _common_kind([examples for examples, _ in chunks_read], name) for name in names},
        {
            name: frozenset().union(*(lengths.get(name, {-1}) for _, lengths in chunks_read))
            for name in names
        },
        frozenset().union(*(examples.lists for examples, _ in chunks_read)),
    )


def has_lists(urls: Iterable[str], compression: str | None) -> bool:
    """Return True if the first record of all files is a SequenceExample with feature lists.

    Args:
        urls, compression: see `inspect`.
    """
    try:
        for url in urls:
            own = compression_of(url, compression)
            for _, data, spans in chunks(url, own, num_bytes=FIRST_BYTES):
                return bool(decode(data, spans[:1], None).lists)
    except ValueError:
        return False  # The error is raised again when the record is read.
    return False


def _first_records(
    urls: Sequence[str], compression: str | None
) -> Iterator[tuple[Examples, dict[str, set[int]]]]:
    """Yield the first records of each chunk, and the numbers of values of each feature."""
    for url in urls:
        for offset, data, spans in chunks(url, compression_of(url, compression)):
            try:
                examples = decode(data, spans[:INSPECTED_RECORDS], None)
                lengths = {name: _lengths(examples, name) for name in examples.features}
            except NotAnExample as error:
                raise not_an_example(url, offset, error) from error
            yield examples, lengths


def not_an_example(url: str, offset: int, error: NotAnExample) -> NotAnExample:
    """Return the error with the file and the position of the records added to its message."""
    return NotAnExample(f"{url!r}, in the records from byte {offset} on: {error}.")


def _common_kind(chunks_read: Sequence[Examples], name: str) -> Kind:
    [kind, *others] = {e.features[name].kind for e in chunks_read if name in e.features}
    if others:
        raise NotAnExample(
            f"feature {name!r} holds {kind.name} in one record and {others[0].name} in another; "
            "expected one kind."
        )
    return kind


def _lengths(examples: Examples, name: str) -> set[int]:
    counts: Any = np.unique(values_of(examples, name)[1])
    return set(counts.tolist())
