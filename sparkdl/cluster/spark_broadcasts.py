"""Runs on the driver, and in Spark tasks. Send the large parts of tasks to each executor once.

Spark pickles the function of each job, and writes a function above 1 MiB to a file of the driver
that stays until the application ends. Here, parts that many tasks have in common become broadcast
variables, and so does a single large task. The files of broadcast variables are removed when no
task needs them any more.
"""

import contextlib
import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sparkdl.host.pickler import Pickler

# Below the size from which Spark writes a function to a file, with room for the rest of it.
MAX_INLINE_BYTES = 512 << 10


class _Pickler(Pickler):
    """A pickler that writes the key of a shared object in place of the object."""

    def __init__(self, file: io.BytesIO, keys: dict[int, int]) -> None:
        super().__init__(file)
        self._keys = keys

    def persistent_id(self, obj: Any) -> int | None:
        """Return the key of a shared object; None for other objects."""
        return self._keys.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, broadcasts: list[Any]) -> None:
        super().__init__(file)
        self._broadcasts = broadcasts

    def persistent_load(self, pid: Any) -> Any:
        """Return the shared object with a key; a Python worker loads the object once."""
        return self._broadcasts[pid].value


@dataclass(frozen=True)
class BroadcastTask:
    """A task as Spark gets it, without its shared parts.

    Attributes:
        pickled: the pickled task, or a broadcast variable of the pickled task.
        broadcasts: the broadcast variables of the shared objects.
    """

    pickled: Any
    broadcasts: list[Any]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Run the task."""
        pickled = self.pickled if isinstance(self.pickled, bytes) else self.pickled.value
        task = _Unpickler(io.BytesIO(pickled), self.broadcasts).load()
        results: Iterator[Any] = task(batches)
        return results


class SparkBroadcasts:
    """The broadcast variables of the tasks of one cluster.

    Args:
        context: makes broadcast variables, see `ClassicContext`; None for Spark Connect, which
            has none and sends all of a task with each job.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._shared: list[tuple[object, Any]] = []

    def share(self, value: object) -> Callable[[], None]:
        """Send an object to each executor once, instead of with each task that contains it.

        Returns:
            The function that removes the copies, for the time when no task contains the object.
        """
        if self._context is None:
            return lambda: None
        entry = (value, self._context.broadcast(value))
        self._shared = [*self._shared, entry]

        def release() -> None:
            self._shared = [other for other in self._shared if other is not entry]
            _destroy(entry[1])

        return release

    @contextlib.contextmanager
    def broadcast_task(self, task: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
        """Yield the task as Spark gets it; its own broadcast variable exists in the block only."""
        if self._context is None:
            yield task
            return
        shared = self._shared
        file = io.BytesIO()
        _Pickler(file, {id(value): key for key, (value, _) in enumerate(shared)}).dump(task)
        broadcasts = [broadcast for _, broadcast in shared]
        if file.tell() <= MAX_INLINE_BYTES:
            yield BroadcastTask(file.getvalue(), broadcasts)
            return
        own = self._context.broadcast(file.getvalue())
        try:
            yield BroadcastTask(own, broadcasts)
        finally:
            _destroy(own)


def _destroy(broadcast: Any) -> None:
    # An application that has ended has removed its broadcast variables.
    with contextlib.suppress(Exception):
        broadcast.destroy()
