"""TensorFlow Serving's gRPC API, asked by its published stubs."""

import contextlib
import gc
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl import serving
from sparkdl.errors import ConfigError
from sparkdl.serving import Server, processes
from sparkdl.serving.model_set import ModelSet
from tests.helpers.processes import eventually
from tests.serving.functions import save_functions, save_sum

pytestmark = pytest.mark.slow

grpc = pytest.importorskip("grpc")
pytest.importorskip("tensorflow_serving", reason="sparkdl-platform[serving-grpc] is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = str(tmp_path_factory.mktemp("grpc") / "functions")
    save_functions(folder)
    with serving.start(folder, port=0, grpc_port=0, batching=True, max_body_mb=1) as server:
        yield server


class Client:
    """The stubs of TensorFlow Serving."""

    def __init__(self, server: Server, **metadata: str) -> None:
        from tensorflow_serving.apis import model_service_pb2_grpc as models
        from tensorflow_serving.apis import prediction_service_pb2_grpc as predictions

        assert server.grpc_address
        self.channel = grpc.insecure_channel(server.grpc_address)
        self.predictions = predictions.PredictionServiceStub(self.channel)
        self.models = models.ModelServiceStub(self.channel)
        self._options: dict[str, Any] = {"timeout": 60, "metadata": [*metadata.items()]}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self.channel.close()

    def predict(self, inputs: dict[str, Any], outputs: Any = (), **spec: Any) -> Any:
        request = predict_request(inputs, outputs, **spec)
        return self.predictions.Predict(request, **self._options)

    def classify(self, examples: Any, context: Any = None) -> Any:
        from tensorflow_serving.apis.classification_pb2 import ClassificationRequest

        request = of_examples(ClassificationRequest(), examples, context)
        fill(request.model_spec, name="functions", signature_name="classify")
        return self.predictions.Classify(request, **self._options)

    def regress(self, examples: Any, **spec: Any) -> Any:
        from tensorflow_serving.apis.regression_pb2 import RegressionRequest

        request = of_examples(RegressionRequest(), examples)
        fill(request.model_spec, name="functions", **spec)
        return self.predictions.Regress(request, **self._options)

    def status(self, name: str, **version: Any) -> Any:
        from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest

        request = GetModelStatusRequest()
        fill(request.model_spec, name=name, **version)
        return self.models.GetModelStatus(request, **self._options)

    def metadata(self, name: str, *fields: str) -> Any:
        from tensorflow_serving.apis.get_model_metadata_pb2 import GetModelMetadataRequest

        request = GetModelMetadataRequest(metadata_field=fields)
        request.model_spec.name = name
        return self.predictions.GetModelMetadata(request, **self._options)


def fill(spec: Any, name: str, version: int | None = None, **fields: str) -> None:
    spec.name = name
    if version is not None:
        spec.version.value = version
    for key, value in fields.items():
        setattr(spec, key, value)


def of_examples(request: Any, examples: Any, context: Any = None) -> Any:
    """Fill a request with examples of floats, each with the features of the context."""
    given = request.input.example_list
    if context is not None:
        given = request.input.example_list_with_context
        for name, values in context.items():
            given.context.features.feature[name].float_list.value.extend(values)
    for example in examples:
        features = given.examples.add().features
        for name, values in example.items():
            features.feature[name].float_list.value.extend(values)
    return request


def predict_request(inputs: dict[str, Any], outputs: Any = (), **spec: Any) -> Any:
    import tensorflow as tf
    from tensorflow_serving.apis.predict_pb2 import PredictRequest

    request = PredictRequest(output_filter=outputs)
    fill(request.model_spec, **{"name": "functions", **spec})
    for name, value in inputs.items():
        is_made = not isinstance(value, np.ndarray | list | float)
        request.inputs[name].CopyFrom(value if is_made else tf.make_tensor_proto(value))
    return request


def arrays(response: Any) -> dict[str, Any]:
    import tensorflow as tf

    return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}


def test_rows_are_predicted(server: Server) -> None:
    with Client(server) as client:
        response = client.predict({"tag": [b"a", b"\xff"], "x": np.array([1.0, 2.0], "float32")})
        answer = arrays(response)
        assert answer["x"].tolist() == [2.0, 4.0] and answer["x"].dtype == np.float32
        assert answer["text"].tolist() == [b"a!", b"\xff!"]
        spec = response.model_spec
        assert (spec.name, spec.version.value, spec.signature_name) == (
            *("functions", 1, "serving_default"),
        )
        rows = np.arange(50, dtype="int32")
        answer = arrays(client.predict({"x": rows}, signature_name="picky", version=1))
        assert answer["y"].tolist() == (rows + 1).tolist()


