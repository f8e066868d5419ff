"""Runs anywhere. Answers of the model server to requests in HTTP: access, errors, limits."""

import asyncio
import logging
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, TypeVar

from sparkdl.host.loopback import leads_here
from sparkdl.serving.calls import Call, Catalog, Observer, Work, call_of, tell
from sparkdl.serving.deadlines import header_s, within
from sparkdl.serving.inference_routes import InferenceRoutes
from sparkdl.serving.messages import Answer, HttpRequest, ReadBody, error_answer
from sparkdl.serving.mlflow_routes import INVOCATIONS, PING, MlflowRoutes
from sparkdl.serving.places import Places
from sparkdl.serving.request_checks import check_token
from sparkdl.serving.request_error import RequestError, invalid, not_found
from sparkdl.serving.tensorflow_routes import TensorFlowRoutes

T = TypeVar("T")

# The address of TensorFlow Serving, and the one that Prometheus asks unless it is told another.
METRICS_PATHS = ("/monitoring/prometheus/metrics", "/metrics")
# The forms in which a body may be packed, as zlib counts them.
_WINDOW_BITS = {"gzip": 31, "deflate": 15}

# A scheduler of containers asks for these without a token. They tell nothing of the models.
PROBES = ("/v2/health/live", "/v2/health/ready", PING)
# Larger bodies are read in a thread, as others must not wait for them.
SMALL_BYTES = 1 << 16
# Answers with more numbers are written in a thread.
SMALL_ANSWER = 1 << 16

_logger = logging.getLogger("sparkdl.serving")


