"""Runs on the driver and in Spark tasks. Let nodes register with each other, through files.

The server of TensorFlowOnSpark listens on all interfaces and unpickles all data it receives. In
this module, clients write JSON files to a folder below the root of the runs, which the driver and
all executors can access. No port is opened, and reading a file never runs code. `TFCluster.run`
does not use this module.
"""

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from sparkdl import storage
from sparkdl.cluster.spark import SparkCluster
from sparkdl.rank_files import RankFiles

__all__ = ["Client", "Reservations", "Server"]

_POLL_S = 0.1
# The names of files and of a folder in the folder of a server.
_COUNT = "count.json"
_STOP = "stop"
_NODES = "nodes"


class Reservations:
    """The nodes that have registered, and the number of nodes that are expected.

    Args:
        required: number of nodes that are expected.

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
        """Add a node.

        Args:
            meta: the facts of the node for the other nodes.
        """
        self._nodes.append(meta)

    def done(self) -> bool:
        """Return True if all nodes have registered."""
        return self.remaining() <= 0

    def get(self) -> list[Any]:
        """Return the nodes in the order of their registration."""
        return self._nodes

    def remaining(self) -> int:
        """Return the number of nodes that have not registered yet."""
        return self.required - len(self._nodes)


class Server:
    """A folder in which nodes register.

    Args:
        count: number of nodes that are expected.

    Raises:
        ValueError: if `count` is less than 1.

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
        """The nodes that have registered so far."""
        reservations = Reservations(self._required)
        for meta in _nodes(self._folder):
            reservations.add(meta)
        return reservations

    @property
    def done(self) -> bool:
        """Return True if `stop` was called, or a client has called `request_stop`."""
        return self._folder is None or storage.exists(storage.join(self._folder, _STOP))

    def start(self) -> str:
        """Create the folder and return its path, the address for `Client`."""
        root = storage.absolute(SparkCluster().root())
        self._folder = storage.join(root, f"reservations-{uuid.uuid4().hex}")
        storage.write(storage.join(self._folder, _COUNT), json.dumps(self._required))
        return self._folder

    def await_reservations(
        self, sc: Any, status: Mapping[str, Any] | None = None, timeout: float = 600
    ) -> list[Any]:
        """Wait until all nodes have registered, and return them.

        Args:
            sc: ignored; the SparkContext is never stopped.
            status: a dict to which another thread adds a key `error` to end the wait.
            timeout: maximum time to wait, in seconds.

        Raises:
            RuntimeError: if `status` contains an error.
            TimeoutError: if some nodes have not registered in time.
        """
        deadline = time.monotonic() + timeout
        pause_s = _pause_s(self._folder or "", self._required)
        while (num_missing := self._required - len(_names(self._folder))) > 0:
            if status and "error" in status:
                raise RuntimeError(f"a node has failed: {status['error']}")
            if time.monotonic() > deadline:
                raise TimeoutError(
                    "timed out waiting for reservations to complete: "
                    f"{num_missing} of {self._required} nodes have not registered "
                    f"within {timeout:g} s. Check whether Spark has a slot for each node, or raise "
                    "the timeout."
                )
            time.sleep(pause_s)
        return self.reservations.get()

    def stop(self) -> None:
        """Remove the folder."""
        if self._folder:
            storage.remove(self._folder)
        self._folder = None


class Client:
    """A client with which a node registers.

    Args:
        server_addr: the address that `Server.start` returned.

    Raises:
        ConnectionError: if there is no such server, or the server has stopped.
    """

    def __init__(self, server_addr: str) -> None:
        self.server_addr = server_addr
        self._num_required()

    def _num_required(self) -> int:
        try:
            return int(json.loads(storage.read(storage.join(self.server_addr, _COUNT))))
        except FileNotFoundError:
            raise ConnectionError(
                f"no reservation server has its folder at {self.server_addr!r}: it has stopped, "
                "or this host cannot access the folder. Set spark.sparkdl.root to a location that "
                "the driver and all executors can access."
            ) from None

    def register(self, reservation: Any) -> str:
        """Register a node and return `OK`.

        Args:
            reservation: the facts of the node, as a value that JSON can store.

        Raises:
            TypeError: if JSON cannot store the value.
        """
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex}.json"
        storage.write(storage.join(self.server_addr, _NODES, name), json.dumps(reservation))
        return "OK"

    def get_reservations(self) -> list[Any]:
        """Return the nodes that have registered so far, in the order of their registration."""
        return _nodes(self.server_addr)

    def await_reservations(self) -> list[Any]:
        """Wait until all nodes have registered, and return them.

        Raises:
            ConnectionError: if the server has stopped.
        """
        required = self._num_required()
        while len(names := _names(self.server_addr)) < required:
            if not names:  # Perhaps the server has removed its folder.
                self._num_required()
            time.sleep(_pause_s(self.server_addr, required))
        return self.get_reservations()

    def request_stop(self) -> str:
        """Set `done` of the server to True, and return `OK`."""
        storage.write(storage.join(self.server_addr, _STOP), b"")
        return "OK"

    def close(self) -> None:
        """Do nothing: a client holds no connection."""


def _names(folder: str | None) -> list[str]:
    """Return the names of the files of all nodes that have registered, with one request."""
    names = storage.list_names(storage.join(folder, _NODES)) if folder else []
    return [name for name in names if not name.startswith(".")]  # Files that are being written.


def _nodes(folder: str | None) -> list[Any]:
    urls = [storage.join(folder or "", _NODES, name) for name in _names(folder)]
    contents = storage.read_new(dict.fromkeys(urls, 0))
    return [json.loads(contents[url]) for url in urls if url in contents]


def _pause_s(folder: str, num_nodes: int) -> float:
    """Return the seconds between two looks of a node."""
    return RankFiles(folder).poll_s(num_nodes, _POLL_S)
