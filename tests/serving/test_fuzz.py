"""Requests to real models that fit more or less: none of them fails the server, or ends it."""

import functools
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sparkdl.serving.application import Application
from sparkdl.serving.batching import Batching
from sparkdl.serving.choice import Choice
from sparkdl.serving.infer_format import DATATYPES
from sparkdl.serving.loaded_version import load
from sparkdl.serving.model_set import ModelSet
from sparkdl.serving.served_model import ServedModel
from sparkdl.serving.signatures import Signature, TensorInfo
from sparkdl.serving.version_source import FolderSource
from tests.serving.fakes import Client
from tests.serving.functions import save_functions

pytestmark = pytest.mark.slow

URL = "/v1/models/functions"
# What TensorFlow Serving does not convert, and what it answers while it is busy.
NO_FAULT = {501, 503}

LEAVES = st.one_of(
    st.integers(-3, 9), st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3),
    st.sampled_from([10**400, "\ud800", {"b64": "aGk"}, {"b64": "!"}, {"b64": 1}]),
)  # fmt: skip
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4), max_leaves=10)
SIZES = st.lists(st.integers(0, 4), max_size=3) | st.lists(st.integers(0, 1 << 45), max_size=70)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelSet]:
    folder = str(tmp_path_factory.mktemp("fuzz") / "functions")
    save_functions(folder)
    batching = Batching(max_batch_size=4, timeout_ms=0)
    loader = functools.partial(load, batching=batching)
    models = ModelSet([ServedModel(FolderSource(folder), Choice(), loader)])
    models.start()
    yield models
    models.stop()
    models.close()


def fitting(info: TensorInfo) -> st.SearchStrategy[Any]:
    """Values that an input takes, apart from their numbers of rows."""
    numbers = st.integers(0, 100) if "int" in info.dtype else st.floats(-100, 100, width=16)
    values: st.SearchStrategy[Any] = numbers if info.dtype != "string" else st.text(max_size=3)
    for size in reversed(info.shape or (None,)):
        values = st.lists(values, min_size=size or 0, max_size=size or 3)
    return values


@st.composite
def requests(draw: Any, signatures: dict[str, Signature]) -> tuple[str, bytes, dict[str, str]]:
    """The path, the body and the headers of a request."""
    name = draw(st.sampled_from(sorted(k for k in signatures if not k.startswith("__"))))
    inputs = signatures[name].inputs
    values = {n: draw(st.one_of(fitting(i), fitting(i), ANYTHING)) for n, i in inputs.items()}
    kind = draw(st.sampled_from(["inputs", "instances", "examples", "data", "bytes"]))
    if kind in ("data", "bytes"):
        return draw(infer_requests(name, inputs, values, kind == "bytes"))
    body: dict[str, Any] = {"signature_name": name}
    if kind == "examples":
        features = st.dictionaries(st.sampled_from(["x", "y"]), ANYTHING, max_size=2)
        body |= {"examples": draw(st.lists(features | ANYTHING, max_size=3) | ANYTHING)}
        return f"{URL}:{draw(st.sampled_from(['classify', 'regress']))}", encode(body), {}
    if kind == "inputs":
        is_plain = len(values) == 1 and draw(st.booleans())
        body["inputs"] = values.popitem()[1] if is_plain else values
    elif len(inputs) > 1:
        row = st.fixed_dictionaries({n: fitting(i) | ANYTHING for n, i in inputs.items()})
        body["instances"] = draw(st.lists(row, max_size=3))
    else:
        body["instances"] = values.popitem()[1]
    return f"{URL}:predict", encode(body), {}


@st.composite
def infer_requests(
    draw: Any, name: str, inputs: dict[str, TensorInfo], values: dict[str, Any], is_binary: bool
) -> tuple[str, bytes, dict[str, str]]:
    tensors, parts = [], []
    for key, value in values.items():
        size = [len(value)] if isinstance(value, list) else []
        datatype = DATATYPES.get(inputs[key].dtype)
        tensor: dict[str, Any] = {
            "name": key,
            "shape": draw(st.just(size) | SIZES | ANYTHING),
            "datatype": draw(st.sampled_from([datatype, datatype, "FP32", "BYTES", "X"])),
        }
        if is_binary:
            text = struct.pack("<I", 1) + b"a"
            parts.append(draw(st.binary(max_size=16) | st.just(text * (size or [1])[0])))
            size_of = draw(st.just(len(parts[-1])) | ANYTHING)
            tensors.append({**tensor, "parameters": {"binary_data_size": size_of}})
        else:
            tensors.append({**tensor, "data": value})
    outputs = {"outputs": draw(ANYTHING)} if draw(st.booleans()) else {}
    parameters = {"signature_name": name, "binary_data_output": draw(st.booleans())}
    text = encode({"inputs": tensors, "parameters": parameters, "id": draw(LEAVES), **outputs})
    length = draw(st.sampled_from([str(len(text)), str(len(text)), "0", "-1", "9" * 5000]))
    header = {"Inference-Header-Content-Length": length} if is_binary else {}
    return "/v2/models/functions/infer", text + b"".join(parts), header


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_requests_that_fit_more_or_less_are_answered_with_a_reason(models: ModelSet) -> None:
    client = Client(Application(models))
    signatures = models.find("functions").signatures
    statuses: set[int] = set()

    @settings(
        max_examples=250,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(requests(dict(signatures)))
    def ask(request: tuple[str, bytes, dict[str, str]]) -> None:
        path, body, headers = request
        answer = client.post(path, data=body, headers={"Host": "localhost", **headers})
        statuses.add(answer.status_code)
        assert answer.status_code < 500 or answer.status_code in NO_FAULT, (request, answer.text)
        if answer.status_code >= 400:
            assert [*json.loads(answer.data)] == ["error"]
            assert "Traceback" not in answer.text and '.py"' not in answer.text

    ask()
    assert {200, 400} <= statuses


@pytest.mark.parametrize(
    "splits", [[], [0], [1, 3], [0, 57, 3], [0, -1, 3], [0, 2, 1, 3], [[0, 3]]]
)
def test_wrong_row_splits_are_refused_before_tensorflow_reads_beyond_the_values(
    models: ModelSet, splits: Any
) -> None:
    """TensorFlow itself ends the process at some of them."""
    client = Client(Application(models))
    body = {"signature_name": "words", "inputs": {"x": ["a", "b", "c"], "x_1": splits}}
    answer = client.post(f"{URL}:predict", json=body, headers={"Host": "localhost"})
    assert answer.status_code == 400 and "x_1" in answer.json["error"]


def test_bfloat16_is_read_as_bytes(models: ModelSet) -> None:
    data = struct.pack("<2f", 1.5, -3.0)
    tensor = {"name": "x", "datatype": "BF16", "shape": [2], "parameters": {"binary_data_size": 4}}
    text = encode({"inputs": [tensor], "parameters": {"signature_name": "halves"}})
    answer = Client(Application(models)).post(
        "/v2/models/functions/infer",
        data=text + data[2:4] + data[6:8],
        headers={"Host": "localhost", "Inference-Header-Content-Length": str(len(text))},
    )
    assert answer.json["outputs"] == [
        {"name": "y", "datatype": "BF16", "shape": [2], "data": [3.0, -6.0]}
    ]
