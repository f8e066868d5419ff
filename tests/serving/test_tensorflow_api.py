"""The examples of TensorFlow Serving's documentation of its REST API, and wrong requests."""

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest

from sparkdl.serving import example_format
from sparkdl.serving.signatures import Signature, TensorInfo
from tests.serving.fakes import FakeModel, client, half_plus_three, named

HOST = {"Host": "localhost:8501"}
HALF = "/v1/models/half_plus_three"


def post(path: str, body: Any, *models: FakeModel, **headers: str) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    page = client(*models or (half_plus_three(), named()))
    response = page.post(path, data=data, headers={**HOST, **headers})
    assert response.content_type == "application/json"
    assert "Traceback" not in response.text
    return response.status_code, json.loads(response.text)


def get(path: str) -> tuple[int, Any]:
    response = client(half_plus_three(), half_plus_three(1)).get(path, headers=HOST)
    return response.status_code, json.loads(response.text)


def test_the_examples_of_the_documentation_are_answered() -> None:
    assert post(f"{HALF}:predict", {"instances": [1.0, 2.0, 5.0]}) == (
        200,
        {"predictions": [3.5, 4.0, 5.5]},
    )
    body = {
        "signature_name": "tensorflow/serving/regress",
        "examples": [{"x": 1.0}, {"x": 2.0}],
    }
    assert post(f"{HALF}:regress", body) == (200, {"results": [3.5, 4.0]})
    assert post("/v1/models/half:predict", {"instances": [1.0, 5.0]}) == (
        404,
        {"error": "Servable not found for request: Latest(half)"},
    )
    assert get(HALF)[1] == {
        "model_version_status": [
            {
                "version": "123",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }


def test_rows_and_columns_of_named_inputs_give_the_same_values() -> None:
    rows = [
        {"tag": "foo", "signal": [1, 2, 3, 4, 5], "sensor": [[1, 2], [3, 4]]},
        {"tag": "bar", "signal": [3, 4, 1, 2, 5], "sensor": [[4, 5], [6, 8]]},
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    tags = [{"b64": "Zm9v"}, {"b64": "YmFy"}]
    assert post("/v1/models/named:predict", {"instances": rows}) == (
        200,
        {
            "predictions": [
                {"sum": 25.0, "tag_bytes": tags[0]},
                {"sum": 38.0, "tag_bytes": tags[1]},
            ]
        },
    )
    assert post("/v1/models/named:predict", {"inputs": columns}) == (
        200,
        {"outputs": {"sum": [25.0, 38.0], "tag_bytes": tags}},
    )


@pytest.mark.parametrize(
    "path",
    [
        f"{HALF}:predict",
        "/V1/Models/half_plus_three:PREDICT",
        f"{HALF}/versions/123:predict",
        f"{HALF}/labels/first:predict",
        "/v1/models/half%5Fplus_three:predict",
    ],
)
def test_a_version_or_a_label_is_part_of_the_address(path: str) -> None:
    models = half_plus_three(), half_plus_three(1)
    assert post(path, {"inputs": [2]}, *models) == (200, {"outputs": [4.0]})


def test_one_input_may_be_named_in_rows_and_columns() -> None:
    assert post(f"{HALF}:predict", {"instances": [{"x": 2}, {"x": 4}]})[1] == {
        "predictions": [4.0, 5.0]
    }
    assert post(f"{HALF}:predict", {"inputs": {"x": [2]}})[1] == {"outputs": [4.0]}
    assert post(f"{HALF}:predict", b'{"instances": [NaN, -Infinity]}')[0] == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"instances": [1], "inputs": [1]}, "only one of"),
        ({"instances": 1}, "to be an list/array"),
        ({"instances": []}, "No values in 'instances'"),
        ({"instances": [[1], [2]]}, "has shape"),
        ({"instances": ["a"]}, "not of expected type: float32"),
        ({"instances": [1, {"x": 1}]}, "got object at item 1"),
        ({"instances": [{"x": 1}, 1]}, "got list at item 1"),
        ({"instances": [{"z": 1}]}, "keys must be equal to: x"),
        ({"inputs": {"z": [1]}}, "Missing named input: x"),
        ({"inputs": None}, "Type: Null"),
        ({"instances": [1], "signature_name": "none"}, '"none" not found in signature def'),
        ({"instances": [1], "signature_name": 3}, "must be a string value"),
        (b"", "document is empty"),
        (b"[1]", "Is not object"),
        (b"{", "JSON Parse error"),
    ],
)
def test_a_wrong_body_is_status_400_with_the_reason(body: Any, message: str) -> None:
    status, answer = post(f"{HALF}:predict", body)
    assert status == 400
    assert [*answer] == ["error"] and message in answer["error"]


