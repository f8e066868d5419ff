"""Runs anywhere (pure). The server and its models, in the words of the Open Inference Protocol."""

from typing import Any

from sparkdl._version import __version__
from sparkdl.serving import infer_format
from sparkdl.serving.calls import Catalog, Servable
from sparkdl.serving.signatures import DEFAULT

_MEMORY = "this server reads no shared memory; send the tensors in the request"
_LOADING = "the server loads and unloads models by itself, see GET /v1/models/NAME"
# What Triton has beyond the protocol and this server has not, by the name of the method in gRPC.
REFUSED = {
    **{
        f"{kind}SharedMemory{action}": _MEMORY
        for kind in ("System", "Cuda")
        for action in ("Status", "Register", "Unregister")
    },
    "RepositoryModelLoad": _LOADING,
    "RepositoryModelUnload": _LOADING,
}
# The same in HTTP, by the beginning of the address below `/v2/`.
REFUSED_PATHS = {
    "systemsharedmemory/": _MEMORY,
    "cudasharedmemory/": _MEMORY,
    "repository/models/": _LOADING,
}
_STATES = {"AVAILABLE": "READY", "LOADING": "LOADING"}


def of_server() -> dict[str, Any]:
    """Return the description of the server."""
    extensions = ["binary_tensor_data", "model_repository"]
    return {"name": "sparkdl", "version": __version__, "extensions": extensions}


def of_model(catalog: Catalog, servable: Servable) -> dict[str, Any]:
    """Return the description of a model: its versions, and the inputs and outputs of one."""
    first, *_ = servable.signatures.values()
    signature = servable.signatures.get(DEFAULT, first)
    states = catalog.status(servable.name)
    return {
        "name": servable.name,
        "versions": [state["version"] for state in states if state["state"] == "AVAILABLE"],
        "platform": servable.platform,
        "inputs": infer_format.describe(signature.inputs),
        "outputs": infer_format.describe(signature.outputs),
    }


def of_repository(catalog: Catalog, ready_only: bool) -> list[dict[str, str]]:
    """Return the versions of all models.

    Source of the format: https://github.com/triton-inference-server/server/blob/main/docs/protocol/
    extension_model_repository.md

    Args:
        catalog: the models.
        ready_only: leave out what takes no requests.
    """
    index: list[dict[str, str]] = []
    for name in catalog.names:
        states = catalog.status(name)
        if not states and not ready_only:
            index.append({"name": name})  # It is loaded at its first request.
        for state in states:
            reason = state["status"]["error_message"]
            shown = _STATES.get(state["state"], "UNAVAILABLE")
            if shown == "UNAVAILABLE":
                reason = reason or "unloaded"
            if shown == "READY" or not ready_only:
                version = state["version"]
                index.append({"name": name, "version": version, "state": shown, "reason": reason})
    return index
