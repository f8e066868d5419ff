"""Runs anywhere (pure). Places for requests, of which no model can take all."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from sparkdl.serving.request_error import RequestError

# The requests that one API of a server answers at a time.
MAX_OPEN = 1000


class Places:
    """Places for requests that wait for models.

    A model may hold as many places as are left free. One model that hangs takes half of them, a
    second one a quarter, and so on: there is always room for the other models. Switches share
    their memory between queues by this rule: Choudhury and Hahne, Dynamic Queue Length Thresholds
    for Shared-Memory Packet Switches, 1998.

    Args:
        total: the number of places.

    Example:
        >>> places = Places(2)
        >>> with places.take("m"), places.take("m"):
        ...     pass
        Traceback (most recent call last):
        sparkdl.serving.request_error.RequestError: 1 requests wait for the model m already; try ...
    """

    def __init__(self, total: int = MAX_OPEN) -> None:
        self._num_free = total
        self._num_held: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def take(self, model: str) -> Iterator[None]:
        """Hold a place while a model computes.

        Raises:
            RequestError: if as many requests wait for the model as there are free places.
        """
        with self._lock:
            num_held = self._num_held[model]
            if num_held >= self._num_free:
                raise RequestError(
                    "UNAVAILABLE",
                    f"{num_held} requests wait for the model {model} already; try again later",
                )
            self._num_held[model] += 1
            self._num_free -= 1
        try:
            yield
        finally:
            with self._lock:
                self._num_free += 1
                self._num_held[model] -= 1
                if not self._num_held[model]:
                    del self._num_held[model]
