"""Runs anywhere. What the first records of TFRecord files hold."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.data.tfexample.columns import Kind
from sparkdl.data.tfexample.decode import Examples, NotAnExample, decode
from sparkdl.data.tfexample.framing import COMPRESSIONS, chunks, compression_of
from sparkdl.data.tfexample.to_arrow import values_of
from sparkdl.errors import ConfigError, suggest

__all__ = ["Inspected", "check_compression", "inspect", "not_an_example"]

# From how many records a schema is inferred, and from how many chunks of a file at most.
INSPECTED_RECORDS, INSPECTED_CHUNKS = 1000, 4


def check_compression(given: str | None, also: Sequence[str | None] = (None, "auto")) -> None:
    """Refuse what is no way to compress TFRecord files.

    Raises:
        ConfigError: it is none.
    """
    known = (*COMPRESSIONS, *also)
    if given not in known:
        near = suggest(str(given).lower(), COMPRESSIONS)
        raise ConfigError(f"compression is {given!r}; expected one of {known}.{near}")


@dataclass(frozen=True)
class Inspected:
    """What the first records of some files hold.

    Attributes:
        records: how many were looked at.
        kinds: of each feature, by name.
        lengths: how many values each has in a record; -1 stands for records that have it not.
    """

    records: int
    kinds: dict[str, Kind]
    lengths: dict[str, frozenset[int]]

    def length(self, name: str) -> int | None:
        """How many values every record has; None where they differ or some have none."""
        [first, *others] = self.lengths[name]
        return None if others or first < 1 else first

    def is_array(self, name: str) -> bool:
        """Whether the records that have it do not all have one value."""
        return self.lengths[name] - {-1} != {1}


def inspect(urls: Iterable[str], compression: str | None) -> Inspected:
    """Look at the first 1000 records of the files, or at their first 32 MiB if these are fewer.

    Args:
        urls: the files.
        compression: see `framing.compression_of`.

    Raises:
        ConfigError: there is no record, or no feature in them.
        NotAnExample: they are no Examples, or a feature changes its kind.
        CorruptRecord: a file is damaged.
    """
    urls = list(urls)
    seen, records = [], 0
    for examples, lengths in _first(urls, compression):
        seen.append((examples, lengths))
        records += examples.rows
        if records >= INSPECTED_RECORDS or len(seen) >= INSPECTED_CHUNKS:
            break
    names = list(dict.fromkeys(name for _, lengths in seen for name in lengths))
    if not names:
        what = f"the first {records} records have no features" if records else "there is no record"
        raise ConfigError(f"{urls[0]!r} and files after it: {what} to infer a schema from; give it")
    return Inspected(
        records,
        {name: _same_kind([examples for examples, _ in seen], name) for name in names},
        {
            name: frozenset().union(*(lengths.get(name, {-1}) for _, lengths in seen))
            for name in names
        },
    )


def _first(
    urls: Sequence[str], compression: str | None
) -> Iterator[tuple[Examples, dict[str, set[int]]]]:
    """The first records of each chunk, and how many values these have of each feature."""
    for url in urls:
        for offset, data, spans in chunks(url, compression_of(url, compression)):
            try:
                examples = decode(data, spans[:INSPECTED_RECORDS], None)
                lengths = {name: _lengths(examples, name) for name in examples.features}
            except NotAnExample as error:
                raise not_an_example(url, offset, error) from error
            yield examples, lengths


def not_an_example(url: str, offset: int, error: NotAnExample) -> NotAnExample:
    """The same error with the file that it is about, and from which byte on to look."""
    return NotAnExample(f"{url!r}, in the records from byte {offset} on: {error}.")


def _same_kind(seen: Sequence[Examples], name: str) -> Kind:
    [kind, *others] = {e.features[name].kind for e in seen if name in e.features}
    if others:
        raise NotAnExample(
            f"feature {name!r} holds {kind.name} in one record and {others[0].name} in another; "
            "expected one kind."
        )
    return kind


def _lengths(examples: Examples, name: str) -> set[int]:
    counts: Any = np.unique(values_of(examples, name)[1])
    return set(counts.tolist())
