"""Runs on the driver. The Open Inference Protocol by gRPC, as Triton and KServe have it.

Source: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol
"""

from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np

from sparkdl.serving import infer_format, model_descriptions
from sparkdl.serving.calls import Call, Catalog
from sparkdl.serving.deadlines import parameter_s
from sparkdl.serving.grpc_methods import GrpcMethods
from sparkdl.serving.inference_messages import message_class
from sparkdl.serving.json_tensors import Array
from sparkdl.serving.places import Places
from sparkdl.serving.predict_format import rows_of
from sparkdl.serving.request_checks import version_number
from sparkdl.serving.request_error import RequestError, invalid
from sparkdl.serving.signatures import Signature, signature_of

# The field of `InferTensorContents` for each datatype, and the dtype of the field.
_CONTENTS = {
    "BOOL": ("bool_contents", "bool"),
    **{f"INT{bits}": ("int_contents", "int32") for bits in (8, 16, 32)},
    "INT64": ("int64_contents", "int64"),
    **{f"UINT{bits}": ("uint_contents", "uint32") for bits in (8, 16, 32)},
    "UINT64": ("uint64_contents", "uint64"),
    "FP32": ("fp32_contents", "float32"),
    "FP64": ("fp64_contents", "float64"),
    "BYTES": ("bytes_contents", "object"),
}
# Of grpc.health.v1.
_SERVING, _NOT_SERVING = 1, 2


class GrpcInference:
    """The service `inference.GRPCInferenceService`, and `grpc.health.v1.Health`.

    Args:
        catalog: the models.
        methods: makes the handlers.
        places: the places for requests that wait for models.
    """

    def __init__(self, catalog: Catalog, methods: GrpcMethods, places: Places) -> None:
        self._catalog = catalog
        self._methods = methods
        self._places = places

    def handlers(self) -> list[Any]:
        """Return the handlers of the services, for a server of gRPC."""
        probes = {"ServerLive": self._live, "ServerReady": self._ready}
        others = {
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server,
            "ModelMetadata": self._model,
            "ModelInfer": self._infer,
            "RepositoryIndex": self._index,
        }
        named = {
            name: self._methods.handler(method, message_class(f"{name}Request"), name in probes)
            for name, method in {**probes, **others}.items()
        }
        refused = self._methods.refusals(model_descriptions.REFUSED)
        check = self._methods.handler(self._health, message_class("HealthCheckRequest"), True)
        return [
            grpc.method_handlers_generic_handler(
                "inference.GRPCInferenceService", {**named, **refused}
            ),
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
        ]

    # ---- methods

    def _live(self, request: Any, call: Call) -> Any:
        return message_class("ServerLiveResponse")(live=True)

    def _ready(self, request: Any, call: Call) -> Any:
        return message_class("ServerReadyResponse")(ready=self._catalog.ready())

    def _health(self, request: Any, call: Call) -> Any:
        if request.service not in ("", "inference.GRPCInferenceService"):
            raise RequestError("NOT_FOUND", f"there is no service {request.service!r}")
        status = _SERVING if self._catalog.ready() else _NOT_SERVING
        return message_class("HealthCheckResponse")(status=status)

    def _model_ready(self, request: Any, call: Call) -> Any:
        is_ready = self._catalog.is_ready(request.name, version_number(request.version or None))
        return message_class("ModelReadyResponse")(ready=is_ready)

    def _server(self, request: Any, call: Call) -> Any:
        return message_class("ServerMetadataResponse")(**model_descriptions.of_server())

    def _model(self, request: Any, call: Call) -> Any:
        servable = self._catalog.find(request.name, version_number(request.version or None))
        described = model_descriptions.of_model(self._catalog, servable)
        return message_class("ModelMetadataResponse")(**described)

    def _index(self, request: Any, call: Call) -> Any:
        models = model_descriptions.of_repository(self._catalog, request.ready)
        return message_class("RepositoryIndexResponse")(models=models)

    def _infer(self, request: Any, call: Call) -> Any:
        call.method = "infer"
        version = version_number(request.model_version or None)
        servable = self._catalog.find(request.model_name, version)
        call.note_version(servable)
        parameters = _parameters(request.parameters)
        call.end_within(parameter_s(parameters))
        name = infer_format.signature_name(parameters)
        signature = signature_of(servable.signatures, name)
        content, binary = _content(request, parameters)
        inputs = infer_format.read(content, signature, binary)
        with self._places.take(servable.name):
            outputs = call.compute(servable, signature, inputs.arrays, rows_of(inputs.arrays))
        response = message_class("ModelInferResponse")(
            model_name=servable.name, model_version=str(servable.version), id=request.id
        )
        _write_outputs(response, inputs, signature, outputs, bool(request.raw_input_contents))
        return response


