"""Runs in a Spark task and in the training process.

Queues and values that processes of one host share.

They are kept by a thread of the process that calls `start`, and end with it. Others reach them
over a Unix socket in a private folder, and only with the key: `multiprocessing` asks for it before
it reads anything else.
"""

import queue
import threading
from collections.abc import Iterable
from multiprocessing.managers import BaseManager
from typing import Any

from sparkdl.tfos.feed.inbox import Cut

__all__ = ["Queued", "TFManager", "connect", "start"]


class TFManager(BaseManager):
    """Access to the queues and values.

    `get_queue(name)` is a queue with `put`, `get`, `task_done` and `join`, or a proxy of None;
    `set(key, value)` and `get(key)` keep values. What `get` returns is a proxy too:
    `get(key)._getvalue()` is the value, and `str(get(key))` its `repr`.
    """


for _name in ("get_queue", "get", "set"):
    TFManager.register(_name)


def start(authkey: bytes, queues: Iterable[str], mode: str = "local") -> TFManager:
    """Keep queues and values in this process.

    Args:
        authkey: the key that others need.
        queues: the names of the queues.
        mode: `local`: for processes of this host.

    Raises:
        ValueError: another mode. `remote`, for other hosts, is not offered: it would unpickle what
            comes over an open port.

    Example:
        >>> manager = start(b"a key", ["input"])
        >>> other = connect(manager.address, b"a key")
        >>> other.get_queue("input").put([1, 2])
        >>> manager.get_queue("input").get()
        [1, 2]
        >>> _ = manager.set("state", "running")
        >>> str(other.get("state"))
        "'running'"
    """
    if mode != "local":
        raise ValueError(
            f"mode is {mode!r}; expected 'local'. Nothing here listens on a port for pickled "
            "objects: let nodes of other hosts share files, or torch.distributed, or tf.distribute."
        )
    kept: dict[str, queue.Queue[Any]] = {name: queue.Queue() for name in queues}
    values: dict[str, Any] = {}

    class Keeper(BaseManager):
        pass

    Keeper.register("get_queue", callable=kept.get)
    Keeper.register("get", callable=values.__getitem__)
    Keeper.register("set", callable=values.__setitem__)
    server = Keeper(authkey=authkey).get_server()
    threading.Thread(target=server.serve_forever, name="TFManager", daemon=True).start()
    return connect(server.address, authkey)


def connect(address: Any, authkey: bytes) -> TFManager:
    """Reach the queues and values of another process.

    Args:
        address: the `address` of what `start` has returned.
        authkey: its key.

    Raises:
        multiprocessing.AuthenticationError: the key is another.
        OSError: nobody is there.
    """
    manager = TFManager(address, authkey=authkey)
    manager.connect()
    return manager


class Queued:
    """What a `TFNode.DataFeed` takes from a manager's queues, one row at a time; None ends it.

    Nodes are fed otherwise. Programs test their functions so, without a cluster.

    Args:
        manager: has the queues.
        qname_out: the queue for results.
    """

    is_terminating = False

    def __init__(self, manager: Any, qname_out: str) -> None:
        self._manager, self._qname_out = manager, qname_out

    def take(self, qname: str, most: int | None = None) -> "list[Any] | Cut":
        """The next row of a queue, or the end of the feed; waits for it."""
        rows = self._manager.get_queue(qname)
        row = rows.get()
        rows.task_done()
        return Cut.FEED if row is None else [row]

    def give(self, results: Iterable[Any]) -> None:
        """Put results into the other queue."""
        for result in results:
            self._manager.get_queue(self._qname_out).put(result)

    def terminate(self) -> None:
        """Let whoever feeds know that no more rows are wanted."""
        self._manager.set("state", "terminating")
