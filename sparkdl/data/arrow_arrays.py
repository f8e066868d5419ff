"""Runs in the training process. Arrow batches as NumPy arrays, arranged as features and labels.

Whole batches at a time, never a row. Arrow keeps a slice's offset, leaves null lists out when it
flattens, and makes floats of integers with nulls: each is looked at here, once for all readers.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkdl.data.column_selection import Wanted, stacked_dtype
from sparkdl.data.schema import Column
from sparkdl.errors import ConfigError

__all__ = ["Arrays", "arrow_dataset", "inner_shape", "to_array"]

# Numbers that are aligned so, TensorFlow takes without a further copy.
_ALIGNMENT = 64

# ---- one column


def to_array(values: pa.Array, column: Column, shape: Sequence[int] = ()) -> Any:
    """A column of a batch: an array of (rows, *shape), or a `tf.RaggedTensor` of a ragged one.

    Args:
        values: the column.
        column: how it becomes a tensor.
        shape: of one row, see `inner_shape`; not looked at where it is ragged.

    Raises:
        ValueError: there is a null, or a row of another length.

    Example:
        >>> x = pa.array([[1, 2], [3, 4], [5, 6]]).slice(1)
        >>> to_array(x, Column("x", np.dtype("int64"), 1), (2,)).tolist()
        [[3, 4], [5, 6]]
    """
    if column.ragged:
        return _ragged(values, column)
    if column.decode:
        return _decoded(values, column, shape)
    rows = len(values)
    for width in shape:
        lengths = _lengths(values, column)
        _check_lengths(lengths, width, column)
        values = values.flatten()
    return _scalars(values, column).reshape(rows, *shape)


def inner_shape(values: pa.Array, column: Column) -> tuple[int, ...]:
    """The shape of one row, from the first; of an array in it without values too, from its first.

    Example:
        >>> inner_shape(pa.array([[[1, 2, 3], [4, 5, 6]]]), Column("x", np.dtype("int64"), 2))
        (2, 3)
    """
    if column.ragged or not column.depth:
        return ()
    _refuse_nulls(values, column)
    if column.decode:
        return (len(values[0].as_py()) // column.dtype.itemsize,)
    shape: list[int] = []
    first = values.slice(0, 1)
    for _ in range(column.depth):
        shape.append(int(_lengths(first, column)[0]) if len(first) else 0)
        first = first.flatten().slice(0, 1)
    return tuple(shape)


def _lengths(values: pa.Array, column: Column) -> "np.ndarray[Any, Any]":
    _refuse_nulls(values, column)  # flatten() leaves null lists out, and shifts the rows.
    if types.is_fixed_size_list(values.type):
        return np.full(len(values), values.type.list_size)
    return np.diff(values.offsets.to_numpy())


def _check_lengths(lengths: "np.ndarray[Any, Any]", width: int, column: Column) -> None:
    if (lengths == width).all():
        return
    row = int(np.argmax(lengths != width))
    raise ValueError(
        f"column {column.name!r}: an array has {lengths[row]} values, the first one has {width}. "
        f"Make them equally long, or pass ragged=[{column.name!r}]."
    )


def _scalars(values: pa.Array, column: Column) -> "np.ndarray[Any, Any]":
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
        # At most 15 digits, so both are exact, and so is what they divide to. Arrow's own cast is
        # off in the last bit for one value in four.
        low = np.frombuffer(values.buffers()[1], np.int64)[::2]
        whole = low[values.offset : values.offset + len(values)]
        exact: np.ndarray[Any, Any] = whole / 10.0**kind.scale
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
            f"column {column.name!r} is {values.type}, and a tensor holds whole microseconds: "
            f"{exc}. Round it before, or cast it to a whole number."
        ) from exc


def _refuse_nulls(values: pa.Array, column: Column) -> None:
    if values.null_count:
        raise ValueError(
            f"column {column.name!r} has {values.null_count} nulls among {len(values)} values. "
            f"Leave these rows out (df.na.drop), or say what stands for a null: "
            f"fill={{{column.name!r}: ...}}; an array that is null as a whole cannot be filled."
        )


def _decoded(values: pa.Array, column: Column, shape: Sequence[int]) -> "np.ndarray[Any, Any]":
    """Binary values as rows of numbers, without a copy."""
    _refuse_nulls(values, column)
    width, rows = shape[0] * column.dtype.itemsize, len(values)
    if types.is_fixed_size_binary(values.type):
        begin, found = values.offset * values.type.byte_width, values.type.byte_width
        lengths = np.full(rows, found)
    else:
        wide = types.is_large_binary(values.type)
        ends = np.frombuffer(values.buffers()[1], np.int64 if wide else np.int32)
        ends = ends[values.offset : values.offset + rows + 1]
        begin, lengths = int(ends[0]) if rows else 0, np.diff(ends)
    if not (lengths == width).all():
        row = int(np.argmax(lengths != width))
        raise ValueError(
            f"column {column.name!r}: a value has {lengths[row]} bytes; expected {width}, which is "
            f"{shape[0]} of {column.dtype} as in the first row."
        )
    if not rows * shape[0]:
        return np.empty((rows, shape[0]), column.dtype)
    flat = np.frombuffer(values.buffers()[-1], column.dtype, rows * shape[0], begin)
    return flat.reshape(rows, shape[0])


def _ragged(values: pa.Array, column: Column) -> Any:
    import tensorflow as tf

    lengths = []
    for _ in range(column.depth):
        lengths.append(_lengths(values, column).astype(np.int64))
        values = values.flatten()
    return tf.RaggedTensor.from_nested_row_lengths(_own(_scalars(values, column)), lengths)


# ---- several columns


def _stack_arrays(parts: list[Any]) -> Any:
    parts = [part.reshape(len(part), -1) for part in parts]
    if len(parts) == 1:
        return parts[0]
    shape = len(parts[0]), sum(part.shape[1] for part in parts)
    stacked = np.empty(shape, stacked_dtype([part.dtype for part in parts]))
    begin = 0
    for part in parts:
        stacked[:, begin : begin + part.shape[1]] = part
        begin += part.shape[1]
    return stacked


class Arrays:
    """Turns Arrow batches into the arrays that are wanted, all of the same shapes.

    Args:
        columns: how each wanted column becomes a tensor.
        wanted: their arrangement.
    """

    def __init__(self, columns: Sequence[Column], wanted: Wanted) -> None:
        self._columns, self._wanted = list(columns), wanted
        self.shapes: dict[str, tuple[int, ...]] | None = None
        self._check_stacks()

    def _check_stacks(self) -> None:
        by_name = {column.name: column for column in self._columns}

        def check(parts: list[Column]) -> None:
            stacked_dtype([part.dtype for part in parts])
            for part in parts:
                if part.depth > 1 or part.ragged:
                    raise ConfigError(
                        f"column {part.name!r} cannot be stacked with others: it is ragged, or "
                        "has more than one dimension. Choose columns as a tuple or a dict."
                    )

        self._wanted.pick(by_name, check)

    def learn(self, batch: pa.RecordBatch) -> None:
        """Take the shapes from the first row of a batch."""
        self.shapes = {c.name: inner_shape(batch.column(c.name), c) for c in self._columns}

    def __call__(self, batch: pa.RecordBatch) -> Any:
        """The arrays of a batch, arranged as wanted.

        Raises:
            ValueError: a null, or an array of another shape than the first.
        """
        if self.shapes is None:
            self.learn(batch)
        shapes = self.shapes or {}
        values = {c.name: to_array(batch.column(c.name), c, shapes[c.name]) for c in self._columns}
        return self._wanted.pick(values, _stack_arrays)

    def signature(self) -> Any:
        """The `tf.TypeSpec`s of what a call returns; of unknown width where no row was seen."""
        import tensorflow as tf

        def spec(column: Column) -> Any:
            dtype = tf.string if column.dtype == object else tf.as_dtype(column.dtype)
            if column.ragged:
                return tf.RaggedTensorSpec([None] * (1 + column.depth), dtype)
            shape = (self.shapes or {}).get(column.name, (None,) * column.depth)
            return tf.TensorSpec([None, *shape], dtype)

        def stacked(parts: list[Any]) -> Any:
            widths = [part.shape[1] if part.shape.rank == 2 else 1 for part in parts]
            dtype = stacked_dtype([part.dtype.as_numpy_dtype for part in parts])
            width = None if None in widths else sum(widths)
            return tf.TensorSpec([None, width], tf.as_dtype(dtype))

        return self._wanted.pick({c.name: spec(c) for c in self._columns}, stacked)


def _own(array: Any) -> Any:
    """The array in memory of its own, if it stands in Arrow's.

    TensorFlow takes aligned memory as it is, and computes in place: a slice of a tensor does not
    know that it must not. Files of received rows are mapped read-only, and read again.
    """
    is_shared = isinstance(array, np.ndarray) and not array.flags.owndata
    if not is_shared or array.dtype == object:
        return array
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    mine = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(mine, array)
    return mine


def arrow_dataset(batches: Callable[[], Iterator[pa.RecordBatch]], arrays: Arrays) -> Any:
    """A `tf.data.Dataset` with an element for each Arrow batch; each iteration calls `batches`."""
    import tensorflow as tf

    def elements() -> Iterator[Any]:
        for batch in batches():
            if batch.num_rows:
                yield tf.nest.map_structure(_own, arrays(batch))

    return tf.data.Dataset.from_generator(elements, output_signature=arrays.signature())