# ---- tensors


def _parameters(entries: Sequence[Any]) -> dict[str, Any]:
    """Return parameters by name."""
    values = {entry.key: [value for _, value in entry.value.ListFields()] for entry in entries}
    return {name: value[-1] for name, value in values.items() if value}


def _content(request: Any, parameters: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return a request as its JSON object would be, with all tensors as bytes behind it."""
    raw = list(request.raw_input_contents)
    own = [_parameters(tensor.parameters) for tensor in request.inputs]
    num_sent = sum(infer_format.SHARED_MEMORY not in named for named in own)
    if raw and len(raw) != num_sent:
        raise invalid(
            f"the request has {num_sent} inputs and {len(raw)} raw_input_contents; expected one "
            "for each input, or none"
        )
    inputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for tensor, named in zip(request.inputs, own, strict=True):
        if raw and tensor.HasField("contents"):
            raise invalid(f"input {tensor.name!r} has contents beside raw_input_contents")
        if infer_format.SHARED_MEMORY not in named:
            parts.append(raw[len(parts)] if raw else _raw(tensor))
            named = {**named, "binary_data_size": len(parts[-1])}
        described = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        inputs.append({**described, "parameters": named})
    outputs = [
        {"name": output.name, "parameters": _parameters(output.parameters)}
        for output in request.outputs
    ]
    content = {"id": request.id, "parameters": parameters, "inputs": inputs, "outputs": outputs}
    return content, b"".join(parts)


def _raw(tensor: Any) -> bytes:
    """Return the values of a tensor as bytes."""
    if tensor.datatype not in _CONTENTS:
        raise invalid(
            f"input {tensor.name!r} has datatype {tensor.datatype!r}; expected raw_input_contents, "
            f"or one of {', '.join(_CONTENTS)}"
        )
    field, dtype = _CONTENTS[tensor.datatype]
    filled = [other.name for other, _ in tensor.contents.ListFields()]
    if filled and filled != [field]:
        raise invalid(
            f"input {tensor.name!r} of {tensor.datatype} has {', '.join(filled)}; expected {field}"
        )
    array = np.array([*getattr(tensor.contents, field), None], object)[:-1].astype(dtype)
    if field in ("int_contents", "uint_contents"):
        narrow = array.astype(tensor.datatype.lower())
        if (narrow != array).any():
            raise invalid(f"input {tensor.name!r} has a number that {tensor.datatype} cannot have")
        array = narrow
    return infer_format.to_bytes(array)


def _write_outputs(
    response: Any,
    request: infer_format.InferRequest,
    signature: Signature,
    outputs: dict[str, Array],
    is_raw: bool,
) -> None:
    """Write outputs as bytes, or in the form that the request has."""
    tensors = infer_format.chosen(request, signature, outputs)
    is_raw = is_raw or any(tensor["datatype"] not in _CONTENTS for tensor, _ in tensors)
    for tensor, array in tensors:
        written = response.outputs.add(**tensor)
        if is_raw:
            response.raw_output_contents.append(infer_format.to_bytes(array))
            continue
        values = array.ravel().tolist()
        if tensor["datatype"] == "BYTES":
            values = [v if isinstance(v, bytes) else str(v).encode() for v in values]
        getattr(written.contents, _CONTENTS[tensor["datatype"]][0]).extend(values)
