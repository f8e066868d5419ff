"""Where it runs: T and P. Queues and values that processes of one host share.

They are kept by a thread of the process that calls `start`, and end with it. Others reach them
over a Unix socket in a private folder, and only with the key: `multiprocessing` asks for it before
it reads anything else.
"""

import queue
import threading
from collections.abc import Iterable
from multiprocessing.managers import BaseManager
from typing import Any

__all__ = ["TFManager", "connect", "start"]


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
