"""Runs in the training process. Dates and times as functions of petastorm's users have them.

The arrays of all readers hold numbers: days and microseconds since 1970-01-01, see `data.schema`.
petastorm gives `numpy.datetime64` in a row, and what `pyarrow.Table.to_pandas` makes in a frame.
"""

from collections.abc import Mapping
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import types

_DAYS, _MICROSECONDS = np.dtype("datetime64[D]"), np.dtype("datetime64[us]")


def to_times(values: Any, kind: pa.DataType) -> Any:
    """Return a column with its dates and times as `numpy.datetime64`; another column as it is.

    Args:
        values: the column.
        kind: the column's type in Arrow.

    Example:
        >>> to_times(np.array([1]), pa.date32()), to_times(np.array([1]), pa.int64())
        (array(['1970-01-02'], dtype='datetime64[D]'), array([1]))
    """
    if types.is_date32(kind):
        return values.astype(_DAYS)
    return values.astype(_MICROSECONDS) if types.is_timestamp(kind) else values


def to_frame(rows: Mapping[str, Any], kinds: Mapping[str, pa.DataType]) -> pd.DataFrame:
    """Return columns as a DataFrame, like `pyarrow.Table.to_pandas`.

    Args:
        rows: arrays by the name of the column.
        kinds: types in Arrow by the name of the column.
    """
    columns: dict[str, Any] = {}
    for name, values in rows.items():
        times = to_times(values, kinds[name])
        if times.dtype.kind == "M":
            columns[name] = pa.array(times).cast(kinds[name]).to_pandas()
        else:
            columns[name] = values if values.ndim == 1 else list(values)
    return pd.DataFrame(columns)


def to_numbers(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Return the values of a column, of which dates and times become numbers again.

    Args:
        values: the value of each row.
        kind: the column's type in Arrow before the function; `pa.null()` if there was none.

    Raises:
        ValueError: if a time is missing (NaT).

    Example:
        >>> to_numbers([np.datetime64("1970-01-02")], pa.date32())
        [np.int32(1)]
    """
    if not any(isinstance(v, date | np.datetime64) for v in values):  # So is a pd.Timestamp.
        return values
    naive = [pd.Timestamp(v).tz_convert(None) if getattr(v, "tzinfo", 0) else v for v in values]
    naive = [np.datetime64("NaT") if v is None or v is pd.NaT else v for v in naive]
    unit, dtype = (_DAYS, np.int32) if types.is_date32(kind) else (_MICROSECONDS, np.int64)
    times = np.array(naive, unit)
    if np.isnat(times).any():
        raise ValueError(
            "it returned NaT or None, which no number stands for. Return a time in its place."
        )
    return list(times.astype(dtype))
