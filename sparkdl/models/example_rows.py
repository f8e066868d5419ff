"""Runs on the driver. The rows with which a model with a loader is called, to learn its outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.errors import ConfigError, named_type
from sparkdl.inference.loader_model import TEXTS
from sparkdl.inference.tensor_spec import TensorSpec

# Lengths of an axis without a fixed one, on which a model is called to learn its outputs.
_LENGTHS = (2, 3)
_NUM_ROWS = 5


@dataclass(frozen=True)
class Example:
    """Rows with which a model is called once, to learn its outputs.

    Attributes:
        inputs: the inputs, in the order of the arguments.
        by_name: True if they are passed by name.
        batches: arrays of rows for the inputs; two batches if the length of an axis is variable.
    """

    inputs: tuple[TensorSpec, ...]
    by_name: bool
    batches: Sequence[Sequence[Any]]


def example_of(signature: Any) -> Example:
    """Return the inputs that the user has described.

    Args:
        signature: a batch of rows as an array, or a `tf.TensorSpec`, whose rows are zeros; a list
            of these by position, or a dict by name of the input.

    Raises:
        ConfigError: if it is missing or something else.
    """
    if signature is None:
        raise ConfigError(
            "signature is missing: the inputs of the model are not known. Pass a batch of rows, "
            "such as signature=x[:8], or a dict of batches by name of the input, such as "
            "signature={'text': np.array(['one', 'two'])}. The outputs are learnt from it."
        )
    by_name = isinstance(signature, Mapping)
    if by_name:
        named = {str(name): value for name, value in signature.items()}
    else:
        parts = signature if isinstance(signature, list | tuple) else [signature]
        single = len(parts) == 1
        named = {("inputs" if single else f"input_{n}"): v for n, v in enumerate(parts, 1)}
    specs = tuple(_spec_of(name, value) for name, value in named.items())
    batches = [
        [_rows(value, spec, length) for value, spec in zip(named.values(), specs, strict=True)]
        for length in lengths_of(specs)
    ]
    if len({len(array) for array in batches[0]}) != 1:
        raise ConfigError("signature has arrays of different numbers of rows; expected one number.")
    return Example(specs, by_name, batches)


def _spec_of(name: str, value: Any) -> TensorSpec:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None or not len(shape) or shape[0] == 0:
        raise ConfigError(
            f"signature contains {_brief(value)}; expected an array with a batch of rows, such as "
            "x[:8], or a dict of these by name of the input."
        )
    text = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    if text == "string" or text.startswith("str") or _are(str, value):
        text = "string"
    elif _are(bytes, value):
        text = "bytes"
    try:
        np.dtype("O" if text in TEXTS else text)
    except TypeError:
        text = "object"
    if text == "object":
        raise ConfigError(
            f"signature has the input {name!r} with {dtype}; expected numbers, booleans, text or "
            "bytes (an array of dtype object)."
        )
    return TensorSpec(name, tuple(shape)[1:], text)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{named_type(value)}"


def _are(kind: type, value: Any) -> bool:
    """Return True for an array of objects of a type."""
    return str(getattr(value, "dtype", "")) == "object" and all(
        isinstance(each, kind) for each in np.asarray(value, object).flat
    )


def _rows(value: Any, spec: TensorSpec, length: int) -> Any:
    if type(value).__name__ == "TensorSpec":
        return zeros_of(spec, length)
    array = np.array(value.detach().cpu() if hasattr(value, "detach") else value)  # A copy.
    return array.astype(object) if spec.dtype in TEXTS else array


def lengths_of(specs: Sequence[TensorSpec]) -> Sequence[int]:
    """Return the lengths of variable axes to try; one is enough where all are fixed."""
    has_variable = any(None in (spec.shape or ()) for spec in specs)
    return _LENGTHS if has_variable else _LENGTHS[:1]


def zeros_of(spec: TensorSpec, length: int) -> Any:
    """Return rows of zeros, or of empty texts, whose variable axes have a length."""
    shape = [_NUM_ROWS, *(length if n is None else n for n in spec.shape or ())]
    empty = TEXTS.get(spec.dtype)
    return np.zeros(shape, spec.dtype) if empty is None else np.full(shape, empty, object)
