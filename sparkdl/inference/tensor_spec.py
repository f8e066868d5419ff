"""Runs anywhere (pure). Describe the inputs and outputs of a model, and convert their rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.exact_numbers import first_inexact
from sparkdl.inference.ragged_rows import RaggedRows

# Dtypes that Spark lacks, with the next wider one that it has.
_WIDER_DTYPES = {
    "float16": "float32",
    "bfloat16": "float32",
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
}
_SPARK_AND_ARROW_TYPES: dict[str, tuple[str, pa.DataType]] = {
    "bool": ("boolean", pa.bool_()),
    "int8": ("tinyint", pa.int8()),
    "int16": ("smallint", pa.int16()),
    "int32": ("int", pa.int32()),
    "int64": ("bigint", pa.int64()),
    "float32": ("float", pa.float32()),
    "float64": ("double", pa.float64()),
    "string": ("string", pa.string()),
    "bytes": ("binary", pa.binary()),  # Strings that are not text.
}

# Arrow's lists, as Spark reads them, have 32-bit offsets.
_MAX_VALUES = 2**31 - 1
_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


@dataclass(frozen=True)
class TensorSpec:
    """The name, shape and dtype of an input or output of a model.

    Attributes:
        name: its name in the model.
        shape: the shape of one row, with None for a variable length; None if the rank is unknown.
        dtype: the name of the dtype in TensorFlow; empty if the model does not define it.
        ragged: True if rows of different lengths are a `tf.RaggedTensor`.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str
    ragged: bool = False

    @property
    def num_variable_axes(self) -> int:
        """The number of axes of a row up to the last one of variable length.

        Example:
            >>> TensorSpec("x", (None, 3), "float32", ragged=True).num_variable_axes
            1
        """
        shape = self.shape or ()
        return max((axis + 1 for axis, length in enumerate(shape) if length is None), default=0)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape or ())}"


def fits(shape: Sequence[int | None], target: Sequence[int | None]) -> bool:
    """Return True if rows of one shape can be reshaped to another, see `fit_rows`.

    Args:
        shape: the shape of a row, with None for a variable length.
        target: the shape of a row after reshaping.

    Example:
        >>> fits((784,), (28, 28, 1)), fits((20,), (21,)), fits((None,), (21,))
        (True, False, True)
    """
    if len(shape) == len(target):
        return all(None in pair or pair[0] == pair[1] for pair in zip(shape, target, strict=True))
    if None in shape:
        return True
    fixed_size = prod(length for length in target if length is not None)
    size = prod(length for length in shape if length is not None)
    num_variable = sum(length is None for length in target)
    if not num_variable:
        return size == fixed_size
    return num_variable == 1 and fixed_size > 0 and size % fixed_size == 0


def fit_rows(array: "np.ndarray[Any, Any]", spec: TensorSpec, dtype: Any) -> "np.ndarray[Any, Any]":
    """Return rows with the shape and the dtype of an input.

    Args:
        array: the rows; the first axis counts the rows.
        spec: the input.
        dtype: the dtype of the input in NumPy.

    Raises:
        ValueError: if the rows have another number of values, or one that the dtype cannot
            represent, see `exact_numbers`.

    Example:
        >>> image = TensorSpec("image", (2, 2, 1), "float32")
        >>> fit_rows(np.zeros((3, 4)), image, np.float32).shape
        (3, 2, 2, 1)
    """
    target = spec.shape or ()
    if not fits(array.shape[1:], target):
        raise ValueError(
            f"the model's input {spec.name!r} expects rows of shape {_format_shape(target)}, but "
            f"the feature columns have {_format_shape(array.shape[1:])}."
        )
    if array.ndim != 1 + len(target):
        array = array.reshape(len(array), *(-1 if n is None else n for n in target))
    if (inexact := first_inexact(array, dtype)) is not None:
        raise ValueError(inexact_input(spec.name, np.dtype(dtype), inexact))
    return array.astype(dtype, copy=False)


def inexact_input(name: str, dtype: Any, value: Any) -> str:
    """Return the error message for a number that an input of a model cannot represent.

    Args:
        name: the name of the input.
        dtype: the dtype of the input.
        value: the number.
    """
    problem = (
        f"the model's input {name!r} expects {dtype}, but the feature columns contain {value}, "
        f"which {dtype} cannot represent. "
    )
    if np.dtype(dtype).kind not in "biu":
        if not isinstance(value, int):
            return problem + "To accept rounded numbers, scale it, or use an input of float64."
        return problem + (
            "Train with an input of float64, or on a column of double, whose numbers are rounded: "
            "column.cast('double'), or for timestamps, which are microseconds here, "
            "unix_micros(column).cast('double')."
        )
    if isinstance(value, int):
        return problem + "Use an input of a wider dtype, or number the values from 0 on."
    return problem + "Use an input of floats, or round the column."


