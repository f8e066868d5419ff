"""Runs on the driver. TensorFlow Serving's gRPC services, of which some methods are answered.

Predict, Classify, Regress, GetModelMetadata and GetModelStatus are; all others are refused with
UNIMPLEMENTED and the reason. The services of the Open Inference Protocol are beside them.
Source: https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
"""

from collections.abc import Sequence
from typing import Any

import grpc

from sparkdl.serving import example_format, grpc_messages
from sparkdl.serving.calls import Call, Catalog, Observer, Servable
from sparkdl.serving.grpc_inference import GrpcInference
from sparkdl.serving.grpc_methods import GrpcMethods
from sparkdl.serving.json_tensors import Array
from sparkdl.serving.places import Places
from sparkdl.serving.predict_format import rows_of
from sparkdl.serving.request_error import invalid
from sparkdl.serving.signatures import Signature, signature_of

_MULTIPLE = {"MultiInference": "send a request for each of the tasks: Classify or Regress"}
_RELOAD = {
    "HandleReloadConfigRequest": "the server finds new versions and aliases by itself; its models "
    "are those with which it was started"
}


class GrpcServices:
    """The services of a model server, with those of the Open Inference Protocol.

    Args:
        catalog: the models.
        token: the secret that a request has to carry; None for a server that only this host
            reaches.
        observers: told of each request to a model.
        max_bytes: the size of the largest tensor.
        timeout_s: the most seconds that a request may take; None for any time.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        token: str | None = None,
        observers: Sequence[Observer] = (),
        max_bytes: int = 1 << 26,
        timeout_s: float | None = None,
    ) -> None:
        self._catalog = catalog
        self._methods = GrpcMethods(token, observers, timeout_s)
        self._max_bytes = max_bytes
        self._places = Places()

    def handlers(self) -> list[Any]:
        """Return the handlers of the services, for a server of gRPC."""
        from tensorflow_serving.apis import (
            classification_pb2,
            get_model_metadata_pb2,
            get_model_status_pb2,
            predict_pb2,
            regression_pb2,
        )

        handler = self._methods.handler
        described = get_model_metadata_pb2.GetModelMetadataRequest
        prediction = {
            "Predict": handler(self._predict, predict_pb2.PredictRequest),
            "Classify": handler(self._classify, classification_pb2.ClassificationRequest),
            "Regress": handler(self._regress, regression_pb2.RegressionRequest),
            "GetModelMetadata": handler(self._metadata, described),
            **self._methods.refusals(_MULTIPLE),
        }
        model = {
            "GetModelStatus": handler(self._status, get_model_status_pb2.GetModelStatusRequest),
            **self._methods.refusals(_RELOAD),
        }
        return [
            grpc.method_handlers_generic_handler(
                "tensorflow.serving.PredictionService", prediction
            ),
            grpc.method_handlers_generic_handler("tensorflow.serving.ModelService", model),
            *GrpcInference(self._catalog, self._methods, self._places).handlers(),
        ]

    # ---- methods

    def _predict(self, request: Any, call: Call) -> Any:
        from tensorflow_serving.apis.predict_pb2 import PredictResponse

        servable, signature = self._find(request, call, "predict")
        arrays = grpc_messages.read_tensors(request.inputs, signature, self._max_bytes)
        names = grpc_messages.output_names(list(request.output_filter), signature)
        with self._places.take(servable.name):
            outputs = call.compute(servable, signature, arrays, rows_of(arrays))
        response = PredictResponse()
        for name in names:
            tensor = grpc_messages.write_tensor(outputs[name], signature.outputs[name])
            response.outputs[name].CopyFrom(tensor)
        _write_model(response, servable.name, servable.version, signature.name)
        return response

    def _classify(self, request: Any, call: Call) -> Any:
        from tensorflow_serving.apis.classification_pb2 import ClassificationResponse

        response = ClassificationResponse()
        outputs, num_examples = self._compute_examples(request, response, call, "classify")
        results = example_format.classify_answer(outputs, num_examples)["results"]
        grpc_messages.write_classes(results, response)
        return response

    def _regress(self, request: Any, call: Call) -> Any:
        from tensorflow_serving.apis.regression_pb2 import RegressionResponse

        response = RegressionResponse()
        outputs, num_examples = self._compute_examples(request, response, call, "regress")
        results = example_format.regress_answer(outputs, num_examples)["results"]
        grpc_messages.write_values(results, response)
        return response

    def _compute_examples(
        self, request: Any, response: Any, call: Call, method: str
    ) -> tuple[dict[str, Array], int]:
        """Return the outputs for the examples of a request, and the number of the examples."""
        servable, signature = self._find(request, call, method)
        name = example_format.example_input(signature, method)
        examples = grpc_messages.read_examples(request.input)
        _write_model(response, servable.name, servable.version, signature.name)
        with self._places.take(servable.name):
            outputs = call.compute(servable, signature, {name: examples}, len(examples))
        return outputs, len(examples)

    def _find(self, request: Any, call: Call, method: str) -> tuple[Servable, Signature]:
        """Return the version and the signature that a request asks for."""
        call.method = method
        servable = self._catalog.find(*_model_spec(request))
        call.note_version(servable)
        # TensorFlow Serving's codes; below /v1, both have the same status.
        code = "FAILED_PRECONDITION" if method == "predict" else "INVALID_ARGUMENT"
        name = request.model_spec.signature_name
        return servable, signature_of(servable.signatures, name, code)

    def _metadata(self, request: Any, call: Call) -> Any:
        from google.protobuf.json_format import ParseDict
        from tensorflow_serving.apis.get_model_metadata_pb2 import (
            GetModelMetadataResponse,
            SignatureDefMap,
        )

        if not request.metadata_field:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != "signature_def":
                raise invalid(f"Metadata field {field} is not supported")
        servable = self._catalog.find(*_model_spec(request))
        definitions = {name: s.metadata for name, s in servable.signatures.items()}
        response = GetModelMetadataResponse()
        signature_map = ParseDict({"signature_def": definitions}, SignatureDefMap())
        response.metadata["signature_def"].Pack(signature_map)
        _write_model(response, servable.name, servable.version)
        return response

    def _status(self, request: Any, call: Call) -> Any:
        from google.protobuf.json_format import ParseDict
        from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusResponse

        states = self._catalog.status(*_model_spec(request))
        return ParseDict({"model_version_status": states}, GetModelStatusResponse())


def _model_spec(request: Any) -> tuple[str, int | None, str | None]:
    """Return the name, the version and the label of the model that a request asks for."""
    spec = request.model_spec
    if not spec.name:
        raise invalid("Missing ModelSpec")
    choice = spec.WhichOneof("version_choice")
    return (
        spec.name,
        spec.version.value if choice == "version" else None,
        spec.version_label if choice == "version_label" else None,
    )


def _write_model(response: Any, name: str, version: int, signature: str = "") -> None:
    """Write the model that has answered into an answer."""
    response.model_spec.name = name
    response.model_spec.version.value = version
    response.model_spec.signature_name = signature
