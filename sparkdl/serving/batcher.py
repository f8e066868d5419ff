"""Runs on the driver. Compute the rows of several requests at once.

TensorFlow's own batcher (`tf.nondifferentiable_batch_function`) is not used, because its queue and
its threads live until the process ends, and two functions whose graph nodes have the same name
share a queue: while versions change, rows of one version would be computed by the other (a test
shows both). One bad row also fails its whole batch there. This batcher ends with its version, and
says which requests have to be computed alone.
"""

import asyncio
import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from sparkdl.serving.batching import Batching
from sparkdl.serving.deadlines import seconds_until, too_late
from sparkdl.serving.json_tensors import Array
from sparkdl.serving.request_error import RequestError

# Takes and returns lists of arrays, whose first axis counts the rows.
Function = Callable[[Sequence[Array]], Sequence[Array]]


class BatchFailed(Exception):
    """A batch failed, maybe because of a row of another request: compute the request alone."""


@dataclass(eq=False)
class _Part:
    """Rows of a request that wait for a batch, or were computed in one."""

    arrays: list[Array]
    rows: int
    # Rows of different shapes cannot be in one batch.
    shapes: tuple[Any, ...]
    # Told when the rows were computed: a thread by an event, a loop of events by a future.
    done: "threading.Event | asyncio.Future[None]"
    since: float = field(default_factory=time.monotonic)
    outputs: list[Array] | None = None
    batch_size: int = 0