def _format_shape(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"


def type_name(output: TensorSpec) -> str:
    """Return the type of the Spark column for an output, with an array for each axis of a row.

    A row of one number becomes that number.

    Raises:
        ValueError: if Spark has no type for the output.

    Example:
        >>> spec = TensorSpec("y", (10,), "float32")
        >>> type_name(TensorSpec("y", (1,), "float32")), type_name(spec)
        ('float', 'array<float>')
    """
    name = _types_of(output)[0]
    for _ in _axes(output):
        name = f"array<{name}>"
    return name


def from_spark(name: str, kind: Any) -> TensorSpec:
    """Return an output that becomes a column of a type.

    Args:
        name: name of the output.
        kind: a `pyspark.sql.types.DataType`: numbers, booleans, texts, binary values, or arrays of
            these.

    Raises:
        ValueError: if no output has this type.

    Example:
        >>> from pyspark.sql.types import ArrayType, FloatType
        >>> print(from_spark("y", ArrayType(FloatType())))
        y float32[None]
    """
    element = kind
    depth = 0
    while element.typeName() == "array":
        element = element.elementType
        depth += 1
    for dtype, (spark_type, _) in _SPARK_AND_ARROW_TYPES.items():
        if spark_type == element.simpleString():
            return TensorSpec(name, (None,) * depth, dtype)
    names = ", ".join(spark_type for spark_type, _ in _SPARK_AND_ARROW_TYPES.values())
    raise ValueError(
        f"{name!r} is {kind.simpleString()}; expected one of {names}, or an array of these."
    )


def _axes(output: TensorSpec) -> tuple[int | None, ...]:
    if output.shape is None:
        raise ValueError(f"the rank of the model's output {output.name!r} is unknown.")
    return () if output.shape == (1,) else output.shape


def _types_of(output: TensorSpec) -> tuple[str, pa.DataType]:
    dtype = _WIDER_DTYPES.get(output.dtype, output.dtype)
    if dtype not in _SPARK_AND_ARROW_TYPES:
        raise ValueError(
            f"the model's output {output.name!r} is {output.dtype}, for which Spark has no type. "
            "Cast the output in the model."
        )
    return _SPARK_AND_ARROW_TYPES[dtype]


def arrow_type(output: TensorSpec) -> pa.DataType:
    """Return the Arrow type of the column for an output.

    Example:
        >>> print(arrow_type(TensorSpec("y", (10,), "float32")))
        list<element: float>
    """
    kind = _types_of(output)[1]
    for _ in _axes(output):
        kind = pa.list_(pa.field("element", kind))
    return kind


def to_arrow(values: Any, output: TensorSpec) -> pa.Array:
    """Convert the values of an output to an Arrow array; numbers are not copied.

    Args:
        values: an array, whose first axis counts the rows, or `RaggedRows`.
        output: the output.

    Raises:
        ValueError: if the rows have more values than a column of arrays can hold.

    Example:
        >>> to_arrow(np.zeros((1, 2), "float32"), TensorSpec("y", (2,), "float32")).to_pylist()
        [[0.0, 0.0]]
    """
    lengths: tuple[Any, ...] = ()
    if isinstance(values, RaggedRows):
        lengths = values.lengths
        values = values.values
    elif output.shape == (1,):
        values = values.reshape(-1)
    num_rows = len(lengths[0]) if lengths else len(values)
    if (lengths or values.ndim > 1) and values.size > _MAX_VALUES:
        raise ValueError(
            f"the model's output {output.name!r} has {values.size} values for {num_rows} rows, "
            f"but a batch of a column of arrays holds at most {_MAX_VALUES} values. Reduce the "
            f"number of rows in a batch: set {_ROWS_PER_BATCH} below {num_rows}."
        )
    array = _flat_to_arrow(values.reshape(-1), output)
    for axis in range(values.ndim - 1, 0, -1):
        offsets = np.arange(prod(values.shape[:axis]) + 1, dtype=np.int32) * values.shape[axis]
        array = _to_lists(array, offsets)
    for parts in reversed(lengths):
        array = _to_lists(array, np.concatenate(([0], np.cumsum(parts))).astype(np.int32))
    return array


def _flat_to_arrow(flat: "np.ndarray[Any, Any]", output: TensorSpec) -> pa.Array:
    kind = _types_of(output)[1]
    if output.dtype in ("string", "bytes"):
        return pa.array(flat, pa.binary()).cast(kind)
    dtype = _WIDER_DTYPES.get(output.dtype, output.dtype)
    return pa.array(flat.astype(dtype, copy=False), kind)


def _to_lists(array: pa.Array, offsets: "np.ndarray[Any, Any]") -> pa.Array:
    kind = pa.list_(pa.field("element", array.type))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), array, type=kind)
