"""Runs in the training process. Run the function of a node and provide its context `ctx`."""

import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl import context
from sparkdl.board.server import TensorBoardServer
from sparkdl.context import Context
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.tfos import TFNode
from sparkdl.tfos.cluster.node_files import NODES
from sparkdl.tfos.feed.inbox import Inbox

QUEUES = ("input", "output", "error")

TRAINING_JOBS = ("chief", "master", "worker")

_logger = logging.getLogger("sparkdl.tfos")


@dataclass(frozen=True, kw_only=True)
class ClusterInfo:
    """The facts of a cluster that are sent to all its nodes.

    Attributes:
        places: the job and index of each node, by executor id.
        default_fs: default filesystem of the driver.
        working_dir: working directory of the driver.
        release_port: close the socket that holds the port of a node before its function is called.
        tensorboard_node: executor id of the node that runs TensorBoard; None if there is none.
        log_dir: folder of the event files that TensorBoard shows.
        queues: the names of the queues.
    """

    places: Sequence[tuple[str, int]]
    default_fs: str
    working_dir: str
    release_port: bool = True
    tensorboard_node: int | None = None
    log_dir: str | None = None
    queues: Sequence[str] = QUEUES


class Value:
    """A value that looks like the proxy of a manager, which programs compare as text.

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
    """The `ctx.mgr` of a node: the state of the node, and access to the rows that it is fed.

    Attributes:
        inbox: the queue of rows from Spark; None if Spark does not feed the node.
        queues: the names of the queues.
    """

    def __init__(self, inbox: Inbox | None = None, queues: Sequence[str] = QUEUES) -> None:
        self.inbox = inbox
        self.queues = queues
        self._values: dict[str, Any] = {}

    def get(self, key: str) -> "Value":
        """Return a value that was set; the value of `state` is `running` or `terminating`."""
        if key == "state":
            return Value("terminating" if self.inbox and self.inbox.is_terminating else "running")
        return Value(self._values[key])

    def set(self, key: str, value: Any) -> None:
        """Store a value for the function of this node."""
        if key == "state" and value == "terminating" and self.inbox:
            self.inbox.terminate()
        self._values[key] = value


class TFNodeContext:
    """The argument `ctx` of a node's function.

    Attributes:
        executor_id: number of this node among all nodes, from 0.
        worker_num: the same as `executor_id`.
        job_name: the role of this node, such as `worker`.
        task_index: number of this node among the nodes of its role, from 0.
        cluster_spec: the `address:port` of all nodes, by job.
        num_workers: number of nodes that train: `chief`, `master` and `worker`.
        defaultFS: default filesystem of the driver, see `absolute_path`.
        working_dir: working directory of the driver, see `absolute_path`.
        mgr: the manager from which a `TFNode.DataFeed` is created.
        tmp_socket: the socket that holds the port of this node with `release_port=False`; else
            None.
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
        self.executor_id = executor_id
        self.worker_num = executor_id
        self.job_name = job_name
        self.task_index = task_index
        self.cluster_spec = dict(cluster_spec or {})
        self.num_workers = _num_training(self.cluster_spec)
        self.defaultFS = defaultFS
        self.working_dir = working_dir
        self.mgr = mgr
        self.tmp_socket = tmp_socket

    def absolute_path(self, path: str) -> str:
        """Return a path with its filesystem, see `TFNode.hdfs_path`."""
        return TFNode.hdfs_path(self, path)

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
        """Start the TensorFlow server of this node, see `TFNode.start_cluster_server`."""
        return TFNode.start_cluster_server(self, num_gpus, rdma)

    def export_saved_model(
        self, sess: Any, export_dir: str, tag_set: str, signatures: Mapping[str, Any]
    ) -> None:
        """Write a TensorFlow 1 session as a SavedModel, see `TFNode.export_saved_model`."""
        TFNode.export_saved_model(sess, export_dir, tag_set, signatures)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> TFNode.DataFeed:
        """Return the rows that Spark feeds to this node, see `TFNode.DataFeed`."""
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """Release the port that is held for this node, see `TFNode.release_port`."""
        TFNode.release_port(self)