class Batcher:
    """A queue of rows, and the threads that compute them in batches.

    Args:
        function: computes a batch.
        options: the options.
        num_clients: returns the number of clients that have a connection, each of which sends one
            request at a time: if all of them wait, a batch does not wait for more rows. None if
            that is not known.

    Example:
        >>> batcher = Batcher(lambda arrays: [arrays[0] * 2], Batching(timeout_ms=0))
        >>> batcher([np.array([1, 2])])
        ([array([2, 4])], 2)
        >>> batcher.close()
    """

    def __init__(
        self,
        function: Function,
        options: Batching,
        num_clients: Callable[[], int] | None = None,
    ) -> None:
        self._function = function
        self._options = options
        self._num_clients = num_clients
        self._queue: deque[_Part] = deque()
        self._num_rows = 0
        self._changed = threading.Condition()
        self._is_closed = False
        for _ in range(options.num_threads):
            threading.Thread(target=self._work, name="sparkdl-serving-batch", daemon=True).start()

    def __call__(
        self, arrays: Sequence[Array], deadline: float | None = None
    ) -> tuple[list[Array], int]:
        """Return the outputs of these rows, and the size of the largest batch that they were in.

        Args:
            arrays: the inputs. More rows than fit into a batch are computed in several batches.
            deadline: see `Servable.run`.

        Raises:
            RequestError: if too many rows wait, or the outputs do not come in time.
            BatchFailed: if the rows have to be computed alone.
        """
        parts = self._parts(arrays, threading.Event)
        self._enqueue(parts)
        for part in parts:
            if not cast(threading.Event, part.done).wait(seconds_until(deadline)):
                self._give_up(parts)
                raise too_late()
        return _join(parts)

    async def run_soon(self, arrays: Sequence[Array]) -> tuple[list[Array], int]:
        """Do the same in a loop of events, which goes on in the meantime.

        Rows that wait are not computed any more if the call is cancelled.
        """
        parts = self._parts(arrays, asyncio.get_running_loop().create_future)
        self._enqueue(parts)
        try:
            for part in parts:
                await cast("asyncio.Future[None]", part.done)
        except asyncio.CancelledError:
            self._give_up(parts)
            raise
        return _join(parts)

    def _parts(self, arrays: Sequence[Array], make_done: Callable[[], Any]) -> list[_Part]:
        """Return the rows of a request, in parts that fit into a batch."""
        size = self._options.max_batch_size
        parts = []
        for start in range(0, len(arrays[0]), size):
            rows = [array[start : start + size] for array in arrays]
            shapes = tuple(array.shape[1:] for array in rows)
            parts.append(_Part(rows, len(rows[0]), shapes, make_done()))
        return parts

    def _give_up(self, parts: Sequence[_Part]) -> None:
        """Take rows out of the queue that need not be computed any more."""
        with self._changed:
            for part in parts:
                if part in self._queue:
                    self._queue.remove(part)
                    self._num_rows -= part.rows

    def _enqueue(self, parts: Sequence[_Part]) -> None:
        num_rows = sum(part.rows for part in parts)
        capacity = self._options.max_enqueued_batches * self._options.max_batch_size
        with self._changed:
            if self._is_closed:
                raise BatchFailed
            # A request that is larger than the queue is taken if nothing waits.
            if self._num_rows and self._num_rows + num_rows > capacity:
                raise RequestError(
                    "UNAVAILABLE",
                    f"{self._num_rows} rows wait for the model already; try again later",
                )
            is_first = not self._queue
            self._queue.extend(parts)
            self._num_rows += num_rows
            # A thread that waits for a full batch need not wake up for each of its rows.
            if is_first or self._is_full():
                self._changed.notify_all()

    def close(self) -> None:
        """End the threads. Nothing waits, as the version that has this queue is not used."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # ---- in the threads

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                self._compute(batch)
            finally:
                _tell(batch)
            del batch

    def _next_batch(self) -> list[_Part]:
        """Wait for a full batch, or until the timeout of its first rows; empty at the end."""
        with self._changed:
            while True:
                if not self._queue:
                    if self._is_closed:
                        return []
                    self._changed.wait()
                    continue
                left_s = self._queue[0].since + self._options.timeout_ms / 1000 - time.monotonic()
                if left_s <= 0 or self._is_full():
                    return self._take()
                self._changed.wait(left_s)

    def _is_full(self) -> bool:
        """Return True if it is of no use to wait for more rows."""
        if self._num_rows >= self._options.max_batch_size:
            return True
        return self._num_clients is not None and len(self._queue) >= self._num_clients()

    def _take(self) -> list[_Part]:
        """Take rows of one shape from the queue, in their order."""
        batch: list[_Part] = []
        num_rows = 0
        while self._queue:
            part = self._queue[0]
            is_alike = not batch or part.shapes == batch[0].shapes
            if not is_alike or num_rows + part.rows > self._options.max_batch_size:
                break
            batch.append(self._queue.popleft())
            num_rows += part.rows
        self._num_rows -= num_rows
        if self._queue:
            self._changed.notify()
        return batch

    def _compute(self, batch: Sequence[_Part]) -> None:
        num_rows = sum(part.rows for part in batch)
        try:
            columns = zip(*(part.arrays for part in batch), strict=True)
            arrays = [np.concatenate(c) if len(c) > 1 else c[0] for c in columns]
            inputs = [self._pad(array) for array in arrays]
            outputs = [np.asarray(array) for array in self._function(inputs)]
        except Exception:  # noqa: BLE001
            return  # Each request is computed alone, and gets its own error.
        if any(not array.ndim or len(array) != len(inputs[0]) for array in outputs):
            return
        start = 0
        for part in batch:
            end = start + part.rows
            part.outputs = [array[start:end] for array in outputs]
            part.batch_size = num_rows
            start = end

    def _pad(self, array: Array) -> Array:
        """Repeat the first row until there is an allowed number of rows."""
        sizes = self._options.allowed_batch_sizes or ()
        size = next((size for size in sizes if size >= len(array)), len(array))
        if size == len(array):
            return array
        return np.concatenate([array, np.repeat(array[:1], size - len(array), axis=0)])


def _join(parts: Sequence[_Part]) -> tuple[list[Array], int]:
    """Return the outputs of a request whose parts were computed, and the size of its batch."""
    outputs = [part.outputs for part in parts if part.outputs is not None]
    if len(outputs) < len(parts):
        raise BatchFailed
    batch_size = max(part.batch_size for part in parts)
    if len(parts) == 1:
        return outputs[0], batch_size
    return [np.concatenate(pieces) for pieces in zip(*outputs, strict=True)], batch_size


def _tell(batch: Sequence[_Part]) -> None:
    """Let requests go on; a loop of events is woken up once for all of them."""
    futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
    for part in batch:
        if isinstance(part.done, threading.Event):
            part.done.set()
        else:
            futures[part.done.get_loop()].append(part.done)
    for loop, ready in futures.items():
        # The server may have given the requests up and ended its loop.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_set_all, ready)


def _set_all(futures: "Sequence[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
