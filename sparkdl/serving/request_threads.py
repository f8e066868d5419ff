"""Runs anywhere (pure). Threads for requests, which do not hold the end of the process."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class RequestThreads(Executor):
    """An executor with daemon threads.

    A process waits at its end for the threads of `concurrent.futures.ThreadPoolExecutor`, and so
    for a request that was given up.

    Args:
        num_threads: the largest number of threads.
        name: the beginning of their names.

    Example:
        >>> with RequestThreads(2, "doc") as threads:
        ...     threads.submit(max, 1, 2).result()
        2
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._max_threads = num_threads
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._num_threads = 0
        self._is_shut = False

    def submit(self, function: Callable[..., T], /, *args: Any, **options: Any) -> "Future[T]":
        """Call a function in a thread.

        Raises:
            RuntimeError: after `shutdown`.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut:
                raise RuntimeError("the server has stopped, and takes no more requests")
            self._calls.put((future, functools.partial(function, *args, **options)))
            if not self._idle.acquire(blocking=False) and self._num_threads < self._max_threads:
                name = f"{self._name}-{self._num_threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._num_threads += 1
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they have nothing to do; never wait for them."""
        with self._lock:
            self._is_shut = True
            while cancel_futures and (item := self._next_call()):
                item[0].cancel()
            for _ in range(self._num_threads):
                self._calls.put(None)

    def _next_call(self) -> tuple["Future[Any]", Callable[[], Any]] | None:
        try:
            return self._calls.get_nowait()
        except Empty:
            return None

    def _work(self) -> None:
        while item := self._calls.get():
            while item:
                _call(*item)
                item = self._next_call()
            if self._is_shut:
                return
            self._idle.release()


def _call(future: "Future[Any]", function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as exc:  # noqa: BLE001 The owner of the future gets it.
        future.set_exception(exc)
    else:
        future.set_result(result)