def test_a_whole_number_is_rounded_as_the_documentation_says() -> None:
    """Source: https://www.tensorflow.org/tfx/serving/api_rest#floating_point_precision"""
    status, answer = post(f"{HALF}:predict", {"instances": [1435774380, 16777217]})
    assert status == 200
    expected = np.array([1435774336, 16777216], "float32") / 2 + 3
    assert np.array(answer["predictions"], "float32").tolist() == expected.tolist()
    assert post(f"{HALF}:predict", b'{"instances": [1e39]}')[0] == 400


def test_several_inputs_need_names() -> None:
    for body in ({"instances": [1]}, {"inputs": [1]}):
        status, answer = post("/v1/models/named:predict", body)
        assert status == 400 and "sensor, signal, tag" in answer["error"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{HALF}/versions/7:predict", 404),
        (f"{HALF}/versions/99999999999999999999:predict", 400),
        (f"{HALF}/labels/none:predict", 400),
        (f"{HALF}:explain", 400),
        (f"{HALF}/versions/x:predict", 400),
        ("/v1/models/:predict", 400),
        ("/v1/", 400),
        ("/v3/models", 404),
        ("/", 404),
    ],
)
def test_an_address_that_does_not_exist_has_its_code(path: str, status: int) -> None:
    assert post(path, {"instances": [1.0]})[0] == status


def test_status_and_metadata_are_those_of_the_version() -> None:
    assert get("/v1/models/half")[0] == 404
    assert get("/v1/models")[0] == 400
    assert get(f"{HALF}:predict")[0] == 400
    version = get(f"{HALF}/versions/1")[1]["model_version_status"]
    assert [state["version"] for state in version] == ["1"]
    status, answer = get(f"{HALF}/labels/first/metadata")
    assert status == 200
    assert answer["model_spec"] == {
        "name": "half_plus_three",
        "signature_name": "",
        "version": "1",
    }
    assert "serving_default" in answer["metadata"]["signature_def"]["signature_def"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"examples": [{"x": 1.0}]}, "Expected regress signature"),
        ({"signature_name": "tensorflow/serving/regress"}, "'examples'"),
        ({"signature_name": "tensorflow/serving/regress", "examples": []}, "empty array"),
        ({"signature_name": "tensorflow/serving/regress", "examples": [1]}, "JSON object"),
        ({"signature_name": "tensorflow/serving/regress", "examples": [{"x": None}]}, "JSON type"),
        ({"signature_name": "tensorflow/serving/regress", "examples": [{"x": [1, 1.5]}]}, "kinds"),
        (
            {
                "signature_name": "tensorflow/serving/regress",
                "examples": [{"x": 1.0}],
                "context": {"x": 1.0},
            },
            "in 'context'",
        ),
    ],
)
def test_wrong_examples_are_status_400(body: Any, message: str) -> None:
    status, answer = post(f"{HALF}:regress", body)
    assert status == 400 and message in answer["error"]


def test_a_context_that_is_large_for_all_examples_together_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(example_format, "MAX_BYTES", 10_000)
    body = {
        "signature_name": "tensorflow/serving/regress",
        "context": {"x": "a" * 1000},
        "examples": [{}] * 11,
    }
    status, answer = post(f"{HALF}:regress", body)
    assert status == 400 and "more than 10000 bytes" in answer["error"]


def test_classes_have_labels_and_scores() -> None:
    signature = Signature(
        name="serving_default",
        inputs={"inputs": TensorInfo("inputs", "string", (None,))},
        outputs={
            "classes": TensorInfo("classes", "string", (None, None)),
            "scores": TensorInfo("scores", "float32", (None, None)),
        },
    )
    seen = []

    def function(inputs: Any) -> dict[str, Any]:
        seen.extend(inputs.tolist())
        scores = np.array([[0.25, 0.75]] * len(inputs), np.float32)
        return {"classes": np.array([[b"a", b"b"]] * len(inputs), object), "scores": scores}

    model = FakeModel("animals", 1, {"serving_default": (signature, function)})
    body = {
        "context": {"weight": [1.5, 2]},
        "examples": [{"image": {"b64": "aW1hZ2UgYnl0ZXM="}, "caption": "seaside", "n": [1, 2]}, {}],
    }
    status, answer = post("/v1/models/animals:classify", body, model)
    assert status == 400 and "kinds" in answer["error"]
    body["context"] = {"weight": [1.5, 2.0]}
    assert post("/v1/models/animals:classify", body, model) == (
        200,
        {"results": [[["a", 0.25], ["b", 0.75]]] * 2},
    )
    assert b"image bytes" in seen[0] and b"seaside" in seen[0] and b"weight" in seen[1]