def test_outputs_are_filtered_and_ragged_inputs_and_half_floats_are_read(server: Server) -> None:
    import tensorflow as tf

    with Client(server) as client:
        splits = {"x": np.array([1, 2, 3], "float32"), "x_1": np.array([0, 2, 2, 3])}
        answer = client.predict(splits, ["sum"], signature_name="ragged")
        assert {k: v.tolist() for k, v in arrays(answer).items()} == {"sum": [3.0, 0.0, 3.0]}
        halves = tf.make_tensor_proto([1.5, -3.0], tf.bfloat16)
        answer = arrays(client.predict({"x": halves}, signature_name="halves"))
        assert answer["y"].astype(float).tolist() == [3.0, -6.0]


def test_status_and_metadata_are_those_of_the_saved_model(server: Server) -> None:
    from tensorflow_serving.apis.get_model_metadata_pb2 import SignatureDefMap

    with Client(server) as client:
        (state,) = client.status("functions").model_version_status
        assert (state.version, state.State.Name(state.state)) == (1, "AVAILABLE")
        assert state.status.error_code == 0
        response = client.metadata("functions", "signature_def")
        signatures = SignatureDefMap()
        assert response.metadata["signature_def"].Unpack(signatures)
        picky = signatures.signature_def["picky"]
        assert picky.method_name == "tensorflow/serving/predict"
        assert [dim.size for dim in picky.inputs["x"].tensor_shape.dim] == [-1]
        assert response.model_spec.version.value == 1


def test_examples_are_classified(server: Server) -> None:
    with Client(server) as client:
        response = client.classify([{"x": [0.25, 1.0]}, {"x": [0.0, 2.0]}])
        answers = [
            [(one.label, one.score) for one in answer.classes]
            for answer in response.result.classifications
        ]
        assert answers == [[("a", 0.5), ("b", 2.0)], [("a", 0.0), ("b", 4.0)]]
        spec = response.model_spec
        assert (spec.name, spec.version.value, spec.signature_name) == ("functions", 1, "classify")
        # The features of the context belong to each example.
        response = client.classify([{}, {"y": [1.0]}], context={"x": [1.0, 3.0]})
        scores = [[one.score for one in a.classes] for a in response.result.classifications]
        assert scores == [[2.0, 6.0], [2.0, 6.0]]


def test_examples_are_regressed(server: Server) -> None:
    with Client(server) as client:
        response = client.regress([{"x": [0.25]}, {"x": [3.0]}], signature_name="regress")
    assert [one.value for one in response.result.regressions] == [0.5, 6.0]


