"""Runs in the training process. A node: what its function is given, and the function itself."""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl import context, storage
from sparkdl.context import Context
from sparkdl.distribute.strategies import correct_keras
from sparkdl.runs.layout import TrialPaths
from sparkdl.tfos import TFNode
from sparkdl.tfos.cluster.node_files import NODES
from sparkdl.tfos.feed.inbox import Inbox
from sparkdl.tfos.node import tensorboard_server

__all__ = ["QUEUES", "Meta", "NodeManager", "TFNodeContext", "run_alone", "run_node"]

QUEUES = ("input", "output", "error")

TRAINING = ("chief", "master", "worker")


@dataclass(frozen=True)
class Meta:
    """What all nodes of a cluster know.

    Attributes:
        places: their job and index, by executor id.
        default_fs, working_dir: of the driver.
        release_port: close the port that is held for a node before its function is called.
        board: the executor id of the node that runs TensorBoard; None for none.
        log_dir: what TensorBoard shows.
        queues: the names of the queues.
    """

    places: Sequence[tuple[str, int]]
    default_fs: str
    working_dir: str
    release_port: bool = True
    board: int | None = None
    log_dir: str | None = None
    queues: Sequence[str] = QUEUES


class Value:
    """A value as a manager's proxy gives it, which programs compare as text.

    Example:
        >>> value = Value("running")
        >>> value._getvalue(), str(value) == "'running'"
        ('running', True)
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def _getvalue(self) -> Any:
        return self._value

    def __str__(self) -> str:
        return repr(self._value)


class NodeManager:
    """What `ctx.mgr` is: the node's state, and the way to the rows that it is fed.

    Attributes:
        inbox: where rows arrive; None where Spark feeds none.
        queues: the names of the queues.
    """

    def __init__(self, inbox: Inbox | None = None, queues: Sequence[str] = QUEUES) -> None:
        self.inbox, self.queues = inbox, queues
        self._values: dict[str, Any] = {}

    def get(self, key: str) -> "Value":
        """A value that was set; `state` is `running` or `terminating`."""
        if key == "state":
            return Value("terminating" if self.inbox and self.inbox.is_terminating else "running")
        return Value(self._values[key])

    def set(self, key: str, value: Any) -> None:
        """Keep a value for this node's function."""
        if key == "state" and value == "terminating" and self.inbox:
            self.inbox.terminate()
        self._values[key] = value


class TFNodeContext:
    """What a node's function gets as `ctx`.

    Attributes:
        executor_id, worker_num: this node among all, from 0.
        job_name, task_index: its role, such as `worker`, and its place among those.
        cluster_spec: the `address:port` of all nodes, by job.
        num_workers: how many train: `chief`, `master` and `worker`.
        defaultFS, working_dir: the driver's default filesystem and folder, see `absolute_path`.
        mgr: what a `TFNode.DataFeed` is made of.
        tmp_socket: holds this node's port, with `release_port=False`; else None.
    """

    def __init__(
        self,
        executor_id: int = 0,
        job_name: str = "",
        task_index: int = 0,
        cluster_spec: Mapping[str, list[str]] | None = None,
        defaultFS: str = "file://",
        working_dir: str = ".",
        mgr: Any = None,
        tmp_socket: socket.socket | None = None,
    ) -> None:
        self.worker_num = self.executor_id = executor_id
        self.job_name, self.task_index = job_name, task_index
        self.cluster_spec = dict(cluster_spec or {})
        training = (nodes for job, nodes in self.cluster_spec.items() if job in TRAINING)
        self.num_workers = sum(map(len, training))
        self.defaultFS, self.working_dir = defaultFS, working_dir
        self.mgr, self.tmp_socket = mgr, tmp_socket

    def absolute_path(self, path: str) -> str:
        """See `TFNode.hdfs_path`."""
        return TFNode.hdfs_path(self, path)

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
        """See `TFNode.start_cluster_server`."""
        return TFNode.start_cluster_server(self, num_gpus, rdma)

    def export_saved_model(
        self, sess: Any, export_dir: str, tag_set: str, signatures: Mapping[str, Any]
    ) -> None:
        """See `TFNode.export_saved_model`."""
        TFNode.export_saved_model(sess, export_dir, tag_set, signatures)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> TFNode.DataFeed:
        """See `TFNode.DataFeed`."""
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """See `TFNode.release_port`."""
        TFNode.release_port(self)


