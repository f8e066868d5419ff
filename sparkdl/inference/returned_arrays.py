"""Runs in a Spark task. Convert the values that a function returns to its declared outputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sparkdl.data.exact_numbers import first_inexact
from sparkdl.inference.ragged_rows import RaggedRows
from sparkdl.inference.tensor_spec import TensorSpec


def arrays_of(
    returned: Any,
    outputs: Sequence[TensorSpec],
    convert: Callable[[Any], Any] = lambda value: value,
) -> list[Any]:
    """Return an array for each output.

    Args:
        returned: an array, a tuple of arrays in the order of the outputs, or a dict by their names.
            Lists of arrays of different lengths are arrays, too.
        outputs: the outputs as they were declared.
        convert: makes an array of each of these outputs, for example of a tensor. It is not called
            with what else was returned.

    Raises:
        TypeError: if an output is missing, has another type or number of axes than declared, or
            contains a number that its type cannot represent.
    """
    names = [output.name for output in outputs]
    if isinstance(returned, Mapping):
        if missing := [name for name in names if name not in returned]:
            raise TypeError(
                f"the function has returned {', '.join(map(repr, returned))}, without "
                f"{', '.join(map(repr, missing))} of outputs=."
            )
        values = [returned[name] for name in names]
    else:
        values = list(returned) if isinstance(returned, tuple) else [returned]
    if len(values) != len(outputs):
        raise TypeError(
            f"the function has returned {len(values)} array(s); outputs= declares {len(outputs)}: "
            f"{', '.join(names)}. Return a dict of arrays with these names."
        )
    pairs = zip(values, outputs, strict=True)
    return [_array_of(convert(value), output) for value, output in pairs]


def _array_of(value: Any, output: TensorSpec) -> Any:
    shape = output.shape or ()
    # NumPy's own dtype for bytes leaves zeros at the end out.
    dtype = object if output.dtype in ("string", "bytes") else None
    if shape and _is_objects(value) and _has_arrays(value):
        value = list(value)  # NumPy makes one array of rows of one length in a list.
    if shape and (ragged := _ragged(value, dtype)):
        values = _cast(ragged.values, output)
        ndim = 1 + values.ndim
        result = RaggedRows(values, ragged.lengths)
    else:
        result = _cast(value if isinstance(value, np.ndarray) else np.asarray(value, dtype), output)
        if result.ndim == 2 + len(shape) and result.shape[-1] == 1:
            result = result[..., 0]
        ndim = result.ndim
    if ndim != 1 + len(shape):
        raise TypeError(
            f"the output {output.name!r} of the function has {ndim} axes, the rows included; "
            f"outputs= declares one with {1 + len(shape)}."
        )
    return result


def _ragged(value: Any, dtype: Any) -> RaggedRows | None:
    """Return rows that are arrays of different lengths; None for an array of numbers."""
    if not isinstance(value, list) or not value or not _has_arrays(value):
        return None
    lengths = np.array([len(row) for row in value])
    filled = [np.asarray(row, dtype) for row in value if len(row)]
    if (lengths == lengths[0]).all() or not filled:
        return None
    return RaggedRows(np.concatenate(filled), (lengths,))


def _is_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1


def _has_arrays(rows: Any) -> bool:
    return all(isinstance(row, list | tuple | np.ndarray) for row in rows)


def _cast(array: Any, output: TensorSpec) -> Any:
    """Return an array with the declared dtype; None in an array of texts stays None."""
    if output.dtype == "bytes" and array.dtype.kind == "S":
        raise TypeError(
            f"the output {output.name!r} of the function is an array of {array.dtype}, in which "
            "NumPy leaves out the zeros at the end of bytes. Return a list of bytes, or make the "
            "array by np.array(values, object)."
        )
    if output.dtype in ("string", "bytes"):
        if array.dtype.kind in "OSU":
            return array.astype(object)
    elif array.size == 0:
        return array.astype(output.dtype)
    elif np.can_cast(array.dtype, output.dtype, "same_kind"):
        if (value := first_inexact(array, output.dtype)) is None:
            return array.astype(output.dtype)
        raise TypeError(
            f"the output {output.name!r} of the function contains {value}; outputs= declares "
            f"{output.dtype}, which cannot represent it. Declare another type."
        )
    raise TypeError(
        f"the output {output.name!r} of the function is an array of {array.dtype}; outputs= "
        f"declares {output.dtype}, which cannot represent it. Cast the array, or declare another "
        "type."
    )
