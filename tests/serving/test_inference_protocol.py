"""The Open Inference Protocol v2: its addresses, JSON, and tensors as bytes."""

import json
import struct
from typing import Any

import numpy as np
import pytest

from sparkdl.inference.loader_model import LoaderModel
from sparkdl.serving.model_process import platform_of
from tests.serving.fakes import client, half_plus_three, named

HOST = {"Host": "localhost"}
HALF = "/v2/models/half_plus_three"


def get(path: str) -> tuple[int, Any]:
    response = client(half_plus_three(), named()).get(path, headers=HOST)
    return response.status_code, json.loads(response.text)


def infer(body: Any, name: str = "half_plus_three", **headers: str) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    page = client(half_plus_three(), named())
    return page.post(f"/v2/models/{name}/infer", data=data, headers={**HOST, **headers})


def x(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0], **fields}


def test_the_server_and_its_models_are_described() -> None:
    assert get("/v2")[1]["name"] == "sparkdl"
    assert get("/v2/health/live") == (200, {"live": True})
    assert get("/v2/health/ready") == (200, {"ready": True})
    assert get(f"{HALF}/ready") == (200, {"name": "half_plus_three", "ready": True})
    assert get(f"{HALF}/versions/123") == (
        200,
        {
            "name": "half_plus_three",
            "versions": ["123"],
            "platform": "tensorflow_savedmodel",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
        },
    )
    assert get("/v2/models/none")[0] == 404
    assert get(f"{HALF}/versions/x")[0] == 400
    assert get(f"{HALF}/infer")[0] == 404
    assert get("/v2/none")[0] == 404


def test_a_request_gets_its_id_and_flat_data() -> None:
    response = infer({"id": "42", "inputs": [x()]})
    assert response.status_code == 200
    assert json.loads(response.text) == {
        "model_name": "half_plus_three",
        "model_version": "123",
        "id": "42",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [3.5, 4.0]}],
    }


def test_outputs_may_be_chosen_and_data_nested() -> None:
    inputs = [
        {"name": "tag", "datatype": "BYTES", "shape": [1], "data": ["foo"]},
        {"name": "signal", "datatype": "FP32", "shape": [1, 5], "data": [[1, 2, 3, 4, 5]]},
        {"name": "sensor", "datatype": "INT64", "shape": [1, 2, 2], "data": [1, 2, 3, 4]},
    ]
    response = infer({"inputs": inputs, "outputs": [{"name": "sum"}]}, "named")
    (output,) = json.loads(response.text)["outputs"]
    assert output == {"name": "sum", "datatype": "FP32", "shape": [1], "data": [25.0]}


def test_tensors_are_read_and_written_as_bytes() -> None:
    tags = struct.pack("<I", 3) + b"foo" + struct.pack("<I", 0)
    signal = np.arange(10, dtype="<f4").tobytes()
    sensor = np.ones(8, "<i8").tobytes()
    described = [("tag", "BYTES", [2], tags), ("signal", "FP32", [2, 5], signal)]
    described.append(("sensor", "INT64", [2, 2, 2], sensor))
    inputs = [
        {"name": n, "datatype": t, "shape": s, "parameters": {"binary_data_size": len(d)}}
        for n, t, s, d in described
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    response = infer(head + tags + signal + sensor, "named", **length)
    assert response.status_code == 200
    size = int(response.headers["Inference-Header-Content-Length"])
    outputs = json.loads(response.data[:size])["outputs"]
    assert [output["parameters"]["binary_data_size"] for output in outputs] == [8, 11]
    assert np.frombuffer(response.data[size:][:8], "<f4").tolist() == [14.0, 39.0]
    assert response.data[size + 8 :] == tags


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "'inputs' is missing"),
        ({"inputs": [3]}, "no input None"),
        ({"inputs": [x(name="z")]}, "no input 'z'"),
        ({"inputs": [x(), x()]}, "twice"),
        ({"inputs": [x(datatype="FP64")]}, "expected FP32"),
        ({"inputs": [x(shape=[3])]}, "but its shape is"),
        ({"inputs": [x(shape=[-2])]}, "list of sizes"),
        ({"inputs": [x(shape=[1, 2])]}, "has shape"),
        ({"inputs": [x(data=None)]}, "no list 'data'"),
        ({"inputs": [x(data=["a", "b"])]}, "not of expected type"),
        ({"inputs": [x(parameters={"binary_data_size": 8})]}, "binary_data_size"),
        ({"inputs": [x()], "outputs": [{"name": "z"}]}, "no output 'z'"),
        ({"inputs": [x()], "parameters": {"signature_name": "z"}}, "not found in signature def"),
        (b"no json", "JSON Parse error"),
    ],
)
def test_a_wrong_request_is_status_400(body: Any, message: str) -> None:
    response = infer(body)
    assert response.status_code == 400
    assert message in json.loads(response.text)["error"]


def test_the_versions_of_all_models_are_listed() -> None:
    page = client(half_plus_three(), half_plus_three(1), named())
    for body in (b"", b"{}", b'{"ready": true}'):
        response = page.post("/v2/repository/index", body, headers=HOST)
        assert response.status_code == 200
        assert [(one["name"], one["version"], one["state"]) for one in response.json] == [
            *(("half_plus_three", "123", "READY"), ("named", "1", "READY")),
        ]
    assert page.get("/v2/repository/index", headers=HOST).status_code == 404
    assert page.post("/v2/repository/index", b"[]", headers=HOST).status_code == 400


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/v2/systemsharedmemory/region/r/register", "send the tensors in the request"),
        ("/v2/cudasharedmemory/status", "send the tensors in the request"),
        ("/v2/repository/models/half_plus_three/load", "loads and unloads models by itself"),
    ],
)
def test_what_only_triton_has_is_status_501_with_the_reason(path: str, text: str) -> None:
    response = client(half_plus_three()).post(path, b"{}", headers=HOST)
    assert response.status_code == 501 and text in response.json["error"]


def test_shared_memory_and_classes_are_status_501() -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    for body in (
        {"inputs": [x(parameters=region)]},
        {"inputs": [x()], "outputs": [{"name": "y", "parameters": region}]},
        {"inputs": [x()], "outputs": [{"name": "y", "parameters": {"classification": 2}}]},
    ):
        assert infer(body).status_code == 501


@pytest.mark.parametrize("length", ["-1", "x", "100000", "²"])
def test_a_wrong_length_of_the_json_is_status_400(length: str) -> None:
    headers = {"Inference-Header-Content-Length": length}
    try:
        response = infer({"inputs": [x()]}, **headers)
    except UnicodeEncodeError:
        pytest.skip("the client refuses the header")
    assert response.status_code == 400


@pytest.mark.parametrize(
    ("loader", "platform"),
    [
        ("onnx", "onnxruntime_onnx"),
        ("torch.export", "pytorch_libtorch"),
        ("sklearn", "sklearn"),
        ("embedder:load", "python"),
    ],
)
def test_the_platform_is_that_of_the_loader(loader: str, platform: str) -> None:
    assert platform_of(LoaderModel(loader=loader, inputs=())) == platform
