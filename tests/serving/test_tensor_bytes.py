"""Tensors of requests as bytes: those of the Open Inference Protocol, and `tf.train.Example`s."""

import struct
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.serving import example_format
from sparkdl.serving.example_format import classify_answer, read_examples, regress_answer
from sparkdl.serving.infer_format import DATATYPES, answer, read
from sparkdl.serving.request_error import RequestError
from sparkdl.serving.signatures import Signature, TensorInfo

FLOATS = st.floats(width=16)
TEXTS = st.lists(st.binary(max_size=6), max_size=5)


def described(dtype: str, size: int, data: bytes) -> tuple[dict[str, Any], Signature]:
    info = TensorInfo("x", dtype, None)
    parameters = {"binary_data_size": len(data)}
    tensor = {"name": "x", "datatype": DATATYPES[dtype], "shape": [size], "parameters": parameters}
    return {"inputs": [tensor]}, Signature(name="s", inputs={"x": info}, outputs={"x": info})


def read_bytes(dtype: str, size: int, data: bytes) -> Any:
    content, signature = described(dtype, size, data)
    return read(content, signature, data).arrays["x"]


def written(dtype: str, array: Any) -> bytes:
    content, signature = described(dtype, array.size, b"")
    content["parameters"] = {"binary_data_output": True}
    request = read({**content, "inputs": [{**content["inputs"][0], "shape": [0]}]}, signature)
    body, size = answer({}, request, signature, {"x": array})
    return body[size:]


@pytest.mark.parametrize(
    "dtype", [name for name in DATATYPES if name not in ("string", "bfloat16")]
)
@given(data=st.data())
def test_numbers_are_their_little_endian_bytes(dtype: str, data: st.DataObject) -> None:
    little = np.dtype(dtype).newbyteorder("<")
    raw = data.draw(st.binary(max_size=32))
    raw = bytes(byte & 1 for byte in raw) if dtype == "bool" else raw
    size, rest = divmod(len(raw), little.itemsize)
    if rest:
        with pytest.raises(RequestError, match="no multiple of"):
            read_bytes(dtype, size, raw)
        return
    array = read_bytes(dtype, size, raw)
    assert array.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(array, np.frombuffer(raw, little))
    assert written(dtype, array) == raw


@given(st.lists(FLOATS, max_size=5))
def test_a_bfloat16_is_the_upper_half_of_a_float32(numbers: list[float]) -> None:
    floats = np.array(numbers, "<f4")
    floats.view("<u4")[:] &= 0xFFFF0000
    data = b"".join(struct.pack("<f", number)[2:] for number in floats.tolist())
    np.testing.assert_array_equal(read_bytes("bfloat16", len(numbers), data), floats)
    with pytest.raises(RequestError, match="no multiple of 2"):
        read_bytes("bfloat16", len(numbers), data + b"x")


@given(TEXTS)
def test_strings_have_their_lengths_before_them(texts: list[bytes]) -> None:
    data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    array = read_bytes("string", len(texts), data)
    assert array.tolist() == texts
    assert written("string", array) == data
    ends = {0}
    for text in texts:
        ends.add(max(ends) + 4 + len(text))
    for cut in range(len(data)):
        if cut not in ends:
            with pytest.raises(RequestError, match="ends within"):
                read_bytes("string", len(texts), data[:cut])


VALUES = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    st.lists(FLOATS.filter(np.isfinite), min_size=1, max_size=4),
    st.lists(st.text(max_size=4), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.integers(-5, 5),
    st.just([]),
)
# tensorflow/core/example/{example,feature}.proto; a map is a list of entries.
EXAMPLE = """
name: "example.proto"
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: "Features" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Entry" } }
message_type { name: "Entry"
  field { name: "key" number: 1 type: TYPE_STRING }
  field { name: "value" number: 2 type: TYPE_MESSAGE type_name: "Feature" } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes" number: 1 type: TYPE_MESSAGE type_name: "Bytes" oneof_index: 0 }
  field { name: "floats" number: 2 type: TYPE_MESSAGE type_name: "Floats" oneof_index: 0 }
  field { name: "ints" number: 3 type: TYPE_MESSAGE type_name: "Ints" oneof_index: 0 } }
message_type { name: "Bytes"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "Floats"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Ints"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
"""
FEATURES = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)


@given(st.lists(FEATURES, min_size=1, max_size=3))
def test_examples_are_those_of_tensorflow(examples: list[dict[str, Any]]) -> None:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(EXAMPLE, descriptor_pb2.FileDescriptorProto()))
    parse = message_factory.GetMessageClass(pool.FindMessageTypeByName("Example")).FromString
    found = read_examples({"examples": examples, "context": {"context": 1}})
    for text, example in zip(found.tolist(), examples, strict=True):
        entries = {entry.key: entry.value for entry in parse(text).features.feature}
        assert entries.keys() == {"context", *example}
        assert [*entries["context"].ints.value] == [1]
        for name, value in example.items():
            values = value if isinstance(value, list) else [value]
            kind = entries[name].WhichOneof("kind")
            kinds = {float: "floats", str: "bytes", int: "ints", bool: "ints"}
            assert kind == (kinds[type(values[0])] if values else None)
            stored = [*getattr(entries[name], kind).value] if kind else []
            assert stored == [v.encode() if isinstance(v, str) else v for v in values]


def test_text_of_an_example_is_in_its_list_of_bytes() -> None:
    (text,) = read_examples({"examples": [{"x": "a"}]}).tolist()
    assert text == b"\n\x0c\n\n\n\x01x\x12\x05\n\x03\n\x01a"


def test_examples_may_have_as_many_bytes_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"examples": [{"x": "a" * 40}, {"x": 1}]}
    size = sum(map(len, read_examples(content)))
    monkeypatch.setattr(example_format, "MAX_BYTES", size)
    read_examples(content)
    monkeypatch.setattr(example_format, "MAX_BYTES", size - 1)
    with pytest.raises(RequestError, match="more than"):
        read_examples(content)


def test_answers_have_a_result_for_each_example() -> None:
    scores, classes = np.array([[0.25, 0.75]]), np.array([[b"a", b"b"]], object)
    pairs = {"results": [[["a", 0.25], ["b", 0.75]]]}
    assert classify_answer({"scores": scores, "classes": classes}, 1) == pairs
    assert classify_answer({"scores": scores}, 1) == {"results": [[["", 0.25], ["", 0.75]]]}
    assert classify_answer({"classes": classes}, 1) == {"results": [[["a", 0.0], ["b", 0.0]]]}
    for outputs in (np.array([1.0, 2.0]), np.array([[1.0], [2.0]])):
        assert regress_answer({"outputs": outputs}, 2) == {"results": [1.0, 2.0]}
    for shape in ((3,), (2, 2), (1, 2), ()):
        with pytest.raises(RequestError, match="for 2 examples; expected 1 axes"):
            regress_answer({"outputs": np.zeros(shape)}, 2)
        if shape != (2, 2):
            with pytest.raises(RequestError, match="for 2 examples; expected 2 axes"):
                classify_answer({"scores": np.zeros(shape)}, 2)
