"""Values of requests as tensors, and tensors as JSON, as TensorFlow Serving has them."""

import json
import math
from typing import Any

import numpy as np
import pytest

from sparkdl.serving.json_tensors import check_shape, from_json, parse, plain, to_json
from sparkdl.serving.request_error import RequestError
from sparkdl.serving.signatures import TensorInfo


def tensor(value: Any, dtype: str) -> Any:
    return from_json(value, TensorInfo("x", dtype, None))


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (3, "float32", np.float32(3)),
        ([1, 2.5, 1e-3], "float32", np.array([1, 2.5, 1e-3], np.float32)),
        ([[1, 2], [3, 4]], "int64", np.array([[1, 2], [3, 4]])),
        ([255, 0], "uint8", np.array([255, 0], np.uint8)),
        ([2**64 - 1], "uint64", np.array([2**64 - 1], np.uint64)),
        ([True, False], "bool", np.array([True, False])),
        ([], "float32", np.zeros(0, np.float32)),
        ([[], []], "int32", np.zeros((2, 0), np.int32)),
        ([math.nan, 1], "float64", np.array([math.nan, 1])),
    ],
)
def test_numbers_become_arrays_of_the_dtype(value: Any, dtype: str, expected: Any) -> None:
    array = tensor(value, dtype)
    assert array.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(array, expected)
    assert array.shape == np.shape(expected)


def test_strings_and_base64_become_bytes() -> None:
    array = tensor([["a", {"b64": "AP8="}], ["ü", {"b64": "-_8"}]], "string")
    assert array.tolist() == [[b"a", b"\x00\xff"], ["ü".encode(), b"\xfb\xff"]]
    assert array.dtype == object


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        ("a", "float32", "not of expected type: float32"),
        ([1, None], "float32", "Type: Null"),
        ([1, True], "float32", "Type: Boolean"),
        ([[1.0, 2.0], [True, 3.0]], "float32", "Type: Boolean"),
        ([1, True], "int32", "Type: Boolean"),
        ([1.0], "int32", "not of expected type: int32"),
        ([300], "uint8", "not of expected type: uint8"),
        ([2**63], "int64", "not of expected type: int64"),
        ([-1], "uint32", "not of expected type: uint32"),
        ([1e39], "float32", "without loss of precision"),
        ([2**24], "float32", "without loss of precision"),
        ([10**400], "float64", "without loss of precision"),
        ([0.5, 2**24 + 1], "float32", "without loss of precision"),
        ([0.5, 2**53 + 1], "float64", "without loss of precision"),
        ([1, 0], "bool", "not of expected type: bool"),
        ([[1], [2, 3]], "float32", "unexpected size: 2 at level: 1 expected size: 1"),
        ([[1], 2], "float32", "incorrect level"),
        ([1, [2]], "float32", "unexpected level"),
        ([1], "string", "Type: Number"),
        ({"b64": "a"}, "string", "Unable to base64 decode"),
        ({"b64": "!!!!"}, "string", "Unable to base64 decode"),
        ({"b64": "aGk=", "x": 1}, "string", "not formatted correctly for base64"),
        ({"b64": "aGk="}, "float32", "Type: Object"),
    ],
)
def test_a_value_of_another_type_is_refused(value: Any, dtype: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        tensor(value, dtype)
    assert caught.value.status == 400


def test_a_dtype_without_json_is_not_implemented() -> None:
    with pytest.raises(RequestError) as caught:
        tensor([1], "complex64")
    assert caught.value.status == 501


def test_lists_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(RequestError, match="nested more than"):
        tensor(json.loads("[" * 40 + "]" * 40), "float32")
    with pytest.raises(RequestError, match="nested too deeply"):
        parse(b'{"instances": ' + b"[" * 200_000 + b"]" * 200_000 + b"}")


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b'{"a": \xff}', b"null", b'{"a": 1}}'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse(body)
    assert caught.value.status == 400


def test_tokens_that_are_not_json_are_read() -> None:
    values = parse(b'{"x": [NaN, Infinity, -Infinity]}')["x"]
    assert math.isnan(values[0]) and values[1:] == [math.inf, -math.inf]
    for dtype in ("float16", "float32", "float64"):
        assert str(tensor(values, dtype).tolist()) == "[nan, inf, -inf]"


@pytest.mark.parametrize("text", ["1e400", "-1E+400", f"{'9' * 310}.5", "1e309"])
def test_a_number_too_large_for_a_float_is_no_infinity(text: str) -> None:
    """As in TensorFlow Serving, whose parser refuses it."""
    for body in (f"[{text}, 1]", f"[[{text}], [1]]", text, f"[NaN, {text}]", f"[{text}, Infinity]"):
        value = parse(f'{{"x": {body}}}'.encode())["x"]
        for dtype in ("float32", "float64"):
            with pytest.raises(RequestError, match="without loss of precision"):
                tensor(value, dtype)


def test_answers_are_as_short_as_their_dtype_allows() -> None:
    array = np.array([0.2, 1 / 3, 3, 1e-7, math.nan, -math.inf], np.float32)
    text = to_json(plain(array, "y")).decode()
    assert text == "[0.2, 0.33333334, 3.0, 1e-07, NaN, -Infinity]"
    back = np.array(json.loads(text), np.float32)
    np.testing.assert_array_equal(back, array)
    assert plain(np.float32(0.1), "y") == 0.1
    assert plain(np.array([[1, 2]], np.int8), "y") == [[1, 2]]
    assert plain(np.array([0.1]), "y") == [0.1]


def test_bytes_are_written_in_base64_and_text_as_text() -> None:
    array = np.array([["ü".encode()], [b"a"]], object)
    assert plain(array, "y") == [["ü"], ["a"]]
    assert plain(array, "y_bytes") == [[{"b64": "w7w="}], [{"b64": "YQ=="}]]
    assert plain(np.array([b"\xff"], object), "y") == [{"b64": "/w=="}]
    assert plain(np.empty((2, 0), object), "y") == [[], []]
    assert plain([[b"a"], []], "y") == [["a"], []]


def test_a_shape_is_compared_with_that_of_the_input() -> None:
    info = TensorInfo("x", "float32", (None, 2))
    check_shape(np.zeros((5, 2)), info)
    check_shape(np.zeros((3,)), TensorInfo("x", "float32", None))
    for shape in ((5, 3), (2,), (1, 2, 1), ()):
        with pytest.raises(RequestError, match=r"expected \[-1, 2\]"):
            check_shape(np.zeros(shape), info)
