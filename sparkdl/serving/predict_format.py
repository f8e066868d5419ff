"""Runs anywhere (pure). Requests and answers of TensorFlow Serving's `:predict`.

Source of the format: https://www.tensorflow.org/tfx/serving/api_rest#predict_api
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.serving.json_tensors import (
    Array,
    check_shape,
    from_json,
    is_base64,
    plain,
    text_of,
    to_json,
)
from sparkdl.serving.request_error import invalid
from sparkdl.serving.signatures import Signature


@dataclass(frozen=True)
class PredictRequest:
    """The inputs of a request.

    Attributes:
        arrays: the inputs by name.
        is_rows: the request has rows (`instances`) rather than columns (`inputs`).
    """

    arrays: dict[str, Array]
    is_rows: bool


def signature_name(content: Mapping[str, Any]) -> str:
    """Return the name of the signature in a request; empty if the request names none.

    Raises:
        RequestError: if the name is no text.
    """
    name = content.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid("'signature_name' key must be a string value.")
    return name


def read(content: Mapping[str, Any], signature: Signature) -> PredictRequest:
    """Return the inputs of a request.

    Args:
        content: the JSON object of the request.
        signature: the signature that the request names.

    Raises:
        RequestError: if the inputs do not fit the signature.
    """
    has_rows = "instances" in content
    has_columns = "inputs" in content
    if has_rows and has_columns:
        raise invalid(
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        )
    if not has_rows and not has_columns:
        raise invalid("Missing 'inputs' or 'instances' key")
    if has_rows:
        columns = _columns(content["instances"], signature)
    else:
        columns = _inputs(content["inputs"], signature)
    arrays: dict[str, Array] = {}
    for name, value in columns.items():
        arrays |= _arrays(name, value, signature)
    for name, array in arrays.items():
        check_shape(array, signature.inputs[name])
    return PredictRequest(arrays, has_rows)


def _arrays(name: str, value: Any, signature: Signature) -> dict[str, Array]:
    splits = signature.ragged_inputs.get(name)
    info = signature.inputs[name]
    if splits is None or not isinstance(value, _Ragged):
        return {name: from_json(value, info)}
    flat = [item for row in value.rows for item in row]
    ends = np.cumsum([0, *(len(row) for row in value.rows)], dtype=np.int64)
    return {name: from_json(flat, info), splits: ends}


@dataclass(frozen=True)
class _Ragged:
    """The rows of a ragged input, which have different lengths."""

    rows: list[list[Any]]


def _ragged(value: Any, name: str) -> _Ragged:
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise invalid(f"input {name!r} is ragged; expected a list of lists")
    return _Ragged(value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not is_base64(value)


def _input_names(signature: Signature) -> list[str]:
    """Return the inputs that a request has to name; row splits come from the rows."""
    splits = set(signature.ragged_inputs.values())
    return [name for name in signature.inputs if name not in splits]


def _columns(rows: Any, signature: Signature) -> dict[str, Any]:
    """Return the values of each input, from one object or value per row."""
    if not isinstance(rows, list):
        raise invalid("Excepting 'instances' to be an list/array")
    if not rows:
        raise invalid("No values in 'instances' array")
    names = _input_names(signature)
    if not _is_object(rows[0]):
        if len(names) != 1:
            raise invalid(
                "instances is a plain list, but expecting list of objects as multiple input "
                f"tensors required: {', '.join(names)}"
            )
        for number, row in enumerate(rows):
            if _is_object(row):
                raise invalid(f"Expecting value/list but got object at item {number} of input list")
        columns = {names[0]: rows}
    else:
        for number, row in enumerate(rows):
            if not _is_object(row):
                raise invalid(f"Expecting object but got list at item {number} of input list")
            if row.keys() != set(names):
                raise invalid(
                    f"Failed to process element: {number} of 'instances' list. Its keys are "
                    f"{', '.join(sorted(row)) or 'none'}, but keys must be equal to: "
                    f"{', '.join(names)}"
                )
        columns = {name: [row[name] for row in rows] for name in names}
    return {
        name: _ragged(value, name) if name in signature.ragged_inputs else value
        for name, value in columns.items()
    }


def _inputs(inputs: Any, signature: Signature) -> dict[str, Any]:
    """Return the values of each input, from an object with one value per input."""
    names = _input_names(signature)
    if not _is_object(inputs):
        if len(names) != 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                f"required: {', '.join(names)}"
            )
        inputs = {names[0]: inputs}
    columns = {}
    for name in names:
        if name not in inputs:
            raise invalid(f"Missing named input: {name} in 'inputs' object.")
        splits = signature.ragged_inputs.get(name)
        if splits is None:
            columns[name] = inputs[name]
        elif splits in inputs:  # The values and the splits, as the signature has them.
            columns |= {name: inputs[name], splits: inputs[splits]}
        else:
            columns[name] = _ragged(inputs[name], name)
    return columns


# ---- answers


def answer_text(outputs: Mapping[str, Array], is_rows: bool) -> bytes:
    """Return the JSON of an answer, see `answer`."""
    if len(outputs) == 1:
        ((name, array),) = outputs.items()
        if isinstance(array, np.ndarray) and array.ndim:
            key = "predictions" if is_rows else "outputs"
            return f'{{"{key}": {text_of(array, name)}}}'.encode()
    return to_json(answer(outputs, is_rows))


def answer(outputs: Mapping[str, Array], is_rows: bool) -> dict[str, Any]:
    """Return the JSON object of an answer.

    Args:
        outputs: the outputs by name; nested lists for a ragged output.
        is_rows: the request had rows.

    Raises:
        RequestError: if there are rows in the request, but not in an output.

    Example:
        >>> answer({"y": np.array([[1.5], [2.0]])}, True)
        {'predictions': [[1.5], [2.0]]}
    """
    if not outputs:
        raise invalid("Cannot convert empty tensor map to JSON")
    values = {name: plain(array, name) for name, array in outputs.items()}
    if not is_rows:
        return {"outputs": values if len(values) > 1 else next(iter(values.values()))}
    sizes = {}
    for name, value in values.items():
        if not isinstance(value, list):
            raise invalid(f"Tensor name: {name} has no shape information")
        sizes[name] = len(value)
    if len({*sizes.values()}) > 1:
        text = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise invalid(f"the outputs have an inconsistent batch size: {text}")
    if len(values) == 1:
        return {"predictions": next(iter(values.values()))}
    rows = zip(*values.values(), strict=True)
    return {"predictions": [dict(zip(values, row, strict=True)) for row in rows]}


def rows_of(arrays: Mapping[str, Array]) -> int:
    """Return the number of rows of a request, 1 if its inputs have no rows."""
    return next((len(array) for array in arrays.values() if array.ndim), 1)
