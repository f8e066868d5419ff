"""Models that hang: health and the other models are answered, and each wait ends."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sparkdl.serving import grpc_services
from sparkdl.serving.application import Application
from sparkdl.serving.batching import Batching
from sparkdl.serving.loaded_version import LoadedVersion
from sparkdl.serving.places import MAX_OPEN, Places
from sparkdl.serving.request_error import RequestError
from tests.helpers.processes import eventually
from tests.serving.fakes import Client, FakeCatalog, half_plus_three

HOST = {"Host": "localhost"}
SIGNATURE = half_plus_three().signatures["serving_default"]


class Hanging:
    """A function that does not return before the end of the test."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.opened = threading.Event()

    def __call__(self, _: Any, arrays: Any) -> Any:
        self.num_calls += 1
        assert self.opened.wait(240)
        return [arrays[0]]


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    function = Hanging()
    yield function
    function.opened.set()


def version(hanging: Hanging, **options: Any) -> LoadedVersion:
    return LoadedVersion("m", 1, {"serving_default": SIGNATURE}, hanging, **options)


def test_a_model_holds_no_more_places_than_it_leaves() -> None:
    places = Places(8)
    with contextlib.ExitStack() as held:
        for model, num_held in (("a", 4), ("b", 2), ("c", 1)):
            for _ in range(num_held):
                held.enter_context(places.take(model))
            with pytest.raises(RequestError, match=f"{num_held} requests wait for the model"):
                held.enter_context(places.take(model))
    with places.take("d"):
        pass


@pytest.mark.parametrize("batching", [None, Batching(timeout_ms=0)])
def test_a_request_waits_until_its_deadline(hanging: Hanging, batching: Any) -> None:
    model = version(hanging, batching=batching)
    inputs = {"x": np.array([1.0], "float32")}
    for _ in range(2):
        with pytest.raises(RequestError) as caught:
            model.run(SIGNATURE, inputs, time.monotonic() + 0.05)
        assert (caught.value.code, caught.value.status) == ("DEADLINE_EXCEEDED", 504)
    if batching:
        # The second request did not come to the model, and is not computed any more.
        assert model._queues["serving_default"]._num_rows == 0
        assert hanging.num_calls == 1


INFER = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
PREDICT = {"instances": [1]}


@pytest.mark.parametrize("batching", [None, Batching(timeout_ms=0)])
@pytest.mark.parametrize(
    ("path", "body", "headers", "timeout_s"),
    [
        ("/v1/models/m:predict", PREDICT, {"X-Envoy-Expected-Rq-Timeout-Ms": "50"}, None),
        ("/v1/models/m:predict", PREDICT, {"X-Envoy-Expected-Rq-Timeout-Ms": "50"}, 600.0),
        ("/v1/models/m:predict", PREDICT, {"X-Envoy-Expected-Rq-Timeout-Ms": "600000"}, 0.05),
        ("/v1/models/m:predict", PREDICT, {"X-Envoy-Expected-Rq-Timeout-Ms": "0"}, 0.05),
        ("/v2/models/m/infer", {**INFER, "parameters": {"timeout": 50_000}}, {}, None),
        ("/v2/models/m/infer", {**INFER, "parameters": {"timeout": 600_000_000}}, {}, 0.05),
    ],
)
def test_a_request_by_http_ends_at_its_deadline_and_leaves_its_place(
    hanging: Hanging, batching: Any, path: str, body: Any, headers: Any, timeout_s: Any
) -> None:
    model = version(hanging, batching=batching)
    noted: list[Any] = []
    application = Application(FakeCatalog([model]), timeout_s=timeout_s, observers=[noted.append])
    application._places = places = Places(8)
    client = Client(application)
    for _ in range(6):  # More than the places that one model may hold.
        answer = client.post(path, json=body, headers={**HOST, **headers})
        assert (answer.status_code, answer.json) == (
            504,
            {"error": "the model did not answer before the deadline"},
        )
    assert [call.status for call in noted] == [504] * 6
    assert places._num_free == 8
    if batching:
        # Only the first request came to the model, and the others are not computed any more.
        assert model._queues["serving_default"]._num_rows == 0
        assert hanging.num_calls == 1