def run_node(map_fun: Callable[[Any, Any], Any], tf_args: Any, meta: Meta) -> None:
    """Run the function of this node's cluster.

    Args:
        map_fun: the person's function of `(args, ctx)`.
        tf_args: its first argument; a list also becomes `sys.argv`.
        meta: of the cluster.
    """
    me = context.current()
    place = meta.places.index((me.role, me.index))
    spec = cluster_spec(meta.places, json.loads(os.environ[NODES]))
    _export(spec)
    held = socket.socket(fileno=me.port) if me.port is not None else None
    if held and meta.release_port:
        held.close()
        held = None
    inbox = None
    if me.inbox is not None:
        listener = socket.socket(fileno=me.inbox)
        inbox = Inbox(listener, lambda: _tell(me, "terminated", b""))
    ctx = TFNodeContext(
        *(place, me.role, me.index, spec, meta.default_fs, meta.working_dir),
        *(NodeManager(inbox, meta.queues), held),
    )
    if isinstance(tf_args, list):
        sys.argv = tf_args
    with _showing(me, meta, place, spec), _exit_is_no_failure():
        map_fun(tf_args, ctx)


def run_alone(
    map_fn: Callable[[Any, Any], Any],
    tf_args: Any,
    num_workers: int,
    default_fs: str,
    worker_num: int | None = None,
) -> None:
    """Run a function that knows of no others, see `TFParallel.run`."""
    os.environ.pop("TF_CONFIG", None)
    place = context.current().rank if worker_num is None else worker_num
    ctx = TFNodeContext(place, defaultFS=default_fs)
    ctx.num_workers = num_workers
    with _exit_is_no_failure():
        map_fn(tf_args, ctx)


@contextlib.contextmanager
def _exit_is_no_failure() -> Iterator[None]:
    """Programs end by `sys.exit()` where absl or `tf.compat.v1.app.run` calls them."""
    try:
        yield
    except SystemExit as exc:
        if exc.code not in (None, 0):
            raise


def cluster_spec(
    places: Sequence[tuple[str, int]], nodes: Mapping[str, str]
) -> dict[str, list[str]]:
    """The `address:port` of the nodes by job.

    Example:
        >>> cluster_spec([("ps", 0), ("worker", 0)], {"worker:0": "h:2", "ps:0": "h:1"})
        {'ps': ['h:1'], 'worker': ['h:2']}
    """
    spec: dict[str, list[str]] = {}
    for job, index in places:
        spec.setdefault(job, []).append(nodes[f"{job}:{index}"])
    return spec


def _export(spec: Mapping[str, Any]) -> None:
    """Leave `TF_CONFIG` where there is a chief, as TensorFlowOnSpark exports it; else hide it."""
    if not {"chief", "master"} & spec.keys():
        os.environ.pop("TF_CONFIG", None)
        return
    if told := os.environ.get("TF_CONFIG"):  # Programs of other frameworks have none.
        os.environ["TF_CONFIG"] = json.dumps({**json.loads(told), "environment": "cloud"})
    several = sum(len(nodes) for job, nodes in spec.items() if job in TRAINING) > 1
    if told and several and "ps" not in spec and "tensorflow" in sys.modules:
        correct_keras()  # Its fit under a MultiWorkerMirroredStrategy, which they may make.


def _showing(
    me: Context, meta: Meta, place: int, spec: Mapping[str, list[str]]
) -> "contextlib.AbstractContextManager[Any]":
    """TensorBoard, on the node that runs it, until its function returns."""
    if meta.board != place:
        return contextlib.nullcontext()
    address = spec[me.role][me.index].rpartition(":")[0]
    shown = tensorboard_server.start(meta.log_dir or f"tensorboard_{place}", address)
    _tell(me, "tensorboard", json.dumps({"pid": shown.pid, "port": shown.port}).encode())
    return shown


def _tell(me: Context, what: str, text: bytes) -> None:
    """Leave word in the run directory, for the driver and for tasks that feed."""
    if me.url:
        storage.write(TrialPaths(me.url).told(me.attempt, me.rank, what), text)