class Application:
    """The answers of a server.

    Args:
        catalog: the models.
        token: the secret that a request has to carry; None for a server that only this host
            reaches.
        observers: told of each request to a model.
        metrics: returns the metrics and their content type; None if there are none.
        max_body_bytes: the size of the largest body, also after it was unpacked.
        timeout_s: the most seconds that a request may take; None for any time.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        token: str | None = None,
        observers: Sequence[Observer] = (),
        metrics: Callable[[], tuple[bytes, str]] | None = None,
        max_body_bytes: int = 1 << 26,
        timeout_s: float | None = None,
    ) -> None:
        self._catalog = catalog
        self._token = token
        self._observers = observers
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._tensorflow = TensorFlowRoutes(catalog)
        self._inference = InferenceRoutes(catalog)
        self._mlflow = MlflowRoutes(catalog)
        self._timeout_s = timeout_s
        self._places = Places()
        self._is_draining = threading.Event()

    def drain(self) -> None:
        """Answer probes with "not ready" from now on."""
        self._is_draining.set()

    async def answer_soon(self, head: HttpRequest, read: ReadBody, pool: Executor) -> Answer:
        """Answer a request in a loop of events, which goes on while the model computes.

        Args:
            head: the request without its body.
            read: reads the body; not called for a client that may not ask.
            pool: threads for everything that takes time.
        """
        call = call_of(head.headers.get("x-request-id", ""))
        try:
            self._check_access(head)
            call.end_within(self._timeout_s)
            call.end_within(header_s(head.headers))
            # Anyone may ask the probes: what is sent with them is not kept.
            request = replace(head, body=b"" if head.path in PROBES else await read())
            if self._is_quick(request):
                answer = self._read(request, call)
            else:
                answer = await within(call.deadline, _in_thread(pool, self._read, request, call))
            if isinstance(answer, Work):
                answer = await within(call.deadline, self._compute(answer, call, pool))
        except Exception as exc:  # noqa: BLE001
            answer = _refusal(exc, head, call)
        return self._finish(answer, call)

    async def _compute(self, work: Work, call: Call, pool: Executor) -> Answer:
        """Let a model compute, and return the answer."""
        with self._places.take(work.servable.name):
            result = await work.servable.run_soon(work.signature, work.arrays)
        call.note_outputs(result)
        # A ragged output, a list of lists, is of unknown size.
        outputs = result.outputs
        sizes = [getattr(output, "size", SMALL_ANSWER + 1) for output in outputs.values()]
        if sum(sizes) <= SMALL_ANSWER:
            return work.reply(outputs)
        return await _in_thread(pool, work.reply, outputs)

    def _is_quick(self, request: HttpRequest) -> bool:
        """Return True if a request can be read at once."""
        if request.path in PROBES:
            return True
        is_small = len(request.body) <= SMALL_BYTES and "content-encoding" not in request.headers
        return request.method == "POST" and is_small and not self._catalog.loads_on_demand

    def _finish(self, answer: Answer, call: Call) -> Answer:
        answer.headers["X-Request-Id"] = call.id
        if call.method:
            call.note_status(answer.status)
            tell(self._observers, call)
        return answer

    def _read(self, request: HttpRequest, call: Call) -> Answer | Work:
        path = request.path
        if path in METRICS_PATHS and self._metrics and request.method in ("GET", "HEAD"):
            data, kind = self._metrics()
            return Answer(data, content_type=kind)
        answer: Answer | Work
        if path in PROBES[1:] and self._is_draining.is_set():
            return error_answer("the server is being stopped", 503)
        if path == PING and request.method in ("GET", "HEAD"):
            return self._mlflow.ping()
        if path == INVOCATIONS and request.method == "POST":
            answer = self._mlflow.read(request, self._body(request), call)
        elif path.lower().startswith("/v1/"):
            answer = self._tensorflow.read(request, self._body(request), call)
        elif path == "/v2" or path.startswith("/v2/"):
            # Anyone may ask the probes, which have no body.
            body = b"" if path in PROBES else self._body(request)
            answer = self._inference.read(request, body, call)
        else:
            raise not_found(f"there is no {request.method} {path}")
        if isinstance(answer, Work):
            call.note_inputs(answer.signature, answer.arrays, answer.rows)
        return answer

    def _check_access(self, request: HttpRequest) -> None:
        if request.path in PROBES:
            return
        if self._token is None:
            # A page of another host, whose name was made to lead here, has that name in `Host`; a
            # page that asks in the name of the user has its own host in `Origin`.
            hosts = [f"//{request.headers.get('host', '')}"]
            hosts += [request.headers["origin"]] if "origin" in request.headers else []
            if not all(map(leads_here, hosts)):
                raise RequestError(
                    "PERMISSION_DENIED", "this server answers only to the names of its own host"
                )
            return
        check_token(request.headers.get("authorization", ""), self._token)

    def _body(self, request: HttpRequest) -> bytes:
        data = request.body
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding in _WINDOW_BITS:
            unpacker = zlib.decompressobj(wbits=_WINDOW_BITS[encoding])
            try:
                data = unpacker.decompress(data, self._max_body_bytes + 1)
            except zlib.error as exc:
                raise invalid(f"the body is not packed by {encoding}: {exc}") from None
            if not unpacker.eof and len(data) <= self._max_body_bytes:
                raise invalid("the packed body ends too early")
        elif encoding != "identity":
            raise invalid(f"Content-Encoding is {encoding!r}; expected gzip, deflate, or none")
        if len(data) > self._max_body_bytes:
            raise RequestError("TOO_LARGE", f"the body is larger than {self._max_body_bytes} bytes")
        return data


async def _in_thread(pool: Executor, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a thread. It is not called if the call is cancelled before it begins."""
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def _refusal(exc: Exception, request: HttpRequest, call: Call) -> Answer:
    """Return the answer for an error, which has no traceback."""
    if isinstance(exc, RequestError):
        answer = error_answer(str(exc), exc.status)
        if exc.status == 401:
            answer.headers["WWW-Authenticate"] = "Bearer"
        return answer
    if isinstance(exc, RecursionError):
        return error_answer("the request is nested too deeply", 400)
    if isinstance(exc, MemoryError):
        return error_answer("there is not enough memory for the request", 429)
    _logger.error("request %s: cannot answer %.200s", call.id, request.path, exc_info=exc)
    return error_answer(f"the server failed; its log has the reason under {call.id}", 500)
