"""Runs anywhere. Decode the fields of a Unischema to Arrow columns.

A field has a name, a dtype, a shape and a codec. A codec encodes one value of a column; scalars
have `ScalarCodec` or no codec, and are stored unchanged.

Source: `petastorm/unischema.py` and `petastorm/codecs.py` of petastorm 0.13.1.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.errors import ConfigError


def is_encoded(field: Any) -> bool:
    """Return True if the column of a field holds encoded values."""
    codecs: Any = importlib.import_module("petastorm.codecs")
    return field.codec is not None and type(field.codec) is not codecs.ScalarCodec


def decoded_type(field: Any, stored_type: pa.DataType) -> pa.DataType:
    """Return the Arrow type of a field's values.

    Args:
        field: a `petastorm.unischema.UnischemaField`.
        stored_type: the type of the field's column in the files.

    Raises:
        ConfigError: if the values have no Arrow type.
        ImportError: if the values are images, and OpenCV is not installed.
    """
    codecs: Any = importlib.import_module("petastorm.codecs")
    dtype = np.dtype(field.numpy_dtype) if field.numpy_dtype else np.dtype(object)
    if not is_encoded(field):
        # Numbers may be stored in another type, such as uint8 as Spark's smallint.
        return (
            pa.from_numpy_dtype(dtype) if not field.shape and dtype.kind in "biuf" else stored_type
        )
    if isinstance(field.codec, codecs.CompressedImageCodec) and not codecs.OPENCV_AVAILABLE:
        raise ImportError(
            f"column {field.name!r} holds images, which petastorm decodes with OpenCV. Install it "
            "with: pip install opencv-python-headless. Or leave the column out of columns=."
        )
    try:
        return _nested(pa.from_numpy_dtype(dtype), field.shape)
    except (pa.ArrowNotImplementedError, ValueError):
        raise ConfigError(
            f"column {field.name!r} holds {dtype}, which cannot become a tensor. Leave it out: "
            "name the other columns in columns=."
        ) from None


def _nested(kind: pa.DataType, shape: Sequence[int | None]) -> pa.DataType:
    for size in reversed(shape):
        kind = pa.list_(kind) if size is None else pa.list_(kind, size)
    return kind


def decode(field: Any, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode a stored column.

    Args:
        field: a `petastorm.unischema.UnischemaField`.
        column: the column as it is stored.
        kind: the type of the result, see `decoded_type`.

    Raises:
        ValueError: if a value has another shape than the field.
    """
    if not is_encoded(field):
        return column.cast(kind)
    try:
        return to_arrow(_decode_values(field, column.to_pylist()), field.numpy_dtype, field.shape)
    except ValueError as exc:
        raise ValueError(f"column {field.name!r}: {exc}") from exc


def _decode_values(field: Any, stored_values: Sequence[Any]) -> Sequence[Any]:
    codecs: Any = importlib.import_module("petastorm.codecs")
    if type(field.codec) is codecs.NdarrayCodec and stored_values and None not in stored_values:
        # Each value is a file of numpy.save, a header followed by the numbers. Reading each
        # header takes 20 times as long as the rest, so equal headers are read only once.
        first = field.codec.decode(field, stored_values[0])
        header = stored_values[0][: len(stored_values[0]) - first.nbytes]
        is_same = all(
            len(v) == len(stored_values[0]) and v.startswith(header) for v in stored_values
        )
        if is_same and first.size and first.flags.c_contiguous:
            raw = np.frombuffer(b"".join(stored_values), np.uint8).reshape(len(stored_values), -1)
            data = np.ascontiguousarray(raw[:, len(header) :])
            rows: Sequence[Any] = data.view(first.dtype).reshape(-1, *first.shape)
            return rows
    return [None if value is None else field.codec.decode(field, value) for value in stored_values]


def to_arrow(arrays: Sequence[Any], dtype: Any, shape: Sequence[int | None]) -> pa.Array:
    """Convert NumPy arrays to a column of nested lists.

    Args:
        arrays: an array, or None for a null, for each row.
        dtype: dtype of the values of the result.
        shape: shape of each array; None stands for any length.

    Raises:
        ValueError: if an array has another shape, or its values do not fit `dtype`.

    Example:
        >>> to_arrow([np.ones((1, 2)), None], np.float64, (None, 2)).to_pylist()
        [[[1.0, 1.0]], None]
    """
    # Placeholder for a null: in Arrow, a null list of fixed size has values too.
    blank = np.zeros([size or 0 for size in shape], dtype)
    full = [blank if array is None else np.asarray(array) for array in arrays]
    for array in full:
        if not _fits(array.shape, shape):
            raise ValueError(
                f"an array has the shape {array.shape}; the Unischema says {tuple(shape)}, where "
                "None means any length."
            )
    mask = np.array([array is None for array in arrays], bool)
    flat = np.concatenate([array.ravel() for array in full]) if full else blank.ravel()
    values = pa.array(flat, mask=None if shape else mask)
    values = values.cast(pa.from_numpy_dtype(np.dtype(dtype)))  # Refuses overflow.
    for depth in reversed(range(len(shape))):
        nulls = pa.array(mask) if depth == 0 and mask.any() else None
        size = shape[depth]
        if size is not None:
            values = pa.FixedSizeListArray.from_arrays(values, size, mask=nulls)
            continue
        lengths = [np.full(int(np.prod(a.shape[:depth])), a.shape[depth]) for a in full]
        offsets = np.concatenate([[0], *lengths]).cumsum()
        values = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=nulls)
    return values


def _fits(actual: Sequence[int], shape: Sequence[int | None]) -> bool:
    if len(actual) != len(shape):
        return False
    # The inner sizes of an array without values are not compared.
    depth = actual.index(0) + 1 if 0 in actual else len(actual)
    pairs = zip(actual[:depth], shape[:depth], strict=True)
    return all(expected in (None, size) for size, expected in pairs)