def run_node(map_fun: Callable[[Any, Any], Any], tf_args: Any, info: ClusterInfo) -> None:
    """Run the function of this node.

    Args:
        map_fun: the user's function of `(args, ctx)`.
        tf_args: the first argument of `map_fun`; a list also becomes `sys.argv`.
        info: the facts of the cluster.
    """
    me = context.current()
    place = info.places.index((me.role, me.index))
    spec = cluster_spec(info.places, json.loads(os.environ[NODES]))
    _export_tf_config(spec)
    port_holder = socket.socket(fileno=me.port) if me.port is not None else None
    if port_holder and info.release_port:
        port_holder.close()
        port_holder = None
    inbox = None
    if me.inbox is not None:
        listener = socket.socket(fileno=me.inbox)
        inbox = Inbox(listener, lambda: _report(me, "terminated", b""))
    ctx = TFNodeContext(
        executor_id=place,
        job_name=me.role,
        task_index=me.index,
        cluster_spec=spec,
        defaultFS=info.default_fs,
        working_dir=info.working_dir,
        mgr=NodeManager(inbox, info.queues),
        tmp_socket=port_holder,
    )
    if isinstance(tf_args, list):
        sys.argv = tf_args
    with _tensorboard(me, info, place, spec), _successful_exit_returns():
        map_fun(tf_args, ctx)


def run_alone(
    map_fn: Callable[[Any, Any], Any],
    tf_args: Any,
    num_workers: int,
    default_fs: str,
    worker_num: int | None = None,
) -> None:
    """Run a function independently of the other processes, see `TFParallel.run`."""
    os.environ.pop("TF_CONFIG", None)
    executor_id = context.current().rank if worker_num is None else worker_num
    ctx = TFNodeContext(executor_id, defaultFS=default_fs)
    ctx.num_workers = num_workers
    with _successful_exit_returns():
        map_fn(tf_args, ctx)


@contextlib.contextmanager
def _successful_exit_returns() -> Iterator[None]:
    """Treat `sys.exit()` without an error as a return.

    absl and `tf.compat.v1.app.run` end a program with `sys.exit()`.
    """
    try:
        yield
    except SystemExit as exc:
        if exc.code not in (None, 0):
            raise


def cluster_spec(
    places: Sequence[tuple[str, int]], nodes: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the `address:port` of the nodes, by job.

    Args:
        places: the job and index of each node, by executor id.
        nodes: the `address:port` of each node, by `<job>:<index>`.

    Example:
        >>> cluster_spec([("ps", 0), ("worker", 0)], {"worker:0": "h:2", "ps:0": "h:1"})
        {'ps': ['h:1'], 'worker': ['h:2']}
    """
    spec: dict[str, list[str]] = {}
    for job, index in places:
        spec.setdefault(job, []).append(nodes[f"{job}:{index}"])
    return spec


def _num_training(spec: Mapping[str, Sequence[str]]) -> int:
    return sum(len(nodes) for job, nodes in spec.items() if job in TRAINING_JOBS)


def _export_tf_config(spec: Mapping[str, Sequence[str]]) -> None:
    """Export `TF_CONFIG` if the cluster has a chief, as TensorFlowOnSpark does; else remove it."""
    if not {"chief", "master"} & spec.keys():
        os.environ.pop("TF_CONFIG", None)
        return
    tf_config = os.environ.get("TF_CONFIG")
    if not tf_config:  # Programs of other frameworks have no TF_CONFIG.
        return
    os.environ["TF_CONFIG"] = json.dumps({**json.loads(tf_config), "environment": "cloud"})


@contextlib.contextmanager
def _tensorboard(
    me: Context, info: ClusterInfo, place: int, spec: Mapping[str, list[str]]
) -> Iterator[None]:
    """Run TensorBoard during the block if this is the node for TensorBoard.

    TensorBoard listens on the port in `TENSORBOARD_PORT`, or else on a free one.
    """
    if info.tensorboard_node != place:
        yield
        return
    address = spec[me.role][me.index].rpartition(":")[0].strip("[]")
    port = int(os.environ.get("TENSORBOARD_PORT") or 0)
    log_dir = info.log_dir or f"tensorboard_{place}"
    with contextlib.ExitStack() as stack:
        tensorboard = {"pid": 0, "port": 0}
        try:
            server = stack.enter_context(TensorBoardServer(log_dir, host=address, port=port))
            server.begin()
            tensorboard = {"pid": server.pid, "port": server.port}
        except (ConfigError, TimeoutError) as exc:
            _logger.warning("%s The node goes on without TensorBoard.", exc)
        _report(me, "tensorboard", json.dumps(tensorboard).encode())
        yield


def _report(me: Context, name: str, content: bytes) -> None:
    """Write a file of this rank in the run directory, for the driver and the feed tasks."""
    if me.url:
        storage.write(TrialPaths(me.url).rank_status(me.attempt, me.rank, name), content)
