"""Runs anywhere. The addresses of TensorFlow Serving's REST API.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

import functools
import re
from typing import Any

from sparkdl.serving import example_format, predict_format
from sparkdl.serving.calls import Call, Catalog, Servable, Work
from sparkdl.serving.json_tensors import Array, parse
from sparkdl.serving.messages import Answer, HttpRequest, json_answer
from sparkdl.serving.request_checks import version_number
from sparkdl.serving.request_error import invalid
from sparkdl.serving.signatures import signature_of

_VERSION = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
_PREDICTION = re.compile(rf"{_VERSION}:(classify|regress|predict)", re.IGNORECASE)
_STATUS = re.compile(rf"{_VERSION}(/metadata)?", re.IGNORECASE)


class TensorFlowRoutes:
    """Answers requests below `/v1`.

    Args:
        catalog: the models.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def read(self, request: HttpRequest, body: bytes, call: Call) -> Answer | Work:
        """Answer a request, or return the work that it asks for.

        Args:
            request: the request.
            body: its body.
            call: what is noted of the request.

        Raises:
            RequestError: if the request cannot be answered.
        """
        if request.method == "POST" and (match := _PREDICTION.fullmatch(request.path)):
            name, version, label, method = match.groups()
            call.method = method.lower()
            servable = self._catalog.find(name, version_number(version), label)
            call.note_version(servable)
            content = parse(body)
            if call.method == "predict":
                return _predict_work(servable, content)
            return _examples_work(servable, content, call)
        if request.method in ("GET", "HEAD") and (match := _STATUS.fullmatch(request.path)):
            name, version, label, is_metadata = match.groups()
            if is_metadata:
                servable = self._catalog.find(name, version_number(version), label)
                return json_answer(_metadata(servable), indent=1)
            states = self._catalog.status(name, version_number(version), label)
            return json_answer({"model_version_status": states}, indent=1)
        if request.method == "GET" and request.path.rstrip("/").lower() == "/v1/models":
            raise invalid("Missing model name in request.")
        raise invalid(f"Malformed request: {request.method} {request.path}")


def _predict_work(servable: Servable, content: dict[str, Any]) -> Work:
    signature = signature_of(servable.signatures, predict_format.signature_name(content))
    request = predict_format.read(content, signature)
    rows = predict_format.rows_of(request.arrays)
    reply = functools.partial(_predict_answer, is_rows=request.is_rows)
    return Work(servable, signature, request.arrays, rows, reply)


def _predict_answer(outputs: dict[str, Array], is_rows: bool) -> Answer:
    return Answer(predict_format.answer_text(outputs, is_rows))


def _examples_work(servable: Servable, content: dict[str, Any], call: Call) -> Work:
    signature = signature_of(servable.signatures, predict_format.signature_name(content))
    name = example_format.example_input(signature, call.method)
    examples = example_format.read_examples(content)
    is_classify = call.method == "classify"
    to_json = example_format.classify_answer if is_classify else example_format.regress_answer
    reply = functools.partial(_examples_answer, to_json, num_examples=len(examples))
    return Work(servable, signature, {name: examples}, len(examples), reply)


def _examples_answer(to_json: Any, outputs: dict[str, Array], num_examples: int) -> Answer:
    return json_answer(to_json(outputs, num_examples))


def _metadata(servable: Servable) -> dict[str, Any]:
    definitions = {name: s.metadata for name, s in servable.signatures.items()}
    return {
        "model_spec": {
            "name": servable.name,
            "signature_name": "",
            "version": str(servable.version),
        },
        "metadata": {"signature_def": {"signature_def": definitions}},
    }
