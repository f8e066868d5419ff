"""Clients of Triton and KServe, which ask a model server; runs in an environment of their own.

    python serving_clients.py triton|triton-grpc|kserve|kserve-grpc HOST:PORT

The program prints what the clients got, as one JSON object. The model `functions` is that of
tests/serving/functions.py; neither TensorFlow nor sparkdl is imported.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np

MODEL = "functions"


def ask_triton(address: str) -> dict[str, Any]:
    """Ask with Triton's client, whose tensors are bytes."""
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

    client = triton.InferenceServerClient(address)
    tag = triton.InferInput("tag", [2], "BYTES")
    tag.set_data_from_numpy(np.array([b"a", b"\xff"], object))
    x = triton.InferInput("x", [2], "FP32")
    x.set_data_from_numpy(np.array([1.0, -2.5], np.float32))
    plain = triton.InferInput("x", [3], "INT32")
    plain.set_data_from_numpy(np.array([1, 2, 3], np.int32), binary_data=False)
    asked = [triton.InferRequestedOutput(name) for name in ("x", "text")]
    # The client is not closed: the join of its pool may raise gevent's LoopExit.
    both = client.infer(MODEL, [tag, x], outputs=asked, request_id="order-17")
    packing = {"request_compression_algorithm": "gzip"}
    whole = client.infer(MODEL, [tag, x], model_version="1", **packing)
    picky = client.infer(MODEL, [plain], parameters={"signature_name": "picky"})
    answers = [client.async_infer(MODEL, [tag, x]) for _ in range(16)]
    results = [answer.get_result().as_numpy("x").tolist() for answer in answers]
    try:
        client.infer("none", [x])
        error = ""
    except InferenceServerException as exc:
        error = f"{exc.status()} {exc.message()}"
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready(MODEL),
        "other_ready": client.is_model_ready("none"),
        "extensions": client.get_server_metadata()["extensions"],
        "inputs": client.get_model_metadata(MODEL)["inputs"],
        "id": both.get_response()["id"],
        "outputs": [output["name"] for output in both.get_response()["outputs"]],
        "x": both.as_numpy("x").tolist(),
        "text": [value.decode("latin-1") for value in both.as_numpy("text").tolist()],
        "whole": whole.as_numpy("x").tolist(),
        "picky": picky.as_numpy("y").tolist(),
        "at_once": results,
        "error": error,
    }


def ask_triton_by_grpc(address: str) -> dict[str, Any]:
    """Ask with Triton's client for gRPC."""
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    client = triton.InferenceServerClient(address)
    tag = triton.InferInput("tag", [2], "BYTES")
    tag.set_data_from_numpy(np.array([b"a", b"\xff"], object))
    x = triton.InferInput("x", [2], "FP32")
    x.set_data_from_numpy(np.array([1.0, -2.5], np.float32))
    plain = triton.InferInput("x", [3], "INT32")
    plain.set_data_from_numpy(np.array([1, 2, 3], np.int32))
    asked = [triton.InferRequestedOutput(name) for name in ("x", "text")]
    both = client.infer(MODEL, [tag, x], outputs=asked, request_id="order-17")
    whole = client.infer(MODEL, [tag, x], model_version="1", compression_algorithm="gzip")
    picky = client.infer(MODEL, [plain], parameters={"signature_name": "picky"})
    metadata = client.get_model_metadata(MODEL, as_json=True)
    (index,) = client.get_model_repository_index(as_json=True)["models"]
    shared = triton.InferInput("x", [2], "FP32")
    shared.set_shared_memory("region", 8)
    errors = []
    for call in (
        lambda: client.infer("none", [x]),
        lambda: client.infer(MODEL, [tag, shared]),
        lambda: client.register_system_shared_memory("region", "/region", 8),
    ):
        try:
            call()
            errors.append("")
        except InferenceServerException as exc:
            errors.append(str(exc.status()).removeprefix("StatusCode."))
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready(MODEL),
        "extensions": list(client.get_server_metadata().extensions),
        "platform": metadata["platform"],
        "inputs": metadata["inputs"],
        "index": index,
        "id": both.get_response().id,
        "outputs": [output.name for output in both.get_response().outputs],
        "x": both.as_numpy("x").tolist(),
        "text": [value.decode("latin-1") for value in both.as_numpy("text").tolist()],
        "whole": whole.as_numpy("x").tolist(),
        "picky": picky.as_numpy("y").tolist(),
        "errors": errors,
    }


