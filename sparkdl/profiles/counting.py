"""Runs in a Spark task. Count the values of groups of rows in the bins of a profile."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.profiles.elements import matrix_of
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
        element, size: the number of the element of arrays of this size that the feature is; an
            array of another length counts as a null. None for a whole column.
    """

    edges: Edges | None = None
    categories: tuple[str, ...] = ()
    element: int | None = None
    size: int = 0

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], is_alone: bool = False) -> "FeatureBins":
        """Return the bins of a feature of a profile.

        Args:
            fields: the fields of the feature.
            is_alone: the values of an element of arrays are in a column of their own.
        """
        if "quantiles" not in fields:
            return cls(categories=tuple(fields.get("categories", ())))
        edges = Edges.from_fields(fields)
        if is_alone or "element" not in fields:
            return cls(edges=edges)
        return cls(edges=edges, element=fields["element"], size=fields["size"])

    def count(self, column: pa.Array) -> dict[str, Any]:
        """Return the counts of a column by part; NaN counts as a null."""
        if self.element is not None:
            return self.count_element(matrix_of(column, self.size)[0], len(column))
        counts: dict[str, Any] = {"n": [len(column)], "nulls": [column.null_count]}
        if self.edges:
            values = values_of(column)
            is_nan = np.isnan(values)
            counts["nulls"] = [column.null_count + int(is_nan.sum())]
            counts |= self._count_numbers(values[~is_nan])
        elif is_text(column.type):
            texts = pa.array(self.categories, column.type)
            places = pc.index_in(column.drop_null(), texts).fill_null(len(texts))
            counts["categories"] = np.bincount(
                places.to_numpy(zero_copy_only=False), minlength=len(texts) + 1
            )
        return {part: np.asarray(numbers, np.int64) for part, numbers in counts.items()}

    def count_element(self, matrix: Any, num_rows: int) -> dict[str, Any]:
        """Return the counts of the element in arrays of the right length; other rows are nulls."""
        values = matrix[:, self.element]
        values = values[~np.isnan(values)]
        counts = {"n": [num_rows], "nulls": [num_rows - len(values)]}
        counts |= self._count_numbers(values)
        return {part: np.asarray(numbers, np.int64) for part, numbers in counts.items()}

    def _count_numbers(self, values: Any) -> dict[str, Any]:
        counts = self.edges.count(values) if self.edges else None
        return {part: getattr(counts, part) for part in NUMBERS}


@dataclass(frozen=True)
class BinCounter:
    """A function for `mapInArrow` that counts the values of each group of a partition.

    The first column is the group, which may be null; the other columns have the features.

    Attributes:
        features: the bins of each feature.
        parts: the parts to return.
        columns: the number of the column that has each feature.
    """

    features: tuple[FeatureBins, ...]
    parts: tuple[str, ...]
    columns: tuple[int, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the numbers that are not zero, as rows of group, feature, part, bin and number."""
        sums: dict[tuple[Any, int, str], Any] = {}
        group_type = pa.null()
        for batch in batches:
            group_type = batch.column(0).type
            for group, rows in _groups(batch):
                for number, counts in enumerate(self._counts(rows)):
                    for part in self.parts:
                        if part in counts:
                            key = group, number, part
                            sums[key] = sums.get(key, 0) + counts[part]
        for (group, number, part), counts in sums.items():
            if (bins := np.flatnonzero(counts)).size:
                yield _rows(pa.array([group], group_type), number, part, bins, counts[bins])

    def _counts(self, rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Yield the counts of each feature. The elements of arrays are taken apart once."""
        matrices: dict[tuple[int, int], Any] = {}
        for feature, place in zip(self.features, self.columns, strict=True):
            column = rows.column(place + 1)
            if feature.element is None:
                yield feature.count(column)
                continue
            key = place, feature.size
            if key not in matrices:
                matrices[key] = matrix_of(column, feature.size)[0]
            yield feature.count_element(matrices[key], len(column))


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