def test_a_packed_body_is_unpacked_up_to_the_limit() -> None:
    body = json.dumps({"instances": [1.0]}).encode()
    encoding = {"Content-Encoding": "gzip"}
    assert post(f"{HALF}:predict", gzip.compress(body), **encoding)[0] == 200
    deflate = {"Content-Encoding": "deflate"}
    assert post(f"{HALF}:predict", zlib.compress(body), **deflate)[0] == 200
    assert post(f"{HALF}:predict", body, **deflate)[0] == 400
    assert post(f"{HALF}:predict", body, **encoding)[0] == 400
    assert post(f"{HALF}:predict", gzip.compress(body)[:-9], **encoding)[0] == 400
    page = client(half_plus_three(), max_body_bytes=1000)
    for data in (gzip.compress(b" " * 100_000), b" " * 2000):
        headers = {**HOST, **(encoding if len(data) < 2000 else {})}
        assert page.post(f"{HALF}:predict", data=data, headers=headers).status_code == 413


def test_a_model_that_fails_tells_the_client_nothing_of_its_code(caplog: Any) -> None:
    signature = half_plus_three().signatures["serving_default"]

    def fail(x: Any) -> dict[str, Any]:
        raise RuntimeError(f"secret of {x}")

    model = FakeModel("m", 1, {"serving_default": (signature, fail)})
    status, answer = post("/v1/models/m:predict", {"instances": [1.0]}, model)
    assert status == 500 and "secret" not in answer["error"]
    assert "secret" in caplog.text


def test_a_token_is_asked_for_except_by_probes() -> None:
    page = client(half_plus_three(), token="0123456789abcdef")
    body = json.dumps({"instances": [1.0]})
    for value in ("", "Bearer", "Bearer other", "Basic 0123456789abcdef", "Bearer é"):
        headers = {"Host": "models.example.org", "Authorization": value}
        response = page.post(f"{HALF}:predict", data=body, headers=headers)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
    headers = {"Host": "models.example.org", "Authorization": "Bearer 0123456789abcdef"}
    assert page.post(f"{HALF}:predict", data=body, headers=headers).status_code == 200
    for probe in ("/v2/health/live", "/v2/health/ready"):
        assert page.get(probe, headers={"Host": "10.0.0.7:8501"}).status_code == 200
    assert page.get("/v2", headers={"Host": "10.0.0.7:8501"}).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[", "192.168.0.2:80"])
def test_without_a_token_only_names_of_this_host_are_answered(host: str) -> None:
    page = client(half_plus_three())
    response = page.post(f"{HALF}:predict", data=b'{"instances": [1]}', headers={"Host": host})
    assert response.status_code == 403


@pytest.mark.parametrize(
    ("origin", "status"), [("https://evil.example", 403), ("null", 403), ("http://localhost", 200)]
)
def test_without_a_token_pages_of_other_hosts_are_refused(origin: str, status: int) -> None:
    page = client(half_plus_three())
    headers = {"Host": "127.0.0.2:8501", "Origin": origin}
    response = page.post(f"{HALF}:predict", data=b'{"instances": [1]}', headers=headers)
    assert response.status_code == status


@pytest.mark.parametrize("path", ["/metrics", "/monitoring/prometheus/metrics"])
def test_metrics_have_the_addresses_of_prometheus_and_tensorflow_serving(path: str) -> None:
    page = client(half_plus_three(), metrics=lambda: (b"up 1", "text/plain"))
    response = page.get(path, headers=HOST)
    assert (response.status_code, response.text) == (200, "up 1")


def test_probe_does_not_unpack_its_body() -> None:
    page = client(half_plus_three())
    headers = {"Host": "localhost", "Content-Encoding": "gzip"}
    response = page.post("/v2/health/live", data=b"no gzip", headers=headers)
    assert response.status_code == 404  # And not 400, as no gzip was read.
