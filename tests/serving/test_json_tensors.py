"""Values of requests as tensors, and tensors as JSON, as TensorFlow Serving has them."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.serving import json_tensors
from sparkdl.serving.json_tensors import check_shape, from_json, parse, plain, text_of, to_json
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
        ([1e39], "float32", "beyond the range of float32"),
        ([0.5, 10**39], "float32", "beyond the range of float32"),
        ([10**400], "float64", "beyond the range of float64"),
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


def test_a_long_value_is_cut_in_the_message() -> None:
    for size, shown in ((198, f'"{"x" * 198}" Type'), (199, f'"{"x" * 199}... Type')):
        with pytest.raises(RequestError, match=re.escape(f"JSON Value: {shown}")):
            tensor("x" * size, "float32")


def test_a_dtype_without_json_is_not_implemented() -> None:
    with pytest.raises(RequestError) as caught:
        tensor([1], "complex64")
    assert caught.value.status == 501


def test_lists_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(RequestError, match="nested more than"):
        tensor(json.loads("[" * 40 + "]" * 40), "float32")
    # NumPy before 2.0 has no array with more axes than 32.
    assert tensor(json.loads("[" * 32 + "1" + "]" * 32), "float32").shape == (1,) * 32
    with pytest.raises(RequestError, match="nested more than 32 times"):
        tensor(json.loads("[" * 33 + "1" + "]" * 33), "float32")
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
            with pytest.raises(
                RequestError, match=r"above the range of doubles is beyond the range of"
            ):
                tensor(value, dtype)


# For each dtype of floating-point numbers: the bits of its fraction, and its largest number.
FLOATS = {
    name: (np.finfo(name).nmant + 1, float(np.finfo(name).max))
    for name in ("float16", "float32", "float64")
}
FLOATS["bfloat16"] = 8, FLOATS["float32"][1]
WHOLE = [np.dtype(kind).name for kind in "bhilBHIL"]


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_are_those_of_the_dtype(dtype: str) -> None:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    assert tensor([low, high, 0], dtype).tolist() == [low, high, 0]
    assert tensor(high, dtype) == high
    for value in (low - 1, high + 1, 1.0):
        for given_value in (value, [0, value], [[0], [value]]):
            with pytest.raises(RequestError, match=f"not of expected type: {dtype}"):
                tensor(given_value, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_are_rounded_and_none_become_infinite(dtype: str) -> None:
    """As by TensorFlow Serving, https://www.tensorflow.org/tfx/serving/api_rest: 1435774380."""
    bits, largest = FLOATS[dtype]
    taken = [2**bits - 1, 1 - 2**bits, largest, -largest, 0.1, math.nan, 5e-324]
    taken += [2**bits, 2**bits + 1, -(2**bits) - 3, *([] if dtype == "float16" else [1435774380])]
    taken += [] if dtype == "float16" else [2**53 + 1, 2**64 + 1, 10**30 + 7]
    for value in taken:
        expected = np.array(float(value)).astype("float32" if dtype == "bfloat16" else dtype)
        np.testing.assert_array_equal(tensor(value, dtype), expected)
        np.testing.assert_array_equal(tensor([0.5, value], dtype)[1], expected)
        np.testing.assert_array_equal(tensor([[2], [value]], dtype)[1, 0], expected)
    refused = [2 * int(largest), math.nextafter(largest, math.inf)]
    refused = refused[: 1 if dtype == "float64" else 2]
    for value in [*refused, *(-value for value in refused)]:
        for given_value in (value, [value], [0.5, value], [math.nan, value], [[1], [value]]):
            with pytest.raises(RequestError, match=f"beyond the range of {dtype}"):
                tensor(given_value, dtype)


NUMBERS = st.one_of(
    st.integers(-3, 3).map(lambda n: 2**53 + n),
    st.integers(-3, 3).map(lambda n: 2**24 + n),
    st.sampled_from([0, 1, -1, 255, 256, -129, 2**63, 2**64, -(2**63) - 1, 10**400]),
    st.integers(-1, 1).map(lambda n: int(FLOATS["float32"][1]) + n),
    st.sampled_from([0.5, 1e39, -1e39, 1e308, 65504.0, 65520.0, math.nan, True, None, "a"]),
)


def accepted(value: Any, dtype: str) -> list[Any] | None:
    try:
        return tensor(value, dtype).ravel().tolist()
    except RequestError:
        return None