def test_errors_have_the_codes_of_tensorflow_serving(server: Server) -> None:
    import tensorflow as tf

    numbers = np.array([1, 2], "int32")
    picky = {"signature_name": "picky"}
    bomb = tf.make_tensor_proto([1], tf.int32)
    bomb.tensor_shape.dim[0].size = 1 << 33
    texts = tf.make_tensor_proto([b"a" * 1000])
    texts.tensor_shape.dim[0].size = 1 << 16
    joined = {"tag": texts, "x": np.zeros(1, "float32")}
    cut = tf.make_tensor_proto([1, 2, 3], tf.int32)
    cut.tensor_shape.dim[0].size = 7
    wide = tf.make_tensor_proto([1.5], tf.bfloat16)
    wide.tensor_content = b""
    wide.half_val.append(70_000)
    short = tf.make_tensor_proto(np.zeros(7, "int32"))
    short.tensor_content = b""
    short.int_val.extend([1, 2, 3])
    splits = {"x": [b"a"], "x_1": np.array([0, 57, 1])}
    words = {"signature_name": "words"}
    with Client(server) as client:
        for code, text, call in (
            ("NOT_FOUND", "Servable not found", lambda: client.predict({}, name="none")),
            ("NOT_FOUND", "Specific(functions, 9)", lambda: client.predict({}, version=9)),
            ("INVALID_ARGUMENT", "label: x", lambda: client.predict({}, version_label="x")),
            ("INVALID_ARGUMENT", "Missing ModelSpec", lambda: client.predict({}, name="")),
            ("FAILED_PRECONDITION", '"no" not', lambda: client.predict({}, signature_name="no")),
            ("INVALID_ARGUMENT", '"no" not', lambda: client.regress([{}], signature_name="no")),
            ("INVALID_ARGUMENT", "the inputs none", lambda: client.predict({}, **picky)),
            ("INVALID_ARGUMENT", "dtype float32", lambda: client.predict({"x": [1.0]}, **picky)),
            ("INVALID_ARGUMENT", "expected [-1]", lambda: client.predict({"x": [[1]]}, **picky)),
            ("INVALID_ARGUMENT", "bytes are", lambda: client.predict({"x": bomb}, **picky)),
            (
                *("INVALID_ARGUMENT", "bytes are"),
                lambda: client.predict(joined, signature_name="join"),
            ),
            ("INVALID_ARGUMENT", "of its shape", lambda: client.predict({"x": cut}, **picky)),
            (
                *("INVALID_ARGUMENT", "of its shape"),
                lambda: client.predict({"x": wide}, signature_name="halves"),
            ),
            ("INVALID_ARGUMENT", "below", lambda: client.predict({"x": -numbers}, **picky)),
            ("INVALID_ARGUMENT", "splits", lambda: client.predict(splits, **words)),
            (
                *("INVALID_ARGUMENT", "be in the set {y}"),
                lambda: client.predict({"x": numbers}, ["z"], **picky),
            ),
            ("INVALID_ARGUMENT", "Input is empty", lambda: client.classify([])),
            ("INVALID_ARGUMENT", "Feature: x", lambda: client.classify([{"y": [1.0]}])),
            ("INVALID_ARGUMENT", "Expected regress", lambda: client.regress([{"x": [1.0]}])),
            ("NOT_FOUND", "of model none", lambda: client.status("none")),
            ("NOT_FOUND", "version 9", lambda: client.status("functions", version=9)),
            ("INVALID_ARGUMENT", "at least one", lambda: client.metadata("functions")),
            ("INVALID_ARGUMENT", "not supported", lambda: client.metadata("functions", "x")),
            ("UNIMPLEMENTED", "ragged", lambda: client.predict(
                {"x": np.array([1.0], "float32"), "x_1": np.array([0, 1])}, signature_name="ragged"
            )),
            ("RESOURCE_EXHAUSTED", "message larger", lambda: client.predict(
                {"x": np.zeros(1 << 19, "int32")}, **picky
            )),
        ):  # fmt: skip
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() == grpc.StatusCode[code], (text, caught.value)
            assert text in caught.value.details(), caught.value
        for method, data, code in (
            ("PredictionService/Predict", b"\xff\xff", "INVALID_ARGUMENT"),
            ("PredictionService/MultiInference", b"", "UNIMPLEMENTED"),
            ("ModelService/HandleReloadConfigRequest", b"", "UNIMPLEMENTED"),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                client.channel.unary_unary(f"/tensorflow.serving.{method}")(data, timeout=240)
            assert caught.value.code() == grpc.StatusCode[code]
            assert caught.value.details() != "Method not found!"
        # A tensor with fewer values than its shape repeats the last one, as in TensorFlow.
        answer = arrays(client.predict({"x": short}, **picky))
        assert answer["y"].tolist() == [2, 3, 4, 4, 4, 4, 4]


def test_requests_are_counted_and_keep_their_id(server: Server) -> None:
    with Client(server) as client:
        request = predict_request({"x": np.array([1], "int32")}, signature_name="picky")
        options = {"metadata": [("x-request-id", "order-17")], "timeout": 60}
        _, call = client.predictions.Predict.with_call(request, **options)
        assert ("x-request-id", "order-17") in [tuple(item) for item in call.initial_metadata()]
    with urllib.request.urlopen(f"{server.url}/monitoring/prometheus/metrics") as page:
        text = page.read().decode()
    assert 'method="predict",model="functions",status="200",version="1"' in text


def models_of(server: Server) -> ModelSet:
    """The models of a server in this process."""
    stop: Any = server._stop
    models: ModelSet = stop.args[0]
    return models


def test_the_token_is_needed_on_another_address_and_requests_are_answered_at_the_end(
    tmp_path: Path,
) -> None:
    folder = str(save_sum(tmp_path / "sum", 1.0))
    batching = {"timeout_ms": 1500}
    server = serving.start(folder, host="0.0.0.0", port=0, grpc_port=0, batching=batching)
    inputs = {"x": np.array([1.0], "float32")}
    with Client(server) as stranger, Client(server, authorization="Bearer guess") as guesser:
        for client in (stranger, guesser):
            with pytest.raises(grpc.RpcError) as caught:
                client.predict(inputs, name="sum")
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    answers: list[Any] = []
    with Client(server, authorization=f"Bearer {server.token}") as client:
        thread = threading.Thread(target=lambda: answers.append(client.predict(inputs, name="sum")))
        thread.start()
        version = models_of(server).find("sum")
        (queue,) = version._queues.values()
        assert eventually(lambda: queue._num_rows == 1)
        server.stop()
        thread.join()
    assert arrays(answers[0])["y"].tolist() == [2.0]


def test_both_apis_end_together_and_a_request_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: Any
) -> None:
    server = serving.start(str(save_sum(tmp_path / "sum", 1.0)), port=0, grpc_port=0)
    entered, opened = threading.Event(), threading.Event()

    def run(*_: Any) -> Any:
        entered.set()
        assert opened.wait(240)
        raise ValueError("too late")

    monkeypatch.setattr(models_of(server).find("sum"), "run", run, raising=False)
    port = int(server.url.rsplit(":", 1)[1])
    given_up = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    thread = threading.Thread(target=server.stop, kwargs={"timeout_s": 3.0})
    with Client(server) as client, contextlib.ExitStack() as stack:
        stack.callback(opened.set)
        call = client.predictions.Predict.future(
            predict_request({"x": np.array([1.0], "float32")}, name="sum"), timeout=240
        )
        assert entered.wait(120)
        begun = time.monotonic()
        thread.start()
        # HTTP takes no more connections while the request by gRPC goes on.
        assert eventually(lambda: not is_open(port))
        assert thread.is_alive() or time.monotonic() - begun > 2.5
        thread.join()
        assert 2.5 < time.monotonic() - begun < 200
        assert call.exception().code() in given_up


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def own_threads() -> set[threading.Thread]:
    """The threads of servers."""
    return {t for t in threading.enumerate() if t.name.startswith("sparkdl-serving")}


