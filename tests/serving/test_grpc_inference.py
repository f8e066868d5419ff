"""The Open Inference Protocol by gRPC. Real clients of it are in tests/clusters."""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sparkdl.serving.inference_messages import message_class
from tests.serving.fakes import FakeCatalog, FakeModel, half_plus_three, named, tensor

grpc = pytest.importorskip("grpc")
pytest.importorskip("tensorflow_serving", reason="sparkdl-platform[serving-grpc] is not installed")

SERVICE = "inference.GRPCInferenceService"


def narrow() -> FakeModel:
    """Inputs of the narrowest dtypes, which the protocol sends as wider ones."""
    from sparkdl.serving.signatures import Signature

    inputs = [
        *(tensor("small", "int8", None), tensor("positive", "uint16", None)),
        *(tensor("large", "uint64", None), tensor("half", "float16", None)),
    ]
    outputs = [(name, info) for name, info in inputs]
    signature = Signature(name="serving_default", inputs=dict(inputs), outputs=dict(outputs))
    return FakeModel("narrow", 1, {"serving_default": (signature, lambda **arrays: arrays)})


class Client:
    """Sends messages to a server."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)

    def ask(self, name: str, at: str = SERVICE, /, token: str = "", **fields: Any) -> Any:
        kind = "HealthCheck" if name == "Check" else name
        method = self.channel.unary_unary(
            f"/{at}/{name}",
            message_class(f"{kind}Request").SerializeToString,
            message_class(f"{kind}Response").FromString,
        )
        metadata = [("authorization", f"Bearer {token}")] if token else []
        request = message_class(f"{kind}Request")(**fields)
        return method(request, timeout=200, metadata=metadata)

    def infer(self, name: str, inputs: Any, raw: Any = (), **fields: Any) -> Any:
        sent = {"model_name": name, "inputs": inputs, "raw_input_contents": raw}
        return self.ask("ModelInfer", **{**sent, **fields})

    def refused(self, *args: Any, **fields: Any) -> tuple[str, str]:
        """The code and the reason of an error."""
        with pytest.raises(grpc.RpcError) as caught:
            self.infer(*args, **fields)
        return caught.value.code().name, caught.value.details()


def serve(**options: Any) -> Iterator[Client]:
    from sparkdl.serving.grpc_server import GrpcServer
    from sparkdl.serving.grpc_services import GrpcServices

    catalog = FakeCatalog([half_plus_three(), named(), narrow()])
    server = GrpcServer("127.0.0.1", 0, 1 << 20)
    server.start(GrpcServices(catalog, **options).handlers())
    client = Client(server.address)
    yield client
    client.channel.close()
    server.close()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    yield from serve()


def x(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2], **fields}


VALUES = {"contents": {"fp32_contents": [1.0, 2.0]}}


def parameter(name: str, **value: Any) -> dict[str, Any]:
    return {"key": name, "value": value}


def test_the_server_and_its_models_are_described(client: Client) -> None:
    assert client.ask("ServerLive").live and client.ask("ServerReady").ready
    assert client.ask("ModelReady", name="named").ready
    assert client.ask("ModelReady", name="named", version="1").ready
    assert client.ask("ServerMetadata").name == "sparkdl"
    described = client.ask("ModelMetadata", name="half_plus_three")
    assert (described.platform, [*described.versions]) == ("tensorflow_savedmodel", ["123"])
    assert [(i.name, i.datatype, [*i.shape]) for i in described.inputs] == [("x", "FP32", [-1])]
    index = client.ask("RepositoryIndex").models
    assert [(one.name, one.version, one.state) for one in index] == [
        *(("half_plus_three", "123", "READY"), ("named", "1", "READY"), ("narrow", "1", "READY")),
    ]
    assert client.ask("Check", "grpc.health.v1.Health").status == 1
    for code, call in (
        ("NOT_FOUND", lambda: client.ask("ModelReady", name="none")),
        ("NOT_FOUND", lambda: client.ask("ModelMetadata", name="none")),
        ("INVALID_ARGUMENT", lambda: client.ask("ModelReady", name="named", version="x")),
        ("NOT_FOUND", lambda: client.ask("Check", "grpc.health.v1.Health", service="x")),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code().name == code


def test_an_answer_has_the_form_of_its_request(client: Client) -> None:
    answer = client.infer("half_plus_three", [x(**VALUES)], id="42")
    assert (answer.model_name, answer.model_version, answer.id) == ("half_plus_three", "123", "42")
    (output,) = answer.outputs
    assert (output.name, output.datatype, [*output.shape]) == ("y", "FP32", [2])
    assert [*output.contents.fp32_contents] == [3.5, 4.0] and not answer.raw_output_contents
    answer = client.infer("half_plus_three", [x()], [struct.pack("<2f", 1.0, 2.0)])
    assert struct.unpack("<2f", answer.raw_output_contents[0]) == (3.5, 4.0)
    assert not answer.outputs[0].HasField("contents")


def test_strings_and_chosen_outputs(client: Client) -> None:
    inputs = [
        {**x(name="tag", datatype="BYTES"), "contents": {"bytes_contents": [b"a", b"\xff"]}},
        {**x(name="signal", shape=[2, 5]), "contents": {"fp32_contents": range(10)}},
        {**x(name="sensor", datatype="INT64", shape=[2, 2, 2])},
    ]
    inputs[2]["contents"] = {"int64_contents": [1] * 8}
    answer = client.infer("named", inputs, outputs=[{"name": "tag_bytes"}])
    (output,) = answer.outputs
    assert [*output.contents.bytes_contents] == [b"a", b"\xff"]


def test_narrow_numbers_are_sent_as_wide_ones(client: Client) -> None:
    half = np.array([0.5, -2.0], "<f2").tobytes()
    small = x(name="small", datatype="INT8", contents={"int_contents": [-128, 127]})
    positive = x(name="positive", datatype="UINT16", contents={"uint_contents": [0, 65535]})
    large = x(name="large", datatype="UINT64", contents={"uint64_contents": [0, 2**64 - 1]})
    # Half floats have no field.
    code, text = client.refused("narrow", [small, positive, large, x(name="half", datatype="FP16")])
    assert code == "INVALID_ARGUMENT" and "expected raw_input_contents" in text
    raw = [
        *(np.array([-128, 127], "int8").tobytes(), np.array([0, 65535], "<u2").tobytes()),
        *(np.array([0, 2**64 - 1], "<u8").tobytes(), half),
    ]
    for sent in (small, positive, large):
        sent.pop("contents")
    answer = client.infer("narrow", [small, positive, large, x(name="half", datatype="FP16")], raw)
    assert [*answer.raw_output_contents] == raw
    small["contents"] = {"int_contents": [-129, 0]}
    code, text = client.refused("narrow", [small])
    assert (code, text) == ("INVALID_ARGUMENT", "input 'small' has a number that INT8 cannot have")


@pytest.mark.parametrize(
    ("inputs", "raw", "fields", "code", "message"),
    [
        ([], [], {}, "INVALID_ARGUMENT", "'inputs' is missing"),
        ([x(name="z", **VALUES)], [], {}, "INVALID_ARGUMENT", "no input 'z'"),
        ([x(**VALUES)], [b"12345678"], {}, "INVALID_ARGUMENT", "beside raw_input_contents"),
        ([x()], [b"1", b"2"], {}, "INVALID_ARGUMENT", "1 inputs and 2 raw_input_contents"),
        ([x()], [b"123"], {}, "INVALID_ARGUMENT", "no multiple of 4"),
        ([x()], [], {}, "INVALID_ARGUMENT", "has 0 values, but its shape is [2]"),
        ([x(shape=[3], **VALUES)], [], {}, "INVALID_ARGUMENT", "has 2 values, but its shape"),
        ([x(shape=[-2], **VALUES)], [], {}, "INVALID_ARGUMENT", "list of sizes"),
        (
            [x(contents={"fp64_contents": [1.0, 2.0]})],
            *([], {}, "INVALID_ARGUMENT", "has fp64_contents; expected fp32_contents"),
        ),
        ([x(**VALUES)], [], {"model_version": "x"}, "INVALID_ARGUMENT", "Failed to convert"),
        (
            [x(**VALUES)],
            [],
            {"parameters": [parameter("signature_name", string_param="z")]},
            *("INVALID_ARGUMENT", '"z" not found in signature def'),
        ),
        (
            [x(parameters=[parameter("shared_memory_region", string_param="r")])],
            *([], {}, "UNIMPLEMENTED", "'x' is in shared memory"),
        ),
        (
            [x(**VALUES)],
            [],
            {
                "outputs": [
                    {"name": "y", "parameters": [parameter("classification", int64_param=1)]}
                ]
            },
            *("UNIMPLEMENTED", "as classes"),
        ),
    ],
)
def test_a_wrong_request_has_its_code(
    client: Client, inputs: Any, raw: Any, fields: Any, code: str, message: str
) -> None:
    found, text = client.refused("half_plus_three", inputs, raw, **fields)
    assert found == code and message in text, text
    assert client.refused("none", inputs)[0] == "NOT_FOUND"


def test_what_only_triton_has_is_refused_with_the_reason(client: Client) -> None:
    for method, text in (
        ("SystemSharedMemoryRegister", "send the tensors in the request"),
        ("CudaSharedMemoryStatus", "send the tensors in the request"),
        ("RepositoryModelLoad", "loads and unloads models by itself"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            client.channel.unary_unary(f"/{SERVICE}/{method}")(b"", timeout=200)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert text in caught.value.details()


def test_probes_need_no_token() -> None:
    token = "0123456789abcdef"
    for client in serve(token=token):
        assert client.ask("ServerReady").ready
        assert client.ask("Check", "grpc.health.v1.Health").status == 1
        assert client.refused("half_plus_three", [x(**VALUES)])[0] == "UNAUTHENTICATED"
        assert client.ask("ServerMetadata", token=token).name == "sparkdl"