@given(st.lists(NUMBERS, min_size=1, max_size=4), st.sampled_from([*WHOLE, *FLOATS, "bool"]))
def test_a_list_is_taken_if_each_of_its_numbers_is(values: list[Any], dtype: str) -> None:
    alone = [accepted(value, dtype) for value in values]
    expected = None if None in alone else [number for numbers in alone for number in numbers or ()]
    for nested in (values, [[value] for value in values], [values]):
        assert repr(accepted(nested, dtype)) == repr(expected)


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


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "bool", "object"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (0,), (2, 3), (2, 0), (0, 2), (2, 1, 2)])
def test_the_text_of_an_array_is_that_of_its_nested_lists(dtype: str, shape: Any) -> None:
    numbers = np.arange(math.prod(shape)).reshape(shape) / 4
    array = numbers.astype("S").astype(dtype) if dtype == "object" else numbers.astype(dtype)
    nested = json.loads(text_of(array, "y"))
    texts = numbers.astype("S").astype("U").tolist()
    assert nested == plain(array, "y") == (texts if dtype == "object" else array.tolist())


def test_a_shape_is_compared_with_that_of_the_input() -> None:
    info = TensorInfo("x", "float32", (None, 2))
    check_shape(np.zeros((5, 2)), info)
    check_shape(np.zeros((3,)), TensorInfo("x", "float32", None))
    for shape in ((5, 3), (2,), (1, 2, 1), ()):
        with pytest.raises(RequestError, match=r"expected \[-1, 2\]"):
            check_shape(np.zeros(shape), info)


# ---- with and without orjson


@pytest.fixture(params=["orjson", "json"])
def library(request: Any, monkeypatch: Any) -> None:
    """Let one library read and write, whatever is installed."""
    if request.param == "orjson":
        pytest.importorskip("orjson")
    else:
        monkeypatch.setattr(json_tensors, "_orjson", lambda: None)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_finite_number_comes_back_from_its_text(library: None, dtype: str) -> None:
    """Any bits of a number, and those at the limits; the oracle is the module json."""
    bits = np.random.default_rng(7).integers(0, 1 << 32, 4000, np.uint32)
    numbers = bits.view(dtype)
    limits = np.finfo(dtype)
    special = [0.0, -0.0, limits.max, limits.min, limits.tiny, limits.smallest_subnormal, 1e16, 0.1]
    array = np.array([*numbers[np.isfinite(numbers)], *special], dtype)[:, None][::-1]
    for nested in (json.loads(text_of(array, "y")), plain(array, "y")):
        again = np.array(nested, dtype)
        assert again.tobytes() == array.tobytes() and again.shape == array.shape
    # No digit more than the dtype has.
    assert text_of(np.array([0.1], dtype), "y") == "[0.1]"
    tokens = text_of(np.array([np.nan, np.inf, -np.inf, 1], dtype), "y")
    assert tokens == "[NaN, Infinity, -Infinity, 1.0]"


TEXTS = [
    *("-0", "-0.0", "1e400", "-1e400", "1e-400", "1E5", "0.1e1", "123456789012345678"),
    *(str(2**63 - 1), str(2**63), str(2**64), str(-(2**64)), "1" * 30, "0." + "1" * 30, "9" * 5000),
    *("NaN", "Infinity", "-Infinity", "nan", "01", "+1", ".5", "1.", "1,", "'a'", "true", "null"),
    *('"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\u0001"', '"\ufeff"', '{"a": 1, "a": 2}'),
    *("[" * 500 + "]" * 500, "[" * 100_000 + "]" * 100_000, '"a" "b"', "", "//x", "[1] x"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_both_libraries_read_the_same(text: str, monkeypatch: Any) -> None:
    pytest.importorskip("orjson")
    plain_text = f'{{"x": {text}}}'
    for body in (plain_text.encode(), f" [{plain_text}] ".encode(), plain_text.encode("utf-16")):
        read = []
        for by_json in (False, True):
            with monkeypatch.context() as patch:
                if by_json:
                    patch.setattr(json_tensors, "_orjson", lambda: None)
                try:
                    # `repr` tells 1 from 1.0 and from True, and 0.0 from -0.0.
                    read.append(repr(parse(body)))
                except RequestError as exc:
                    read.append(f"refused: {exc}")
        assert read[0] == read[1]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_both_libraries_read_any_value_alike(value: Any) -> None:
    pytest.importorskip("orjson")
    body = json.dumps({"x": value}).encode()
    expected = json.loads(body)
    assert repr(parse(body)) == repr(expected)
