"""Runs anywhere. The addresses of the Open Inference Protocol v2.

Source: https://kserve.github.io/website/docs/concepts/architecture/data-plane
"""

import functools
import re
from typing import Any

from sparkdl.serving import infer_format, model_descriptions
from sparkdl.serving.calls import Call, Catalog, Servable, Work
from sparkdl.serving.deadlines import parameter_s
from sparkdl.serving.json_tensors import Array, parse
from sparkdl.serving.messages import Answer, HttpRequest, json_answer
from sparkdl.serving.predict_format import rows_of
from sparkdl.serving.request_checks import version_number
from sparkdl.serving.request_error import RequestError, not_found
from sparkdl.serving.signatures import Signature, signature_of

_LENGTH = "Inference-Header-Content-Length"
_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/ready|/infer)?")


class InferenceRoutes:
    """Answers requests below `/v2`.

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
        path = request.path.rstrip("/")
        is_get = request.method in ("GET", "HEAD")
        if is_get and path == "/v2":
            return json_answer(model_descriptions.of_server())
        if is_get and path == "/v2/health/live":
            return json_answer({"live": True})
        if is_get and path == "/v2/health/ready":
            is_ready = self._catalog.ready()
            return json_answer({"ready": is_ready}, 200 if is_ready else 503)
        if request.method == "POST" and path == "/v2/repository/index":
            content = parse(body) if body.strip() else {}
            ready_only = content.get("ready") is True
            return json_answer(model_descriptions.of_repository(self._catalog, ready_only))
        for beginning, text in model_descriptions.REFUSED_PATHS.items():
            if path.startswith(f"/v2/{beginning}"):
                raise RequestError("UNIMPLEMENTED", text)
        match = _MODEL.fullmatch(path)
        if match is None or is_get == (match[3] == "/infer"):
            raise not_found(f"there is no {request.method} {request.path}")
        name, digits, action = match.groups()
        version = version_number(digits)
        if action == "/ready":
            return self._ready(name, version)
        if action == "/infer":
            call.method = "infer"
        servable = self._catalog.find(name, version)
        if action is None:
            return json_answer(model_descriptions.of_model(self._catalog, servable))
        call.note_version(servable)
        return _infer_work(servable, request, body, call)

    def _ready(self, name: str, version: int | None) -> Answer:
        is_ready = self._catalog.is_ready(name, version)
        return json_answer({"name": name, "ready": is_ready}, 200 if is_ready else 503)


def _infer_work(servable: Servable, request: HttpRequest, body: bytes, call: Call) -> Work:
    content, binary = infer_format.split(body, request.headers.get(_LENGTH.lower()))
    parameters = content.get("parameters")
    call.end_within(parameter_s(parameters))
    name = infer_format.signature_name(parameters)
    signature = signature_of(servable.signatures, name)
    inputs = infer_format.read(content, signature, binary)
    head = {"model_name": servable.name, "model_version": str(servable.version)}
    reply = functools.partial(_infer_answer, head, inputs, signature)
    return Work(servable, signature, inputs.arrays, rows_of(inputs.arrays), reply)


def _infer_answer(
    head: dict[str, Any],
    inputs: infer_format.InferRequest,
    signature: Signature,
    outputs: dict[str, Array],
) -> Answer:
    data, length = infer_format.answer(head, inputs, signature, outputs)
    if length is None:
        return Answer(data)
    kind = "application/octet-stream"
    return Answer(data, content_type=kind, headers={_LENGTH: str(length)})
