"""Runs in a Spark task. Make the row that a task yields to Spark."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_row(values: Mapping[str, str | bool | None]) -> "pa.RecordBatch":
    """Return a record batch of one row.

    `pyarrow.array` would import pandas, which costs a new Python worker a quarter of a second.

    Args:
        values: a text, a truth value or a missing text for each column.

    Example:
        >>> row = arrow_row({"text": "a", "flag": True, "missing": None})
        >>> row.to_pylist()
        [{'text': 'a', 'flag': True, 'missing': None}]
        >>> [str(field.type) for field in row.schema]
        ['string', 'bool', 'string']
    """
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([_array(value) for value in values.values()], [*values])


def _array(value: str | bool | None) -> "pa.Array":
    import pyarrow as pa

    if isinstance(value, bool):
        return pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(bytes([value]))])
    if value is None:
        return pa.nulls(1, pa.string())
    data = value.encode()
    offsets = b"".join(end.to_bytes(4, "little") for end in (0, len(data)))
    return pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(data))
