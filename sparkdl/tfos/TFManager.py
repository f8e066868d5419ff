"""Runs in a Spark task and in the training process. Share queues and values on one host.

A thread of the process that calls `start` serves the queues and values until the process ends.
Other processes connect over a Unix socket in a private folder. They need the key, which
`multiprocessing` checks before it reads any other data.
"""

import queue
import threading
from collections.abc import Iterable
from multiprocessing.managers import BaseManager
from typing import Any

from sparkdl.tfos.absent_names import absent_names

__all__ = ["TFManager", "connect", "start"]

__getattr__ = absent_names(__name__, __all__)


class TFManager(BaseManager):
    """A client of the shared queues and values.

    `get_queue(name)` returns a queue with `put`, `get`, `task_done` and `join`, or a proxy of None
    if there is no such queue. `set(key, value)` stores a value. `get(key)` returns a proxy:
    `get(key)._getvalue()` is the value, and `str(get(key))` is the `repr` of the value.
    """


for _name in ("get_queue", "get", "set"):
    TFManager.register(_name)


def start(authkey: bytes, queues: Iterable[str], mode: str = "local") -> TFManager:
    """Serve queues and values from this process.

    Args:
        authkey: the key that other processes need to connect.
        queues: the names of the queues.
        mode: `local`, for processes of this host.

    Raises:
        ValueError: if `mode` is not `local`. TensorFlowOnSpark's mode `remote`, for other hosts, is
            not supported: it would unpickle data from an open port.

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
            f"mode is {mode!r}; expected 'local'. sparkdl opens no port for pickled objects. To "
            "exchange data with other hosts use files, torch.distributed or tf.distribute."
        )
    by_name: dict[str, queue.Queue[Any]] = {name: queue.Queue() for name in queues}
    values: dict[str, Any] = {}

    class ServerManager(BaseManager):
        pass

    ServerManager.register("get_queue", callable=by_name.get)
    ServerManager.register("get", callable=values.__getitem__)
    ServerManager.register("set", callable=values.__setitem__)
    server = ServerManager(authkey=authkey).get_server()
    threading.Thread(target=server.serve_forever, name="TFManager", daemon=True).start()
    return connect(server.address, authkey)


def connect(address: Any, authkey: bytes) -> TFManager:
    """Connect to the queues and values of another process.

    Args:
        address: the `address` of the manager that `start` returned.
        authkey: the key that was passed to `start`.

    Raises:
        multiprocessing.AuthenticationError: if the key is wrong.
        OSError: if no process is listening at the address.
    """
    manager = TFManager(address, authkey=authkey)
    manager.connect()
    return manager
