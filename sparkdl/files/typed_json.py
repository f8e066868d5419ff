"""Runs anywhere. JSON that keeps the types of objects: dicts have any keys, tuples stay tuples.

A list, tuple, set or dict is written as `{"list": [...]}` and so on, so that a JSON object always
names a type. Nothing is pickled: reading it runs no code.
"""

import base64
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import named_type

_SEQUENCES = (list, tuple, set, frozenset)
# The kinds of dtypes whose contents are bytes that mean the same everywhere.
_NUMBERS, _TEXTS = "biufc", "USMm"
_LARGE = 1e308
# Deeper objects are refused before Python's own limit, which an object may reach anywhere.
_DEEPEST = 100

_KEPT = "numbers, text, bytes, arrays of numbers, lists, tuples, sets and dicts"


# The keys and indexes that lead to a part of an object.
Where = tuple[str, ...]


def encoded(
    obj: Any,
    encode_other: Callable[[Any, Where], Any] | None = None,
    text: Callable[[Where, str], str] | None = None,
) -> Any:
    """Return an object as JSON can hold it.

    Args:
        obj: numbers, text, bytes, arrays of any framework, lists, tuples, sets and dicts.
        encode_other: returns the form of any other object, given the keys and indexes that lead to
            it.
        text: returns the text to write for a text, given the keys and indexes that lead to it.
            It also gets bytes that are text.

    Raises:
        TypeError: if the object has other parts, without `encode_other`.
        RecursionError: if the object contains itself, or is too deep.

    Example:
        >>> encoded({"a": (1, 2)})
        {'dict': [['a', {'tuple': [1, 2]}]]}
        >>> decoded(encoded({"a": (1, 2)}))
        {'a': (1, 2)}
    """
    return _Encoder(encode_other or _refuse, text).encode(obj, ())


@dataclass(frozen=True)
class _Encoder:
    encode_other: Callable[[Any, Where], Any]
    text: Callable[[Where, str], str] | None

    def encode(self, obj: Any, where: Where) -> Any:
        if len(where) > _DEEPEST:
            raise RecursionError(f"the object is more than {_DEEPEST} levels deep")
        if isinstance(obj, str):
            return self.text(where, obj) if self.text else obj
        if obj is None or isinstance(obj, bool | int | float):
            return obj
        if isinstance(obj, Mapping):
            return self._dict(obj, where)
        for kind in _SEQUENCES:
            if isinstance(obj, kind):
                names = getattr(obj, "_fields", None) or range(len(obj))  # Of a named tuple.
                items = zip(names, obj, strict=True)
                return {kind.__name__: [self.encode(v, (*where, str(name))) for name, v in items]}
        if isinstance(obj, bytes):
            return {"bytes": base64.b64encode(self._bytes(where, obj)).decode()}
        array = _array(obj)
        return self.encode_other(obj, where) if array is None else self._array(array, where)

    def _dict(self, obj: Mapping[Any, Any], where: Where) -> Any:
        pairs = []
        for key, value in obj.items():
            try:
                encoded_key = encoded(key)
            except TypeError:
                return self.encode_other(key, (*where, str(key)))
            pairs.append([encoded_key, self.encode(value, (*where, str(key)))])
        return {"dict": pairs}

    def _bytes(self, where: Where, obj: bytes) -> bytes:
        if self.text:
            with contextlib.suppress(UnicodeDecodeError):
                return self.text(where, obj.decode()).encode()
        return obj

    def _array(self, array: Any, where: Where) -> Any:
        if array.ndim == 0 and array.dtype.kind in "biufU":
            value = array.item()
            # Of a long double, the item is one too.
            return self.encode(float(value) if array.dtype.kind == "f" else value, where)
        if self.text and array.dtype.kind in "US":
            write: Any = self.text if array.dtype.kind == "U" else self._bytes
            masked = array.copy()
            masked.flat = [write(where, text) for text in array.ravel().tolist()]
            array = masked
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        name = array.dtype.str if array.dtype.kind in _TEXTS else array.dtype.name
        return {"array": [name, list(array.shape), base64.b64encode(array.tobytes()).decode()]}


def _refuse(obj: Any, where: Where) -> Any:
    raise TypeError(
        f"got {named_type(obj)}; expected {_KEPT}: objects travel as JSON and are never "
        "pickled. Send the numbers that the object consists of."
    )


def _array(obj: Any) -> Any:
    """Return an array or tensor of any framework as an array of NumPy; None for other objects."""
    if not hasattr(obj, "dtype") or not hasattr(obj, "shape") or hasattr(obj, "fill_value"):
        return None  # The last one is of a masked array, whose mask would be lost.
    try:
        for method in ("detach", "cpu"):  # PyTorch.
            obj = getattr(obj, method)() if hasattr(obj, method) else obj
        import numpy as np  # A program that returns no arrays does not load it.

        array = np.asarray(obj.float() if str(obj.dtype) == "torch.bfloat16" else obj)
    except Exception:  # noqa: BLE001 An object of the user's may raise anything.
        return None
    is_kept = array.dtype.kind in _NUMBERS + _TEXTS or array.dtype.name == "bfloat16"
    return array if is_kept else None


def decoded(value: Any, decode_other: Callable[[str, Any], Any] | None = None) -> Any:
    """Return the object that `encoded` got; of an array of any framework, an array of NumPy.

    Args:
        value: what `encoded` has returned.
        decode_other: returns the object of any other form, given its name and contents.
    """
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    if kind == "bytes":
        return base64.b64decode(items)
    if kind == "array":
        import numpy as np

        dtype, shape, contents = items
        return np.frombuffer(base64.b64decode(contents), dtype_named(dtype)).reshape(shape).copy()
    if kind == "dict":
        return {decoded(key, decode_other): decoded(item, decode_other) for key, item in items}
    for sequence in _SEQUENCES:
        if kind == sequence.__name__:
            return sequence(decoded(item, decode_other) for item in items)
    if decode_other is None:
        raise ValueError(f"{kind!r} is no type of this format.")
    return decode_other(kind, items)


def plain(value: Any) -> Any:
    """Return what `encoded` has returned in ordinary JSON: arrays, tuples and sets become lists.

    Raises:
        TypeError: if a part has no such form.

    Example:
        >>> plain(encoded({1: (2, b"x")}))
        {'1': [2, 'eA==']}
    """
    if not isinstance(value, dict):
        return value if is_plain(value) else _refuse(value, ())
    ((kind, items),) = value.items()
    if kind == "bytes":
        return items
    if kind == "dict":
        return {str(decoded(key)): plain(item) for key, item in items}
    if kind == "array":
        array = decoded(value)
        return array.tolist() if array.dtype.kind in "biufU" else _refuse(array, ())
    if any(kind == sequence.__name__ for sequence in _SEQUENCES):
        return [plain(item) for item in items]
    return _refuse(value, ())


def is_plain(value: Any) -> bool:
    """Return True if `plain` of what `encoded` has returned is the object itself."""
    if not isinstance(value, dict):
        return not isinstance(value, int) or abs(value) < _LARGE  # Readers take numbers as floats.
    ((kind, items),) = value.items()
    if kind == "dict":
        return all(isinstance(key, str) and is_plain(item) for key, item in items)
    return kind == "list" and all(map(is_plain, items))


def dtype_named(name: str) -> Any:
    """Return the dtype of NumPy with a name, that of bfloat16 too."""
    if name != "bfloat16":
        import numpy as np

        return np.dtype(name)
    import ml_dtypes

    return ml_dtypes.bfloat16
