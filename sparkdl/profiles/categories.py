"""Runs anywhere. The most frequent texts of a column, in limited memory."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

NUM_CATEGORIES = 100
# Longer texts are no categories: they count as others.
MAX_LENGTH = 256
# Of more texts than this, only the more frequent half is counted one by one.
MAX_TEXTS = 20_000

# The text in place of a long one begins with it.
_LONG = "\0"


@dataclass(frozen=True)
class Categories:
    """The number of values of each text.

    Attributes:
        counts: the number of values of the texts that are counted one by one.
        other: the number of all other values.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    other: int = 0

    @classmethod
    def of(cls, column: pa.Array) -> "Categories":
        """Return the categories of a column of texts; nulls are left out.

        Example:
            >>> Categories.of(pa.array(["a", None, "b", "a"])).fields()
            {'num_distinct': 2, 'categories': {'a': 2, 'b': 1}, 'other': 0}
        """
        pairs = pc.value_counts(column.drop_null())
        texts, counts = pairs.field("values").to_pylist(), pairs.field("counts").to_pylist()
        return cls(dict(zip(map(_shortened, texts), counts, strict=True)))

    @classmethod
    def sum(cls, parts: Iterable["Categories"], max_texts: int = MAX_TEXTS) -> "Categories":
        """Return the categories of the values of all parts."""
        total: Counter[str] = Counter()
        other = 0
        for part in parts:
            other += part.other
            total.update(part.counts)
            if len(total) > max_texts:
                most_common = Counter(dict(total.most_common(max_texts // 2)))
                other += total.total() - most_common.total()
                total = most_common
        return cls(total, other)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a profile: the most frequent texts, and the number of others."""
        texts = [text for text in self.counts if not text.startswith(_LONG)]
        top = sorted(texts, key=lambda text: (-self.counts[text], text))[:NUM_CATEGORIES]
        categories = {text: self.counts[text] for text in top}
        num_values = sum(self.counts.values()) + self.other
        return {
            "num_distinct": len(self.counts),
            "categories": categories,
            "other": num_values - sum(categories.values()),
        }


def _shortened(text: str) -> str:
    if len(text) <= MAX_LENGTH:
        return text
    return _LONG + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
