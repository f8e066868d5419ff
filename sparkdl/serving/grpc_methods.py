"""Runs on the driver. Answer methods of gRPC: access, errors, and the note of each request."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc

from sparkdl.serving.calls import Call, Observer, call_of, tell
from sparkdl.serving.inference_messages import message_class
from sparkdl.serving.messages import MAX_MESSAGE
from sparkdl.serving.request_checks import check_token
from sparkdl.serving.request_error import RequestError, invalid
from sparkdl.serving.slow_messages import SlowMessages

# Computes the answer of a request.
Method = Callable[[Any, Call], Any]

_logger = logging.getLogger("sparkdl.serving")


class GrpcMethods:
    """Makes handlers of methods.

    Args:
        token: the secret that a request has to carry; None for a server that only this host
            reaches.
        observers: told of each request to a model.
        timeout_s: the most seconds that a request may take; None for any time.
    """

    def __init__(
        self, token: str | None, observers: Sequence[Observer], timeout_s: float | None = None
    ) -> None:
        self._token = token
        self._timeout_s = timeout_s
        self._observers = observers
        self._slow = SlowMessages()

    def handler(self, method: Method, request_class: Any, is_probe: bool = False) -> Any:
        """Return the handler of a method.

        Args:
            method: computes the answer.
            request_class: the class of its requests.
            is_probe: anyone may ask: a scheduler of containers has no token.
        """
        return grpc.stream_unary_rpc_method_handler(
            # The handler is called before the message comes, of which it reads the bytes itself.
            lambda messages, context: self._answer(
                method, request_class, is_probe, messages, context
            ),
            response_serializer=lambda message: message.SerializeToString(),
        )

    def refusals(self, reasons: Mapping[str, str]) -> dict[str, Any]:
        """Return the handlers of methods that this server does not have.

        Args:
            reasons: the reason for each method, which its clients are told.
        """
        # A message without fields keeps those that it does not know.
        any_request = message_class("ServerLiveRequest")

        def refuse(reason: str) -> Method:
            def method(request: Any, call: Call) -> Any:
                raise RequestError("UNIMPLEMENTED", reason)

            return method

        return {name: self.handler(refuse(text), any_request) for name, text in reasons.items()}

    def _answer(
        self,
        method: Method,
        request_class: Any,
        is_probe: bool,
        messages: Iterator[bytes],
        context: Any,
    ) -> Any:
        metadata = dict(context.invocation_metadata())
        call = call_of(str(metadata.get("x-request-id", "")))
        call.end_within(self._timeout_s)
        left_s = context.time_remaining()
        if left_s is not None and left_s < threading.TIMEOUT_MAX:
            call.end_within(left_s)
        context.send_initial_metadata((("x-request-id", call.id),))
        error = None
        try:
            if self._may_send(metadata, is_probe):
                request = _parse(request_class, self._slow.read(messages, context))
            else:
                request = request_class()
            return method(request, call)
        except RequestError as exc:
            error = exc
        except grpc.RpcError:
            raise  # The request was ended before its message came.
        except Exception:
            _logger.exception("request %s: cannot answer by gRPC", call.id)
            text = f"the server failed; its log has the reason under {call.id}"
            error = RequestError("INTERNAL", text)
        finally:
            if call.method:
                call.note_status(error.status if error else 200)
                tell(self._observers, call)
        context.abort(grpc.StatusCode[error.code], str(error)[:MAX_MESSAGE])

    def _may_send(self, metadata: Mapping[str, Any], is_probe: bool) -> bool:
        """Return False for a client without the token whose message is not read: of a probe.

        Raises:
            RequestError: if the client may not ask at all.
        """
        try:
            if self._token is not None:
                check_token(str(metadata.get("authorization", "")), self._token)
        except RequestError:
            if not is_probe:
                raise
            return False
        return True


def _parse(request_class: Any, data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return request_class.FromString(data)
    except DecodeError:
        raise invalid(f"the request is no {request_class.DESCRIPTOR.name}") from None
