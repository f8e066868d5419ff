"""Runs in a Spark task. Count the values of groups of rows in the bins of a profile."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.profiles.histograms import Edges
from sparkdl.profiles.summary import is_text, values_of

# The parts of the counts of a feature: rows, nulls, histograms of numbers, and categories.
NUMBERS = ("quantiles", "bins", "wide_bins", "beyond")
PARTS = ("n", "nulls", *NUMBERS, "categories")


@dataclass(frozen=True)
class FeatureBins:
    """The bins of a feature.

    Attributes:
        edges: the edges of the bins of numbers; None for texts.
        categories: the texts that are counted one by one, before the number of all others.
    """

    edges: Edges | None = None
    categories: tuple[str, ...] = ()

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "FeatureBins":
        """Return the bins of a feature of a profile."""
        if "quantiles" in fields:
            return cls(edges=Edges.from_fields(fields))
        return cls(categories=tuple(fields.get("categories", ())))

    def count(self, column: pa.Array) -> dict[str, Any]:
        """Return the counts of a column by part; NaN counts as a null."""
        counts: dict[str, Any] = {"n": [len(column)], "nulls": [column.null_count]}
        if self.edges:
            values = values_of(column)
            is_nan = np.isnan(values)
            counts["nulls"] = [column.null_count + int(is_nan.sum())]
            edge_counts = self.edges.count(values[~is_nan])
            counts |= {part: getattr(edge_counts, part) for part in NUMBERS}
        elif is_text(column.type):
            texts = pa.array(self.categories, column.type)
            places = pc.index_in(column.drop_null(), texts).fill_null(len(texts))
            counts["categories"] = np.bincount(
                places.to_numpy(zero_copy_only=False), minlength=len(texts) + 1
            )
        return {part: np.asarray(numbers, np.int64) for part, numbers in counts.items()}


@dataclass(frozen=True)
class BinCounter:
    """A function for `mapInArrow` that counts the values of each group of a partition.

    The first column is the group, which may be null; the other columns are the features.

    Attributes:
        features: the bins of each feature.
        parts: the parts to return.
    """

    features: tuple[FeatureBins, ...]
    parts: tuple[str, ...] = PARTS

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the numbers that are not zero, as rows of group, feature, part, bin and number."""
        sums: dict[tuple[Any, int, str], Any] = {}
        group_type = pa.null()
        for batch in batches:
            group_type = batch.column(0).type
            for group, rows in _groups(batch):
                for number, feature in enumerate(self.features):
                    counts = feature.count(rows.column(number + 1))
                    for part in self.parts:
                        if part in counts:
                            key = group, number, part
                            sums[key] = sums.get(key, 0) + counts[part]
        for (group, number, part), counts in sums.items():
            if (bins := np.flatnonzero(counts)).size:
                yield _rows(pa.array([group], group_type), number, part, bins, counts[bins])


def _groups(batch: pa.RecordBatch) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Yield the rows of each group."""
    groups = batch.column(0)
    for group in groups.unique():
        is_member = pc.equal(groups, group) if group.is_valid else groups.is_null()
        yield group.as_py(), batch.filter(is_member)


def _rows(group: pa.Array, feature: int, part: str, bins: Any, counts: Any) -> pa.RecordBatch:
    size = len(bins)
    return pa.RecordBatch.from_pydict(
        {
            "group": group.take(pa.array(np.zeros(size, np.int64))),
            "feature": pa.array(np.full(size, feature), pa.int32()),
            "part": pa.array([part] * size, pa.string()),
            "bin": pa.array(bins, pa.int32()),
            "num": pa.array(counts, pa.int64()),
        }
    )