def test_the_threads_end_with_the_server(tmp_path: Path) -> None:
    before = own_threads()
    with serving.start(str(save_sum(tmp_path / "sum", 1.0)), port=0, grpc_port=0) as server:
        with Client(server) as client:
            client.predict({"x": np.array([1.0], "float32")}, name="sum")
        assert any(t.name.startswith("sparkdl-serving-grpc") for t in own_threads() - before)
    assert eventually(lambda: own_threads() <= before), own_threads() - before


def test_a_start_that_fails_late_leaves_neither_ports_nor_threads(
    tmp_path: Path, monkeypatch: Any
) -> None:
    folder, log = str(save_sum(tmp_path / "sum", 1.0)), tmp_path / "log"
    ports: list[int] = []

    def fail(address: Any, *arguments: Any, grpc_address: str, **options: Any) -> None:
        ports.extend([address[1], int(grpc_address.rsplit(":")[-1])])
        raise RuntimeError("late")

    before = own_threads()
    monkeypatch.setattr(processes, "Server", fail)
    with pytest.raises(RuntimeError, match="late"):
        serving.start(folder, port=0, grpc_port=0, log=str(log), batching=True)
    assert eventually(lambda: gc.collect() >= 0 and own_threads() <= before), own_threads()
    assert not any(map(is_open, ports))


def test_a_port_that_cannot_be_used_is_refused(server: Server, tmp_path: Path) -> None:
    folder = str(save_sum(tmp_path / "sum", 1.0))
    assert server.grpc_address
    for port in (int(server.grpc_address.rsplit(":")[-1]), 1 << 20, "8500"):
        with pytest.raises(ConfigError, match=r"grpc_port is .* cannot be used"):
            serving.start(folder, port=0, grpc_port=port)


def test_missing_packages_are_named(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    with pytest.raises(
        ConfigError, match=r"tensorflow_serving.*pip install 'sparkdl-platform\[serving-grpc\]'"
    ):
        serving.start(str(tmp_path), grpc_port=0)
