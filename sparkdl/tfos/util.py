"""Runs in a Spark task and in the training process.

TensorFlowOnSpark's helpers for a process of one host.
"""

import os
import socket
import subprocess
from collections.abc import Sequence

from sparkdl.tfos import gpu_info

__all__ = [
    "find_in_path",
    "get_ip_address",
    "read_executor_id",
    "single_node_env",
    "write_executor_id",
]

_EXECUTOR_ID = "executor_id"
# Addresses for documentation (RFC 5737): nobody is there, and nothing is sent.
_OUTSIDE = ("192.0.2.1", 80)


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: Sequence[str] = ()) -> None:
    """Set the environment of a process that runs TensorFlow alone: Hadoop's jars, and its GPUs.

    `CUDA_VISIBLE_DEVICES` becomes free GPUs among those that this process may use, or empty if
    there are none or none is wanted. `CLASSPATH` gets all of Hadoop's jars where `HADOOP_PREFIX`
    says where Hadoop is.

    Args:
        num_gpus: how many GPUs.
        worker_index: this node among all; -1 takes any GPUs.
        nodes: `host:port` of all nodes: those of one host then take different GPUs.

    Raises:
        RuntimeError: fewer GPUs are free.

    Example:
        >>> before = os.environ.get("CUDA_VISIBLE_DEVICES")
        >>> single_node_env(num_gpus=0)
        >>> os.environ.pop("CUDA_VISIBLE_DEVICES")
        ''
        >>> os.environ.update({} if before is None else {"CUDA_VISIBLE_DEVICES": before})
    """
    _expand_classpath()
    chosen = ""
    if num_gpus > 0 and gpu_info.is_gpu_available():
        index = worker_index
        if index >= 0 and nodes:
            host = _host(nodes[index])
            index = [node for node in nodes if _host(node) == host].index(nodes[index])
        chosen = str(gpu_info.get_gpus(num_gpus, index))
    os.environ["CUDA_VISIBLE_DEVICES"] = chosen


def _host(node: str) -> str:
    return node.rpartition(":")[0]


def _expand_classpath() -> None:
    """The JVM within TensorFlow's process does not expand `*` in a class path itself."""
    if "HADOOP_PREFIX" not in os.environ or "TFOS_CLASSPATH_UPDATED" in os.environ:
        return
    hadoop = os.path.join(os.environ["HADOOP_PREFIX"], "bin", "hadoop")
    jars = subprocess.check_output([hadoop, "classpath", "--glob"], text=True).strip()
    before = os.environ.get("CLASSPATH")
    os.environ["CLASSPATH"] = f"{before}{os.pathsep}{jars}" if before else jars
    os.environ["TFOS_CLASSPATH_UPDATED"] = "1"


def get_ip_address() -> str:
    """This host's address towards other hosts; its own name's where it has no network.

    Example:
        >>> get_ip_address().count(".")
        3
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_OUTSIDE)
        except OSError:
            return socket.gethostbyname(socket.gethostname())
        return str(probe.getsockname()[0])


def find_in_path(path: str, file: str) -> str | bool:
    """The first file of this name in the folders of a search path; False if there is none.

    Args:
        path: folders with `:` between them, such as `os.environ["PATH"]`.
        file: the file's name.

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
    """Write a number into the file `executor_id` of the working folder, for `read_executor_id`.

    sparkdl itself neither writes nor reads this file: a feeding task finds its node otherwise.

    Example:
        >>> write_executor_id(3)
        >>> read_executor_id()
        3
    """
    with open(_EXECUTOR_ID, "w", encoding="ascii") as file:
        file.write(str(num))


def read_executor_id() -> int:
    """The number that `write_executor_id` has written in this working folder.

    Raises:
        FileNotFoundError: it has written none here.
    """
    try:
        with open(_EXECUTOR_ID, encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no file {_EXECUTOR_ID!r} in {os.getcwd()}; expected one that "
            "util.write_executor_id has written there. In a node, ctx.executor_id is its number."
        ) from None
