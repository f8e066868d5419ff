"""`filter` and `where` choose rows by their values: counted as they are read."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparkdl import data
from sparkdl.data.readers.parquet import ParquetSource
from sparkdl.data.readers.parquet_footers import list_row_groups
from sparkdl.data.row_condition import RowCondition
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError

NAN = float("nan")
F, N = pc.field("f"), pc.field("n")
# Conditions, and the same of a row in Python: of SQL, where a null passes none.
CONDITIONS: list[tuple[Any, Any]] = [
    ([("f", ">=", 0.0)], lambda f, n: f is not None and f >= 0),
    ([("f", "!=", 1.5)], lambda f, n: f is not None and f != 1.5),
    ([("f", "<", 9.0)], lambda f, n: f is not None and f < 9),
    ([("f", "not in", [1.5])], lambda f, n: f != 1.5),
    (~(F == 1.5), lambda f, n: f is not None and f != 1.5),
    (~(F >= 0.0), lambda f, n: f is not None and not f >= 0),
    (pc.is_nan(F), lambda f, n: f is not None and f != f),
    (F.is_null(nan_is_null=True), lambda f, n: f is None or f != f),
    ((F >= 1.0) & (N < 3), lambda f, n: None not in (f, n) and f >= 1 and n < 3),
    ([[("f", ">", 2.0)], [("n", "=", 1)]], lambda f, n: (f is not None and f > 2) or n == 1),
    ([("n", "!=", 1)], lambda f, n: n is not None and n != 1),
    (N.is_null(), lambda f, n: n is None),
]


@pytest.mark.parametrize("case", range(len(CONDITIONS)))
@pytest.mark.parametrize("group_rows", [1, 2, 50])
def test_a_filter_counts_what_it_reads(tmp_path: Path, case: int, group_rows: int) -> None:
    condition, passes = CONDITIONS[case]
    floats, whole = [1.5, NAN, 2.0, None, -1.0, 1.5], [1, 3, None]
    values = [*itertools.product(floats, whole), (1.5, 1), (NAN, 1), (1.5, 1)]
    table = pa.table(
        {
            "id": range(len(values)),
            "f": pa.array([f for f, _ in values], pa.float64(), from_pandas=False),
            "n": pa.array([n for _, n in values], pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "p", row_group_size=group_rows)
    source = ParquetSource(str(tmp_path / "p"), condition, {})
    ranges = [Range(piece, 0, rows) for piece, rows in enumerate(source.sizes) if rows]
    found = [id_ for batch in source.read(ranges, ["id"]) for id_ in batch[0].to_pylist()]
    assert found == [number for number, row in enumerate(values) if passes(*row)]


@pytest.mark.parametrize("condition", [F > 4.0, (F > 1.0) & (F < 2.0), [("f", "in", [77.0])]])
def test_statistics_exclude_row_groups_of_floats(tmp_path: Path, condition: Any) -> None:
    """A row group is not read if its statistics exclude its numbers, and NaN cannot match."""
    pq.write_table(pa.table({"f": np.arange(4.0)}), tmp_path / "p", row_group_size=2)
    assert sum(ParquetSource(str(tmp_path / "p"), condition, {}).sizes) == 0
    assert len(ParquetSource(str(tmp_path / "p"), condition, {}).sizes) <= 1


def test_a_count_that_does_not_fit_is_not_called_damage(tmp_path: Path) -> None:
    pq.write_table(pa.table({"f": np.arange(10.0)}), tmp_path / "p")
    pieces = list_row_groups(str(tmp_path / "p"), F < 5.0)
    assert pieces["groups"] == [[0], [0], [5]]
    pieces["groups"] = [[0], [0], [6]]
    source = ParquetSource(str(tmp_path / "p"), F < 5.0, {}, pieces)
    with pytest.raises(ValueError, match=r"p: 5 rows of row group 0 pass filter=, and 6 did"):
        list(source.read([Range(0, 0, 6)], ["f"]))


# ---- where


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([2**53, 2**53 + 1, 7], pa.int64()),
        ([2**64 - 1, 2**64 - 2, 0], pa.uint64()),
        ([1, -128, 127], pa.int8()),
        ([True, False, True], pa.bool_()),
        (["a", "", "b"], pa.string()),
        ([1.5, NAN, -0.0], pa.float32()),
    ],
)
def test_a_function_of_where_does_not_depend_on_the_other_rows(
    tmp_path: Path, values: list[Any], kind: pa.DataType
) -> None:
    """Each value passes alone as it does in a batch that has a null."""
    expected = pa.array(values, kind, from_pandas=False)
    seen = []

    def passes(array: Any) -> Any:
        seen.append(array.dtype)
        return array == expected.to_numpy(zero_copy_only=False)[1]

    alone = [RowCondition("x", passes).mask(expected.slice(n, 1)).item() for n in range(3)]
    with_nulls = pa.concat_arrays([expected, pa.array([None, None], kind)])
    assert RowCondition("x", passes).mask(with_nulls).tolist() == [*alone, False, False]
    assert not RowCondition("x", passes).mask(pa.nulls(2, kind)).any()
    assert len(set(seen)) == 1


def test_where_does_not_round(tmp_path: Path) -> None:
    rows = pa.table({"x": [2**53, 2**53 + 1, None]})
    pq.write_table(rows, tmp_path / "p")
    where = {"x": lambda x: x == 2**53 + 1}
    (batch,) = data.parquet(tmp_path / "p", where=where, batch_size_per_worker=9).as_numpy()
    assert batch.tolist() == [2**53 + 1]


def test_a_number_is_not_compared_with_a_time() -> None:
    times = pa.array([0, None], pa.timestamp("us"))
    condition = RowCondition("t", lambda t: t > 1_709_251_200_000_000)
    with pytest.raises(ConfigError, match=r"column 't', which is timestamp\[us\].*\n.*datetime64"):
        condition.mask(times)
    since = RowCondition("t", lambda t: t >= np.datetime64("1970-01-01"))
    assert since.mask(times).tolist() == [True, False]
