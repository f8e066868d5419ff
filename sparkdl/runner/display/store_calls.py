"""Runs on the driver. Calls that wait for a remote store, beside the loop of the run."""

import queue
import threading
from collections.abc import Callable

from sparkdl.files import storage

# With 30 ms for a request, this many threads make about 500 requests in a second.
NUM_THREADS = 16


class StoreCalls:
    """Make calls that read and write files of a run, a few at a time, in the order of the calls.

    On a local disk a call is made at once. On a remote store, where each request takes a while,
    threads make the calls, so that the loop of the run need not wait.

    Args:
        url: the folder of the run.

    Example:
        >>> calls = StoreCalls("memory://runs/a")
        >>> calls.call(lambda: storage.write("memory://runs/a/file", "text"))
        >>> calls.wait()
        >>> storage.read("memory://runs/a/file")
        b'text'
    """

    def __init__(self, url: str) -> None:
        self._is_local = storage.is_local(url)
        self._calls: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self._num_threads = 0

    def call(self, function: Callable[[], object]) -> None:
        """Call a function, which must not raise; calls of one thread only."""
        if self._is_local:
            function()
            return
        self._calls.put(function)
        if self._num_threads < NUM_THREADS and self._calls.unfinished_tasks > self._num_threads:
            try:
                threading.Thread(target=self._work, name="sparkdl-store", daemon=True).start()
                self._num_threads += 1
            except RuntimeError:  # Python starts no threads after the end of the main thread.
                if not self._num_threads:
                    self._make_one()

    def wait(self) -> None:
        """Wait until all calls have been made, and end the threads."""
        for _ in range(self._num_threads):
            self._calls.put(None)
        self._num_threads = 0
        self._calls.join()

    def _work(self) -> None:
        while self._make_one():
            pass

    def _make_one(self) -> bool:
        """Make the next call; return False for the end of a thread."""
        function = self._calls.get()
        try:
            if function:
                function()
        finally:
            self._calls.task_done()
        return function is not None