async def ask_kserve_by_grpc(address: str) -> dict[str, Any]:
    """Ask with KServe's client for gRPC, once with fields of each type and once with bytes."""
    import grpc
    from kserve import InferenceGRPCClient, InferInput, InferRequest

    client = InferenceGRPCClient(address)
    tag = InferInput("tag", [2], "BYTES", data=[b"a", b"b"])
    x = InferInput("x", [2], "FP32", data=[1.0, -2.5])
    packed_tag, packed_x = InferInput("tag", [2], "BYTES"), InferInput("x", [2], "FP32")
    packed_tag.set_data_from_numpy(np.array([b"a", b"b"], object), binary_data=True)
    packed_x.set_data_from_numpy(np.array([1.0, -2.5], np.float32), binary_data=True)
    try:
        answer = await client.infer(InferRequest(MODEL, [tag, x], "order-18"))
        binary = await client.infer(InferRequest(MODEL, [packed_tag, packed_x]))
        try:
            await client.infer(InferRequest("none", [x]))
            error = ""
        except grpc.RpcError as exc:
            error = exc.code().name
        return {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model_ready": await client.is_model_ready(MODEL),
            "id": answer.id,
            "x": values(answer, "x"),
            "text": values(answer, "text"),
            "binary": values(binary, "x"),
            "error": error,
        }
    finally:
        await client.close()


async def ask_kserve(address: str) -> dict[str, Any]:
    """Ask with KServe's client, in both protocols."""
    import httpx
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    url = f"http://{address}"
    tag = InferInput("tag", [2], "BYTES")
    tag.set_data_from_numpy(np.array([b"a", b"b"], object), binary_data=False)
    x = InferInput("x", [2], "FP32")
    x.set_data_from_numpy(np.array([1.0, -2.5], np.float32), binary_data=False)
    packed_tag, packed_x = InferInput("tag", [2], "BYTES"), InferInput("x", [2], "FP32")
    packed_tag.set_data_from_numpy(np.array([b"a", b"b"], object), binary_data=True)
    packed_x.set_data_from_numpy(np.array([1.0, -2.5], np.float32), binary_data=True)
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    old = InferenceRESTClient(RESTConfig(protocol="v1"))
    rows = {"instances": [{"tag": "a", "x": 1.0}, {"tag": "b", "x": -2.5}]}
    try:
        answer = await client.infer(url, InferRequest(MODEL, [tag, x], "order-18"), MODEL)
        binary = await client.infer(url, InferRequest(MODEL, [packed_tag, packed_x]), MODEL)
        try:
            await client.infer(url, InferRequest("none", [x]), "none")
            error = ""
        except httpx.HTTPStatusError as exc:
            error = str(exc.response.status_code)
        return {
            "live": await client.is_server_live(url),
            "ready": await client.is_server_ready(url),
            "model_ready": await client.is_model_ready(url, MODEL),
            "other_ready": await client.is_model_ready(url, "none"),
            "id": answer.id,
            "x": values(answer, "x"),
            "text": values(answer, "text"),
            "binary": values(binary, "x"),
            "predictions": (await old.infer(url, rows, MODEL))["predictions"],
            "error": error,
        }
    finally:
        await client.close()
        await old.close()


def values(answer: Any, name: str) -> Any:
    """The values of an output, as a list."""
    (output,) = (output for output in answer.outputs if output.name == name)
    return [v.decode() if isinstance(v, bytes) else v for v in output.as_numpy().tolist()]


if __name__ == "__main__":
    kind, address = sys.argv[1:]
    if kind == "triton":
        result = ask_triton(address)
    elif kind == "triton-grpc":
        result = ask_triton_by_grpc(address)
    else:
        ask = ask_kserve_by_grpc if kind == "kserve-grpc" else ask_kserve
        result = asyncio.run(ask(address))
    print(json.dumps(result))