def test_a_request_that_is_answered_in_time_has_no_error(hanging: Hanging) -> None:
    hanging.opened.set()
    client = Client(Application(FakeCatalog([version(hanging)]), timeout_s=200.0))
    headers = {**HOST, "X-Envoy-Expected-Rq-Timeout-Ms": "150000"}
    answer = client.post("/v1/models/m:predict", json=PREDICT, headers=headers)
    assert (answer.status_code, answer.json) == (200, {"predictions": [1.0]})


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²", "9" * 400])
def test_a_deadline_that_is_no_number_is_refused(hanging: Hanging, text: str) -> None:
    client = Client(Application(FakeCatalog([version(hanging)])))
    headers = {**HOST, "X-Envoy-Expected-Rq-Timeout-Ms": text}
    answer = client.post("/v1/models/m:predict", json=PREDICT, headers=headers)
    assert answer.status_code == 400 and "expected a number of milliseconds" in answer.text
    for value in (text, True, -1, 1.5, [], 10**20):
        body = {**INFER, "parameters": {"timeout": value}}
        answer = client.post("/v2/models/m/infer", json=body, headers=HOST)
        assert answer.status_code == 400 and "no number of microseconds" in answer.text


def test_the_limit_of_the_server_ends_a_request_by_grpc(hanging: Hanging) -> None:
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("tensorflow_serving")
    from sparkdl.serving.grpc_server import GrpcServer
    from sparkdl.serving.inference_messages import message_class

    request = message_class("ModelInferRequest")(model_name="m")
    request.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    catalog = FakeCatalog([version(hanging)])
    for timeout_s, microseconds in ((0.05, 0), (0.05, 600_000_000), (None, 50_000)):
        entry = request.parameters.add(key="timeout")
        entry.value.int64_param = microseconds
        server = GrpcServer("127.0.0.1", 0, 1 << 20)
        services = grpc_services.GrpcServices(catalog, timeout_s=timeout_s)
        server.start(services.handlers())
        with grpc.insecure_channel(server.address) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as caught:
                infer(request.SerializeToString(), timeout=200)
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert caught.value.details() == "the model did not answer before the deadline"
            assert services._places._num_free == MAX_OPEN
        server.close()
        del request.parameters[:]


def test_other_models_are_answered_by_http(hanging: Hanging) -> None:
    # The client has four threads.
    client = Client(Application(FakeCatalog([version(hanging), half_plus_three()])))
    with ThreadPoolExecutor(5) as pool:
        hung = [
            pool.submit(client.post, "/v1/models/m:predict", b'{"instances": [1]}', headers=HOST)
            for _ in range(5)
        ]
        assert eventually(lambda: hanging.num_calls == 5)
        page = client.post(
            "/v1/models/half_plus_three:predict", b'{"instances": [1]}', headers=HOST
        )
        assert page.json == {"predictions": [3.5]}
        assert client.get("/v1/models/m", HOST).status_code == 200
        hanging.opened.set()
        assert {one.result().status_code for one in hung} == {200}


def test_other_models_are_answered_by_grpc(hanging: Hanging, monkeypatch: Any) -> None:
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("tensorflow_serving")
    from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest
    from tensorflow_serving.apis.predict_pb2 import PredictRequest, PredictResponse

    from sparkdl.serving.grpc_server import GrpcServer

    def request(name: str) -> bytes:
        message = PredictRequest()
        message.model_spec.name = name
        message.inputs["x"].dtype = 1  # DT_FLOAT
        message.inputs["x"].tensor_shape.dim.add(size=1)
        message.inputs["x"].float_val.append(1.0)
        return bytes(message.SerializeToString())

    places = Places(8)
    monkeypatch.setattr(grpc_services, "Places", lambda: places)
    catalog = FakeCatalog([version(hanging), half_plus_three()])
    server = GrpcServer("127.0.0.1", 0, 1 << 20)
    server.start(grpc_services.GrpcServices(catalog).handlers())
    with grpc.insecure_channel(server.address) as channel:
        predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        hung = [predict.future(request("m"), timeout=200) for _ in range(4)]
        assert eventually(lambda: hanging.num_calls == 4)
        with pytest.raises(grpc.RpcError) as caught:
            predict(request("m"), timeout=200)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "4 requests wait for the model m already; try again later"
        answer = PredictResponse.FromString(predict(request("half_plus_three"), timeout=200))
        assert answer.outputs["y"].float_val[:] or answer.outputs["y"].tensor_content
        status = channel.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")
        asked = GetModelStatusRequest()
        asked.model_spec.name = "m"
        assert status(asked.SerializeToString(), timeout=200)
        hanging.opened.set()
        assert all(one.result() for one in hung)
        hanging.opened.clear()
        with pytest.raises(grpc.RpcError) as caught:
            predict(request("m"), timeout=0.05)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        # The deadline of the client ends the wait of the server, too.
        assert eventually(lambda: places._num_free == 8)
    server.close()
