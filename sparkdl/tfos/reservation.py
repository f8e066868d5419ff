"""Runs on the driver and in Spark tasks. Nodes that tell each other of themselves, through files.

TensorFlowOnSpark's server listened on all interfaces and unpickled whatever arrived. Here its
clients write JSON files into a folder that the driver and all executors see, below the root of
the runs: nothing listens, and nothing that is read can run. `TFCluster.run` does not need it.
"""

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from sparkdl import storage
from sparkdl.cluster.spark import SparkCluster

__all__ = ["Client", "Reservations", "Server"]

_POLL_S = 0.1
_COUNT, _STOP, _NODES = "count.json", "stop", "nodes"


class Reservations:
    """Nodes that have reported, of so many that are expected.

    Args:
        required: how many are expected.

    Example:
        >>> nodes = Reservations(2)
        >>> nodes.add({"host": "a"})
        >>> nodes.done(), nodes.remaining(), nodes.get()
        (False, 1, [{'host': 'a'}])
    """

    def __init__(self, required: int) -> None:
        self.required = required
        self._nodes: list[Any] = []

    def add(self, meta: Any) -> None:
        """Add a node: what the others shall know of it."""
        self._nodes.append(meta)

    def done(self) -> bool:
        """Whether all have reported."""
        return self.remaining() <= 0

    def get(self) -> list[Any]:
        """The nodes that have reported, in that order."""
        return self._nodes

    def remaining(self) -> int:
        """How many are still expected."""
        return self.required - len(self._nodes)


class Server:
    """The folder in which nodes report.

    Args:
        count: how many nodes are expected.

    Raises:
        ValueError: fewer than one.

    Example:
        >>> server = Server(1)
        >>> client = Client(server.start())
        >>> client.register({"host": "a", "port": 2222})
        'OK'
        >>> client.await_reservations() == server.await_reservations(sc=None)
        True
        >>> server.stop()
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"`count >= 1` must hold, but got ({count=}).")
        self._required = count
        self._folder: str | None = None

    @property
    def reservations(self) -> Reservations:
        """The nodes that have reported until now."""
        found = Reservations(self._required)
        for meta in _nodes(self._folder) if self._folder else ():
            found.add(meta)
        return found

    @property
    def done(self) -> bool:
        """Whether `stop` was called, or a client has asked for it."""
        return self._folder is None or storage.exists(storage.join(self._folder, _STOP))

    def start(self) -> str:
        """Make the folder; returns the address that a `Client` takes."""
        root = storage.absolute(SparkCluster().root())
        self._folder = storage.join(root, f"reservations-{uuid.uuid4().hex}")
        storage.write(storage.join(self._folder, _COUNT), json.dumps(self._required))
        return self._folder

    def await_reservations(
        self, sc: Any, status: Mapping[str, Any] | None = None, timeout: float = 600
    ) -> list[Any]:
        """Wait until all nodes have reported.

        Args:
            sc: not needed; the SparkContext is never stopped.
            status: a dict that another thread puts an `error` into, to end the waiting.
            timeout: seconds.

        Raises:
            RuntimeError: there is an error in `status`.
            TimeoutError: some nodes have not reported in time.
        """
        deadline = time.monotonic() + timeout
        while not (found := self.reservations).done():
            if status and "error" in status:
                raise RuntimeError(f"a node has failed: {status['error']}")
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"timed out waiting for reservations to complete: {found.remaining()} of "
                    f"{self._required} nodes have not reported within {timeout:g} s. See whether "
                    "Spark has a slot for each, or raise the timeout."
                )
            time.sleep(_POLL_S)
        return found.get()

    def stop(self) -> None:
        """Remove the folder."""
        if self._folder:
            storage.remove(self._folder)
        self._folder = None


class Client:
    """What a node reports with.

    Args:
        server_addr: what `Server.start` has returned.

    Raises:
        ConnectionError: there is no such server, or it has stopped.
    """

    def __init__(self, server_addr: str) -> None:
        self.server_addr = server_addr
        self._required()

    def _required(self) -> int:
        try:
            return int(json.loads(storage.read(storage.join(self.server_addr, _COUNT))))
        except FileNotFoundError:
            raise ConnectionError(
                f"no reservation server has its folder at {self.server_addr!r}: it has stopped, "
                "or this host does not see the folder. Set spark.sparkdl.root to a place that "
                "the driver and all executors see."
            ) from None

    def register(self, reservation: Any) -> str:
        """Report a node: anything that JSON can hold. Returns `OK`.

        Raises:
            TypeError: JSON cannot hold it.
        """
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex}.json"
        storage.write(storage.join(self.server_addr, _NODES, name), json.dumps(reservation))
        return "OK"

    def get_reservations(self) -> list[Any]:
        """The nodes that have reported until now, in that order."""
        return _nodes(self.server_addr)

    def await_reservations(self) -> list[Any]:
        """Wait until all nodes have reported, and return them.

        Raises:
            ConnectionError: the server has stopped.
        """
        while self._required() > len(self.get_reservations()):
            time.sleep(_POLL_S)
        return self.get_reservations()

    def request_stop(self) -> str:
        """Ask the server to stop: its `done` is True from now on. Returns `OK`."""
        storage.write(storage.join(self.server_addr, _STOP), b"")
        return "OK"

    def close(self) -> None:
        """Nothing is open."""


def _nodes(folder: str) -> list[Any]:
    nodes = storage.join(folder, _NODES)
    return [
        json.loads(storage.read(storage.join(nodes, name)))
        for name in storage.names(nodes)
        if not name.startswith(".")  # Half written.
    ]
