"""Runs anywhere. Convert Arrow batches to NumPy arrays of features and labels.

Whole batches are converted at a time, never single rows. Three properties of Arrow are handled
here, once for all readers: a slice keeps its offset, `flatten` leaves out null lists, and integers
with nulls become floats in NumPy.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkdl.data.column_selection import ColumnSelection, inexact_message, stacked_dtype
from sparkdl.data.exact_numbers import first_inexact
from sparkdl.data.ml_vectors import to_lists
from sparkdl.data.own_memory import new_array
from sparkdl.data.ragged import Ragged
from sparkdl.data.schema import Column
from sparkdl.errors import ConfigError

# Limit of the numbers of sparse vectors that are computed at once.
_PART_BYTES = 8 << 20

# ---- one column


def to_array(values: pa.Array, column: Column, shape: Sequence[int] = ()) -> Any:
    """Convert a column of a batch to an array of shape (rows, *shape), or to `Ragged`.

    Args:
        values: the column's values.
        column: how the column becomes a tensor.
        shape: shape of one row, see `inner_shape`; ignored for a ragged column.

    Raises:
        ValueError: if there is a null, or a row of another length.

    Example:
        >>> x = pa.array([[1, 2], [3, 4], [5, 6]]).slice(1)
        >>> to_array(x, Column("x", np.dtype("int64"), 1), (2,)).tolist()
        [[3, 4], [5, 6]]
    """
    if column.is_vector:
        values = to_lists(values, column.name)
    if column.ragged:
        return _ragged(values, column)
    if column.decode:
        return _decode_binary(values, column, shape)
    rows = len(values)
    for width in shape:
        lengths = _list_lengths(values, column)
        _check_lengths(lengths, width, column)
        values = values.flatten()
    return _to_numbers(values, column).reshape(rows, *shape)


def inner_shape(values: pa.Array, column: Column) -> tuple[int, ...] | None:
    """Return the shape of one row, taken from the first row of a column.

    For nested arrays the length of an inner array is that of the first inner array. The result is
    None if the column is decoded and has only nulls, all of which are filled.

    Args:
        values: the column's values.
        column: how the column becomes a tensor.

    Raises:
        ValueError: if there is a null.

    Example:
        >>> inner_shape(pa.array([[[1, 2, 3], [4, 5, 6]]]), Column("x", np.dtype("int64"), 2))
        (2, 3)
    """
    if column.ragged or not column.depth:
        return ()
    if column.decode and column.fill is not None:
        values = values.drop_null()
    _refuse_nulls(values, column)
    if column.decode:
        return (len(values[0].as_py()) // column.dtype.itemsize,) if len(values) else None
    shape: list[int] = []
    first = values.slice(0, 1)
    if column.is_vector:
        first = to_lists(first, column.name)
    for _ in range(column.depth):
        shape.append(int(_list_lengths(first, column)[0]) if len(first) else 0)
        first = first.flatten().slice(0, 1)
    return tuple(shape)


def _list_lengths(values: pa.Array, column: Column) -> "np.ndarray[Any, Any]":
    _refuse_nulls(values, column)  # flatten() leaves out null lists, which would shift the rows.
    if types.is_fixed_size_list(values.type):
        return np.full(len(values), values.type.list_size)
    return np.diff(values.offsets.to_numpy())


def _check_lengths(lengths: "np.ndarray[Any, Any]", width: int, column: Column) -> None:
    if (lengths == width).all():
        return
    row = int(np.argmax(lengths != width))
    raise ValueError(
        f"column {column.name!r}: an array has {lengths[row]} values, the first one has {width}. "
        f"Make all arrays equally long, or pass ragged=[{column.name!r}], or for predictions "
        f"pad={{{column.name!r}: 0}}."
    )


def _to_numbers(values: pa.Array, column: Column) -> "np.ndarray[Any, Any]":
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count and column.fill is not None:
        values = values.fill_null(pa.scalar(column.fill, values.type))
    _refuse_nulls(values, column)
    kind = values.type
    if types.is_date32(kind):
        values = values.view(pa.int32())
    elif types.is_timestamp(kind):
        values = _microseconds(values, column).view(pa.int64())
    elif types.is_decimal(kind) and len(values):
        # With at most 15 digits, both operands are exact in float64, and the quotient is rounded
        # correctly. Arrow's own cast is off in the last bit for one value in four.
        low_words = np.frombuffer(values.buffers()[1], np.int64)[::2]
        unscaled = low_words[values.offset : values.offset + len(values)]
        exact: np.ndarray[Any, Any] = unscaled / 10.0**kind.scale
        return exact
    elif types.is_decimal(kind):
        values = values.cast(pa.float64())
    array: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False)
    return array


def _microseconds(values: pa.Array, column: Column) -> pa.Array:
    try:
        return values.cast(pa.timestamp("us", values.type.tz))
    except pa.ArrowInvalid as exc:
        raise ValueError(
            f"column {column.name!r} is {values.type}, but a tensor holds whole microseconds: "
            f"{exc}. Round the column first, or cast it to an integer."
        ) from exc


def _refuse_nulls(values: pa.Array, column: Column) -> None:
    if values.null_count:
        raise ValueError(
            f"column {column.name!r} has {values.null_count} nulls among {len(values)} values. "
            f"Drop these rows (df.na.drop), or pass the value that replaces a null: "
            f"fill={{{column.name!r}: ...}}; an array that is null as a whole cannot be filled."
        )


def _decode_binary(
    values: pa.Array, column: Column, shape: Sequence[int]
) -> "np.ndarray[Any, Any]":
    """View binary values as rows of numbers, without a copy if there is no null to fill."""
    if values.null_count and column.fill is not None:
        filled = np.full((len(values), shape[0]), column.fill, column.dtype)
        is_valid = values.is_valid().to_numpy(zero_copy_only=False)
        filled[is_valid] = _decode_binary(values.drop_null(), column, shape)
        return filled
    _refuse_nulls(values, column)
    width = shape[0] * column.dtype.itemsize
    rows = len(values)
    if types.is_fixed_size_binary(values.type):
        byte_width = values.type.byte_width
        begin = values.offset * byte_width
        lengths = np.full(rows, byte_width)
    else:
        is_large = types.is_large_binary(values.type)
        ends = np.frombuffer(values.buffers()[1], np.int64 if is_large else np.int32)
        ends = ends[values.offset : values.offset + rows + 1]
        begin = int(ends[0]) if rows else 0
        lengths = np.diff(ends)
    if not (lengths == width).all():
        row = int(np.argmax(lengths != width))
        raise ValueError(
            f"column {column.name!r}: a value has {lengths[row]} bytes; expected {width}, which is "
            f"{shape[0]} of {column.dtype} as in the first row."
        )
    if not rows * shape[0]:
        return np.empty((rows, shape[0]), column.dtype)
    memory = memoryview(values.buffers()[-1]).toreadonly()
    flat = np.frombuffer(memory, column.dtype, rows * shape[0], begin)
    return flat.reshape(rows, shape[0])


def _ragged(values: pa.Array, column: Column) -> Ragged:
    lengths = []
    for _ in range(column.depth):
        lengths.append(_list_lengths(values, column).astype(np.int64))
        values = values.flatten()
    return Ragged.from_lengths(_to_numbers(values, column), lengths, column.pad)


# ---- several columns


def stack_arrays(names: list[str], parts: list[Any]) -> Any:
    """Stack arrays of (rows,) or (rows, width) side by side into one of (rows, sum of widths).

    Args:
        names: names of the columns of the arrays.
        parts: the arrays.

    Raises:
        ConfigError: if an array is ragged, or has more dimensions.
        ValueError: if the stack cannot represent a number.
    """
    for name, part in zip(names, parts, strict=True):
        if isinstance(part, Ragged) or part.ndim > 2:
            raise ConfigError(_not_stacked_message(name))
    parts = [part.reshape(len(part), -1) for part in parts]
    if len(parts) == 1:
        return parts[0]
    shape = len(parts[0]), sum(part.shape[1] for part in parts)
    stacked = new_array(shape, stacked_dtype([part.dtype for part in parts]))
    begin = 0
    for name, part in zip(names, parts, strict=True):
        if (value := first_inexact(part, stacked.dtype)) is not None:
            raise ValueError(inexact_message(names, name, value, stacked.dtype))
        stacked[:, begin : begin + part.shape[1]] = part
        begin += part.shape[1]
    return stacked


def stacked_spec(_: list[str], parts: list[Any]) -> Any:
    """Return the `tf.TensorSpec` of stacked arrays, of which the specs are given."""
    import tensorflow as tf

    widths = [part.shape[1] if part.shape.rank == 2 else 1 for part in parts]
    dtype = stacked_dtype([part.dtype.as_numpy_dtype for part in parts])
    width = None if None in widths else sum(widths)
    return tf.TensorSpec([None, width], tf.as_dtype(dtype))


def _not_stacked_message(name: str) -> str:
    return (
        f"column {name!r} cannot be stacked with others: it is ragged, or has more than one "
        "dimension. Choose columns as a tuple or a dict."
    )


def _known_shape(
    shapes: dict[str, tuple[int, ...]], column: Column, batch: pa.RecordBatch
) -> tuple[int, ...]:
    if column.name not in shapes:
        raise ValueError(
            f"column {column.name!r}: the first {batch.num_rows} rows are null, so that the number "
            "of values in a row is unknown. Drop these rows (df.na.drop), or begin with a row that "
            "is not null."
        )
    return shapes[column.name]


class Arrays:
    """Convert Arrow batches to the selected arrays, all batches with the same shapes.

    Args:
        columns: how each selected column becomes a tensor.
        selection: the arrangement of the columns as features and labels.

    Attributes:
        shapes: shape of one row of each column, by name; None before the first batch. A column
            of which only nulls have been seen has no shape yet.
    """

    def __init__(self, columns: Sequence[Column], selection: ColumnSelection) -> None:
        self._columns = list(columns)
        self._selection = selection
        self.shapes: dict[str, tuple[int, ...]] | None = None
        self._check_stacks()

    def _check_stacks(self) -> None:
        by_name = {column.name: column for column in self._columns}

        def check(_: list[str], parts: list[Column]) -> None:
            stacked_dtype([part.dtype for part in parts])
            for part in parts:
                if part.depth > 1 or part.ragged:
                    raise ConfigError(_not_stacked_message(part.name))

        self._selection.pick(by_name, check)

    def learn(self, batch: pa.RecordBatch) -> dict[str, tuple[int, ...]]:
        """Take unknown shapes from the first row of a batch; return all shapes that are known."""
        shapes = dict(self.shapes or {})
        for column in self._columns:
            if column.name not in shapes:
                shape = inner_shape(batch.column(column.name), column)
                if shape is not None:
                    shapes[column.name] = shape
        self.shapes = shapes
        return shapes

    def __call__(self, batch: pa.RecordBatch) -> Any:
        """Return the arrays of a batch, arranged as features and labels.

        Raises:
            ValueError: if there is a null, an array of another shape than the first, or a number
                that a stack of columns cannot represent.
        """
        shapes = self.shapes or {}
        if len(shapes) < len(self._columns):
            shapes = self.learn(batch)
        values = {
            c.name: to_array(batch.column(c.name), c, _known_shape(shapes, c, batch))
            for c in self._columns
        }
        return self._selection.pick(values, stack_arrays)

    def parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch; few at once if vectors are much larger than they are stored.

        Args:
            batch: the rows.
        """
        width = sum(
            max(self.learn(batch)[column.name], default=0)
            for column in self._columns
            if column.is_vector and not column.ragged and batch.num_rows
        )
        rows = max(_PART_BYTES // (4 * width), 1) if width else max(batch.num_rows, 1)
        for begin in range(0, batch.num_rows, rows):
            yield batch.slice(begin, rows)

    def padding(self) -> Any:
        """Return the value that pads each array, arranged as the arrays; None without one."""
        by_name = {column.name: column.pad for column in self._columns}
        return self._selection.pick(by_name, lambda *_: None)

    def check_lengths_of(self, name: str) -> None:
        """Refuse a column whose rows have no length.

        Raises:
            ConfigError: if the column does not hold arrays.
        """
        ragged = [c.name for c in self._columns if c.ragged and not c.is_vector]
        if name not in ragged:
            raise ConfigError(
                f"bucket_by names column {name!r}, whose arrays all have one length. Name a column "
                f"of arrays that differ in length: pad={{{name!r}: 0}} or ragged=[{name!r}]."
            )

    def signature(self) -> Any:
        """Return the `tf.TypeSpec`s of the arrays; a width is None before the first batch."""
        import tensorflow as tf

        def spec(column: Column) -> Any:
            dtype = tf.string if column.dtype == object else tf.as_dtype(column.dtype)
            if column.ragged:
                return tf.RaggedTensorSpec([None] * (1 + column.depth), dtype)
            shape = (self.shapes or {}).get(column.name, (None,) * column.depth)
            return tf.TensorSpec([None, *shape], dtype)

        return self._selection.pick({c.name: spec(c) for c in self._columns}, stacked_spec)
