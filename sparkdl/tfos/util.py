"""Runs in a Spark task and in the training process. Provide helpers for one process of a host."""

import os
import socket
import subprocess
from collections.abc import Sequence

from sparkdl.tfos import gpu_info
from sparkdl.tfos.absent_names import absent_names

__all__ = [
    "find_in_path",
    "get_ip_address",
    "read_executor_id",
    "single_node_env",
    "write_executor_id",
]

__getattr__ = absent_names(__name__, __all__)

_EXECUTOR_ID = "executor_id"
# An address reserved for documentation (RFC 5737). Connecting a UDP socket sends no packet.
_EXTERNAL_ADDRESS = ("192.0.2.1", 80)


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: Sequence[str] = ()) -> None:
    """Set the environment of a process that runs TensorFlow alone: GPUs and Hadoop's jars.

    `CUDA_VISIBLE_DEVICES` is set to free GPUs that this process may use, or to an empty string if
    the process may use none or `num_gpus` is 0. All jars of Hadoop are added to `CLASSPATH` if
    `HADOOP_PREFIX` contains the folder of Hadoop.

    Args:
        num_gpus: number of GPUs.
        worker_index: number of this node among all nodes; -1 chooses GPUs at random.
        nodes: the `host:port` of all nodes; nodes of one host then get different GPUs.

    Raises:
        RuntimeError: if fewer GPUs are free.

    Example:
        >>> previous = os.environ.get("CUDA_VISIBLE_DEVICES")
        >>> single_node_env(num_gpus=0)
        >>> os.environ.pop("CUDA_VISIBLE_DEVICES")
        ''
        >>> os.environ.update({} if previous is None else {"CUDA_VISIBLE_DEVICES": previous})
    """
    _expand_classpath()
    gpus = ""
    if num_gpus > 0 and gpu_info.is_gpu_available():
        index = worker_index
        if index >= 0 and nodes:
            host = _host(nodes[index])
            index = [node for node in nodes if _host(node) == host].index(nodes[index])
        gpus = str(gpu_info.get_gpus(num_gpus, index))
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus


def _host(node: str) -> str:
    return node.rpartition(":")[0]


def _expand_classpath() -> None:
    """Add all jars of Hadoop to `CLASSPATH`. The JVM in TensorFlow's process expands no `*`."""
    if "HADOOP_PREFIX" not in os.environ or "TFOS_CLASSPATH_UPDATED" in os.environ:
        return
    hadoop = os.path.join(os.environ["HADOOP_PREFIX"], "bin", "hadoop")
    jars = subprocess.check_output([hadoop, "classpath", "--glob"], text=True).strip()
    previous = os.environ.get("CLASSPATH")
    os.environ["CLASSPATH"] = f"{previous}{os.pathsep}{jars}" if previous else jars
    os.environ["TFOS_CLASSPATH_UPDATED"] = "1"


def get_ip_address() -> str:
    """Return the IP address of this host in its network.

    A host without a network returns the address of its host name.

    Example:
        >>> get_ip_address().count(".")
        3
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_EXTERNAL_ADDRESS)
        except OSError:
            return socket.gethostbyname(socket.gethostname())
        return str(probe.getsockname()[0])


def find_in_path(path: str, file: str) -> str | bool:
    """Return the path of the first file with a name in a search path, or False if there is none.

    Args:
        path: folders separated by `:`, such as `os.environ["PATH"]`.
        file: name of the file.

    Example:
        >>> find_in_path("/nowhere:/bin", "sh"), find_in_path("/nowhere", "sh")
        ('/bin/sh', False)
    """
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, file)
        if os.path.isfile(candidate):
            return candidate
    return False


def write_executor_id(num: int) -> None:
    """Write a number to the file `executor_id` of the working directory, for `read_executor_id`.

    sparkdl itself neither writes nor reads the file: feed tasks find their nodes without it.

    Example:
        >>> write_executor_id(3)
        >>> read_executor_id()
        3
    """
    with open(_EXECUTOR_ID, "w", encoding="ascii") as file:
        file.write(str(num))


def read_executor_id() -> int:
    """Return the number that `write_executor_id` has written in this working directory.

    Raises:
        FileNotFoundError: if the working directory has no such file.
    """
    try:
        with open(_EXECUTOR_ID, encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no file {_EXECUTOR_ID!r} in {os.getcwd()}; call util.write_executor_id in this "
            "folder first. In a node, use ctx.executor_id."
        ) from None
