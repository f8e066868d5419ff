"""Runs on the driver. Threads that wait for Spark jobs, also after the main thread has ended."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class JobThreads:
    """Call functions in threads, as many at once as there are calls.

    `concurrent.futures.ThreadPoolExecutor` refuses new calls when the main thread of the program
    has ended, at which time a run in the background goes on. Python 3.12 and later also refuse to
    start threads then: calls wait for one of the threads that exist.

    Args:
        name: the name of the threads.
        num_ready: number of threads to start at once.

    Example:
        >>> threads = JobThreads("doc")
        >>> threads.submit(max, 1, 2).result()
        2
        >>> threads.close()
    """

    def __init__(self, name: str, num_ready: int = 0) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._num_threads = 0
        for _ in range(num_ready):
            self._start_thread()
            self._idle.release()

    def submit(self, function: Callable[..., T], *args: Any, **options: Any) -> "Future[T]":
        """Call a function in a thread.

        Returns:
            The future value of the function.
        """
        future: Future[T] = Future()

        def call() -> None:
            try:
                result = function(*args, **options)
            except BaseException as exc:  # noqa: BLE001 The owner of the future gets it.
                future.set_exception(exc)
            else:
                future.set_result(result)

        if not self._idle.acquire(blocking=False):
            try:
                self._start_thread()
            except RuntimeError:  # The interpreter shuts down, or has too many threads.
                if not self._num_threads:
                    raise
        self._calls.put(call)
        return future

    def _start_thread(self) -> None:
        name = f"{self._name}-{self._num_threads}"
        threading.Thread(target=self._work, name=name, daemon=True).start()
        self._num_threads += 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # The result may be large.
            self._idle.release()

    def close(self) -> None:
        """Let the threads end when their calls have returned."""
        for _ in range(self._num_threads):
            self._calls.put(None)
