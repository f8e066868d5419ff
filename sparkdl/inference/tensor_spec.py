"""Runs anywhere (pure). What goes into a model and what comes out, by name and shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["Tensor", "fits", "fitted", "to_arrow", "type_name"]

# What Spark has no type for, as the next one that holds it.
_WIDER = {
    "float16": "float32",
    "bfloat16": "float32",
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
}
_TYPES: dict[str, tuple[str, pa.DataType]] = {
    "bool": ("boolean", pa.bool_()),
    "int8": ("tinyint", pa.int8()),
    "int16": ("smallint", pa.int16()),
    "int32": ("int", pa.int32()),
    "int64": ("bigint", pa.int64()),
    "float32": ("float", pa.float32()),
    "float64": ("double", pa.float64()),
    "string": ("string", pa.string()),
    "bytes": ("binary", pa.binary()),  # Strings of a model that are no text.
}


# Arrow's lists, as Spark reads them, count their values in 32 bits.
_MOST_VALUES = 2**31 - 1
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model.

    Attributes:
        name: its name in the model.
        shape: of one row; None where a length is not fixed, and as a whole where it is not known.
        dtype: TensorFlow's name of it; empty where the model does not say.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape or ())}"


def fits(shape: Sequence[int | None], wanted: Sequence[int | None]) -> bool:
    """Whether rows of one shape can be given as rows of another, see `fitted`.

    Example:
        >>> fits((784,), (28, 28, 1)), fits((20,), (21,)), fits((None,), (21,))
        (True, False, True)
    """
    if len(shape) == len(wanted):
        return all(None in pair or pair[0] == pair[1] for pair in zip(shape, wanted, strict=True))
    if None in shape:
        return True
    known = prod(length for length in wanted if length is not None)
    size = prod(length for length in shape if length is not None)
    free = sum(length is None for length in wanted)
    return size == known if not free else free == 1 and known > 0 and size % known == 0


def fitted(array: "np.ndarray[Any, Any]", tensor: Tensor, dtype: Any) -> "np.ndarray[Any, Any]":
    """Rows as an input takes them: of its dtype, and of its shape where the values are as many.

    Raises:
        ValueError: they are not.

    Example:
        >>> image = Tensor("image", (2, 2, 1), "float32")
        >>> fitted(np.zeros((3, 4)), image, np.float32).shape
        (3, 2, 2, 1)
    """
    wanted = tensor.shape or ()
    if not fits(array.shape[1:], wanted):
        raise ValueError(
            f"the model's input {tensor.name!r} takes rows of shape {_shown(wanted)}, and the "
            f"feature columns give {_shown(array.shape[1:])}."
        )
    if array.ndim != 1 + len(wanted):
        array = array.reshape(len(array), *(-1 if n is None else n for n in wanted))
    cast = array.astype(dtype, copy=False)
    if cast is not array and cast.dtype.kind in "iu" and (cast != array).any():
        raise ValueError(
            f"the model's input {tensor.name!r} takes {cast.dtype}, and the feature columns hold "
            f"{array[cast != array][0]}, which is none."
        )
    return cast


def _shown(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"


def type_name(output: Tensor) -> str:
    """The type of a Spark column that holds an output: an array for each dimension of a row.

    A row of one number is that number.

    Raises:
        ValueError: Spark has no such column.

    Example:
        >>> type_name(Tensor("y", (1,), "float32")), type_name(Tensor("y", (10,), "float32"))
        ('float', 'array<float>')
    """
    name = _type_of(output)[0]
    for _ in _dimensions(output):
        name = f"array<{name}>"
    return name


def _dimensions(output: Tensor) -> tuple[int | None, ...]:
    if output.shape is None:
        raise ValueError(f"the rank of the model's output {output.name!r} is not known.")
    return () if output.shape == (1,) else output.shape


def _type_of(output: Tensor) -> tuple[str, pa.DataType]:
    dtype = _WIDER.get(output.dtype, output.dtype)
    if dtype not in _TYPES:
        raise ValueError(
            f"the model's output {output.name!r} is {output.dtype}, which Spark has no type for. "
            "Cast it in the model."
        )
    return _TYPES[dtype]


def to_arrow(values: "np.ndarray[Any, Any]", output: Tensor) -> pa.Array:
    """An output of any number of rows as an Arrow array; numbers are not copied.

    Example:
        >>> to_arrow(np.zeros((1, 2), "float32"), Tensor("y", (2,), "float32")).to_pylist()
        [[0.0, 0.0]]
    """
    if output.shape == (1,):
        values = values.reshape(-1)
    flat = values.reshape(-1)
    if output.dtype in ("string", "bytes"):
        array = pa.array(flat, pa.binary()).cast(_type_of(output)[1])
    else:
        dtype = _WIDER.get(output.dtype, output.dtype)
        array = pa.array(flat.astype(dtype, copy=False), _type_of(output)[1])
    if values.ndim > 1 and values.size > _MOST_VALUES:
        raise ValueError(
            f"the model's output {output.name!r} has {values.size} values for {len(values)} rows, "
            f"and a column of arrays holds {_MOST_VALUES} at once. Give Spark fewer rows at a "
            f"time: set {_ROWS} below {len(values)}."
        )
    for axis in range(values.ndim - 1, 0, -1):
        ends = np.arange(prod(values.shape[:axis]) + 1, dtype=np.int32) * values.shape[axis]
        field = pa.list_(pa.field("element", array.type))
        array = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), array, type=field)
    return array
