"""Runs on the driver. Read the messages of requests by gRPC, and end requests without one.

A request holds a thread from its headers on. Clients that send no message would hold all of them.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

from sparkdl.serving.request_error import invalid

# Seconds in which the message of a request has to come, and between two looks at those that wait.
MESSAGE_S = 30.0
PAUSE_S = 1.0


class SlowMessages:
    """Reads messages, each within `MESSAGE_S`."""

    def __init__(self) -> None:
        self._waiting: dict[Any, float] = {}
        self._lock = threading.Lock()
        self._is_watched = False

    def read(self, messages: Iterator[bytes], context: Any) -> bytes:
        """Return the message of a request.

        Args:
            messages: the messages that the client sends, of which the first is taken.
            context: the request, as gRPC passes it to its handler.

        Raises:
            RequestError: if the client sends none.
            grpc.RpcError: if the request was ended.
        """
        with self._lock:
            self._waiting[context] = time.monotonic()
            if not self._is_watched:
                self._is_watched = True
                name = "sparkdl-serving-grpc-slow"
                threading.Thread(target=self._watch, name=name, daemon=True).start()
        try:
            return next(messages)
        except StopIteration:
            raise invalid("the request has no message") from None
        finally:
            with self._lock:
                self._waiting.pop(context, None)

    def _watch(self) -> None:
        """End requests that are late, as long as any request waits."""
        while True:
            time.sleep(PAUSE_S)
            with self._lock:
                if not self._waiting:
                    self._is_watched = False
                    return
                latest = time.monotonic() - MESSAGE_S
                late = [context for context, since in self._waiting.items() if since < latest]
            for context in late:
                context.cancel()
            del late
