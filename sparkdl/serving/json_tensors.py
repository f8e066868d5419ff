"""Runs anywhere (pure). Tensors as JSON, as TensorFlow Serving reads and writes them.

Source of the rules: https://www.tensorflow.org/tfx/serving/api_rest#json_mapping
"""

import base64
import binascii
import contextlib
import functools
import importlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sparkdl.serving.request_error import RequestError, invalid
from sparkdl.serving.signatures import TensorInfo

Array = Any  # np.ndarray; strings are objects of type bytes.

MAX_RANK = 32
_NUMPY = {"string": "object", "bfloat16": "float32"}
# The largest number of each dtype of floating-point numbers.
_LARGEST = {
    name: float(np.finfo(_NUMPY.get(name, name)).max)
    for name in ("float16", "bfloat16", "float32", "float64")
}
_WHOLE = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_INFINITE = (math.inf, -math.inf)


class _Infinity(float):
    """The token of JSON; any other infinite float was a number too large for one."""


_TOKENS_READ = {
    "NaN": math.nan,
    "Infinity": _Infinity("inf"),
    "-Infinity": _Infinity("-inf"),
}


def parse(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request. The tokens NaN and Infinity are allowed.

    Raises:
        RequestError: if the body is no JSON object.
    """
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    try:
        value = _loads(body)
    except RecursionError:
        raise invalid("JSON Parse error: the document is nested too deeply") from None
    except ValueError as exc:
        raise invalid(f"JSON Parse error: {exc}") from None
    if not isinstance(value, dict):
        raise invalid(f"JSON Value: {_short(value)} Is not object")
    return value


def _loads(body: bytes) -> Any:
    """Read JSON, by orjson where it is installed and reads the same."""
    # orjson takes whole numbers beyond 64 bits for floats.
    if (orjson := _orjson()) is not None and not _LONG_NUMBER.search(body):
        # It reads no tokens, no half of a surrogate pair and no other encoding than UTF-8.
        with contextlib.suppress(ValueError):
            return orjson.loads(body)
    return json.loads(body, parse_constant=_TOKENS_READ.__getitem__)


@functools.cache
def _orjson() -> Any:
    """Return the module orjson, which is written in Rust; None if it is not installed."""
    try:
        return importlib.import_module("orjson")
    except ImportError:
        return None


def is_base64(value: Any) -> bool:
    """Return True for `{"b64": "..."}`, which stands for bytes.

    Example:
        >>> is_base64({"b64": "aGk="}), is_base64({"b64": 1}), is_base64({"b64": "aGk=", "x": 1})
        (True, False, False)
    """
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def from_json(value: Any, info: TensorInfo) -> Array:
    """Return the array of a JSON value, which is a number, a string or nested lists of these.

    Args:
        value: the JSON value.
        info: the input of the model.

    Raises:
        RequestError: if the value does not fit the dtype, or is no dense tensor.

    Example:
        >>> from_json([[1, 2.5]], TensorInfo("x", "float32", (None, 2)))
        array([[1. , 2.5]], dtype=float32)
    """
    if info.dtype not in _LARGEST and info.dtype not in _WHOLE | {"bool", "string"}:
        raise RequestError(
            "UNIMPLEMENTED", f"Conversion of JSON Value: {_short(value)} to type: {info.dtype}"
        )
    shape = _shape(value)
    if info.dtype != "string" and (array := _at_once(value, shape, info.dtype)) is not None:
        return array
    flat = [_element(item, info) for item in _elements(value, 0, shape)]
    array = np.empty(len(flat), _NUMPY.get(info.dtype, info.dtype))
    array[:] = flat
    return array.reshape(shape)


def _shape(value: Any) -> tuple[int, ...]:
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        if len(shape) > MAX_RANK:
            raise invalid(f"the lists are nested more than {MAX_RANK} times")
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _at_once(value: Any, shape: tuple[int, ...], dtype: str) -> Array | None:
    """Return the array of plain numbers; None if each element has to be looked at."""
    kinds = "iuf" if dtype in _LARGEST else "iu" if dtype in _WHOLE else ""
    if not kinds or (flat := _numbers(value, shape)) is None:
        return None
    try:
        array = np.array(flat).reshape(shape)
    except OverflowError:
        return None
    if array.dtype.kind not in kinds:
        return None
    if dtype in _WHOLE:
        bounds = np.iinfo(dtype)
        # Before 2.0, NumPy compares its uint64 with the limits of int64 as floats.
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        fits = bounds.min <= low and high <= bounds.max
    else:
        # A whole number is rounded like any other number, as by TensorFlow Serving since 2.5.
        array = array.astype(np.float64, copy=False)
        sizes = np.abs(array)
        fits = not array.size or bool(sizes.max() <= _LARGEST[dtype])
        if not fits:  # NaN is a number of each dtype.
            fits = bool((sizes[~np.isnan(array)] <= _LARGEST[dtype]).all())
    return array.astype(_NUMPY.get(dtype, dtype)) if fits else None


def _numbers(value: Any, shape: tuple[int, ...]) -> list[Any] | None:
    """Return the elements of nested lists of numbers, without a loop over them in Python.

    None if an element is no number, as NumPy takes true for 1 and gives each text of a list the
    size of the longest one, or if the lists have different lengths.
    """
    flat = value if shape else [value]
    for level, size in enumerate(shape):
        if level:
            if set(map(type, flat)) != {list} or set(map(len, flat)) != {size}:
                return None
            flat = list(itertools.chain.from_iterable(flat))
    return flat if set(map(type, flat)) <= {int, float} else None


def _elements(value: Any, level: int, shape: Sequence[int]) -> Iterator[Any]:
    """Yield the elements of nested lists, which must have the same lengths everywhere."""
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid(
                f"JSON Value: {_short(value)} found at incorrect level: {level + 1} in the JSON "
                f"DOM. Expected at level: {len(shape)}"
            )
        yield value
        return
    if level >= len(shape):
        raise invalid(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise invalid(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: "
            f"{shape[level]}"
        )
    for item in value:
        yield from _elements(item, level + 1, shape)


def _element(value: Any, info: TensorInfo) -> Any:
    dtype = info.dtype
    if dtype == "string":
        return _bytes(value, info)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if dtype == "bool" and isinstance(value, bool):
        return value
    if dtype in _WHOLE and is_number and isinstance(value, int):
        bounds = np.iinfo(dtype)
        if bounds.min <= value <= bounds.max:
            return value
    if dtype in _LARGEST and is_number:
        with contextlib.suppress(OverflowError):  # Of a whole number beyond the doubles.
            number = float(value)
            if isinstance(value, _Infinity) or not abs(number) > _LARGEST[dtype]:
                return number
        shown = "number above the range of doubles" if value in _INFINITE else _short(value)
        raise invalid(f"Cannot convert JSON value: {shown} is beyond the range of {dtype}.")
    raise _wrong_type(value, info)


def _bytes(value: Any, info: TensorInfo) -> bytes:
    if isinstance(value, str):
        # JSON may escape half of a surrogate pair, which is no text.
        return value.encode(errors="surrogatepass")
    if not isinstance(value, dict):
        raise _wrong_type(value, info)
    if not is_base64(value):
        raise invalid(f"JSON Value: {_short(value)} not formatted correctly for base64 data")
    text = value["b64"].strip()
    try:
        # The padding may be left out, and both alphabets are read.
        padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
        return base64.b64decode(padded.translate({45: 43, 95: 47}), validate=True)
    except (binascii.Error, ValueError):
        raise invalid("Unable to base64 decode") from None


def _wrong_type(value: Any, info: TensorInfo) -> RequestError:
    kinds = {bool: "Boolean", dict: "Object", str: "String", type(None): "Null"}
    kind = kinds.get(type(value), "Number")
    return invalid(
        f"JSON Value: {_short(value)} Type: {kind} is not of expected type: {info.dtype} of the "
        f"input {info.name!r}"
    )


def _short(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        text = "..."
    return text if len(text) <= 200 else f"{text[:200]}..."


def check_shape(array: Array, info: TensorInfo) -> None:
    """Validate that an array has the shape of an input.

    Raises:
        RequestError: if it has another shape.
    """
    if info.shape is None or info.is_ragged:
        return
    pairs = zip(array.shape, info.shape, strict=False)
    if array.ndim != len(info.shape) or any(b is not None and a != b for a, b in pairs):
        expected = [-1 if size is None else size for size in info.shape]
        raise invalid(
            f"input {info.name!r} has shape {list(array.shape)}; expected {expected}, where -1 "
            "stands for any size"
        )


# ---- answers


_ENCODERS = {indent: json.JSONEncoder(ensure_ascii=False, indent=indent) for indent in (None, 1)}
_TOKENS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def to_json(value: Any, indent: int | None = None) -> bytes:
    """Return a value as JSON; numbers that are not finite become NaN, Infinity and -Infinity."""
    try:
        return _ENCODERS[indent].encode(value).encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which a client has sent, is no text: it is escaped.
        return json.dumps(value, indent=indent).encode()


def text_of(array: Array, name: str) -> str:
    """Return the JSON of an array, see `plain`.

    Example:
        >>> text_of(np.array([[0.2, 3.0]], np.float32), "y").replace(" ", "")
        '[[0.2,3.0]]'
    """
    if (text := _finite_text(array)) is not None:
        return text.decode()
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or not array.size:
        return to_json(plain(array, name)).decode()
    # The text of a float32 is the shortest that gives the same float32.
    items = array.ravel().astype("U").tolist()
    if not np.isfinite(array).all():
        items = [_TOKENS.get(item, item) for item in items]
    for size in reversed(array.shape):
        items = [f"[{', '.join(items[i : i + size])}]" for i in range(0, len(items), size)]
    return str(items[0])


def _finite_text(array: Array) -> bytes | None:
    """Return the JSON of an array of finite numbers by orjson; None if it has no way to write it.

    orjson writes null for a number that is not finite.
    """
    orjson = _orjson()
    if orjson is None or not isinstance(array, np.ndarray) or not array.ndim:
        return None
    if array.dtype not in (np.float32, np.float64) or not np.isfinite(array).all():
        return None
    text: bytes = orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
    return text


def plain(array: Array, name: str) -> Any:
    """Return an array as nested lists for JSON.

    Args:
        array: the array, or a ragged tensor as nested lists.
        name: the name of the output. Strings of an output whose name ends with `_bytes`, and those
            that are no text, are written in base64.

    Example:
        >>> plain(np.array([0.2, 3.0], np.float32), "y")
        [0.2, 3.0]
        >>> plain(np.array([b"hi"], object), "y_bytes")
        [{'b64': 'aGk='}]
    """
    if isinstance(array, list):
        return [plain(item, name) for item in array]
    if isinstance(array, bytes):
        return _text(array, name.endswith("_bytes"))
    array = np.asarray(array)
    if array.dtype.kind in "OS":
        texts = [_text(item, name.endswith("_bytes")) for item in array.ravel().tolist()]
        return _nested(texts, array.shape)
    if array.dtype.itemsize < 8 and array.dtype.kind in "fV":  # V is the kind of bfloat16.
        # The shortest text that gives the same float32, rather than all digits of a float64.
        array = array.astype(np.float32)
        if (text := _finite_text(array)) is not None:
            return _loads(text)
        array = array.astype("U").astype(np.float64)
    return array.tolist()


def _text(value: Any, is_bytes: bool) -> Any:
    if isinstance(value, str):
        value = value.encode()
    if not is_bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(value).decode()}


def _nested(items: list[Any], shape: Sequence[int]) -> Any:
    if not shape:
        return items[0]
    for size in reversed(shape[1:]):
        items = [items[i : i + size] for i in range(0, len(items), size)] if size else []
    if 0 in shape:
        return np.empty(shape).tolist()
    return items
