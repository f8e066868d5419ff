"""Runs in the training process. The functions and classes that a node's function uses.

Arguments and defaults are those of `TFNode` in TensorFlowOnSpark 2.2.5.
"""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.tfos.absent_names import absent_names
from sparkdl.tfos.feed.inbox import Boundary, Inbox
from sparkdl.tfos.node.saved_model import export_saved_model
from sparkdl.tfos.paths import hdfs_path

__all__ = [
    "DataFeed",
    "batch_results",
    "export_saved_model",
    "hdfs_path",
    "next_batch",
    "release_port",
    "start_cluster_server",
    "terminate",
]

__getattr__ = absent_names(__name__, __all__)

_logger = logging.getLogger("sparkdl.tfos")


class DataFeed:
    """The rows that Spark feeds to this node, in InputMode.SPARK.

    Args:
        mgr: `ctx.mgr`.
        train_mode: False for inference; a batch then ends at the end of a partition.
        qname_in: name of the queue of rows.
        qname_out: name of the queue for results.
        input_mapping: the name of the tensor for each column; `next_batch` then returns a dict.

    Raises:
        ValueError: if the cluster has no such queue.

    Example:
        >>> def main(args, ctx):
        ...     feed = ctx.get_data_feed(train_mode=False)
        ...     while not feed.should_stop():
        ...         rows = feed.next_batch(64)
        ...         feed.batch_results([row * row for row in rows])
    """

    def __init__(
        self,
        mgr: Any,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> None:
        if qname_in not in getattr(mgr, "queues", (qname_in,)):
            raise ValueError(
                f"this cluster has no queue {qname_in!r}; expected one of "
                f"{', '.join(mgr.queues)}. Pass queues= to TFCluster.run to add a queue."
            )
        self.mgr = mgr
        self.train_mode = train_mode
        self.qname_in = qname_in
        self.qname_out = qname_out
        self.done_feeding = False
        self.input_tensors: list[str] | None = None
        if input_mapping is not None:
            self.input_tensors = [tensor for _, tensor in sorted(input_mapping.items())]

    @property
    def _inbox(self) -> Inbox:
        inbox: Inbox | None = getattr(self.mgr, "inbox", None)
        if inbox is None:
            raise RuntimeError(
                "this node is not fed by Spark. Run the cluster with "
                "input_mode=TFCluster.InputMode.SPARK, or read files in the function. Parameter "
                "servers and evaluators are never fed."
            )
        return inbox

    def next_batch(self, batch_size: float) -> Any:
        """Return the next rows. Wait until the batch is full or no more rows will come.

        Args:
            batch_size: number of rows; rounded up.

        Raises:
            RuntimeError: if this node is not fed.

        Returns:
            A list of the elements of the RDD, or of tuples for a DataFrame. With `input_mapping`, a
            dict with a list of values for each tensor; the columns are sorted by name. At the end
            of the feed, and in inference at the end of a partition, a batch may have fewer rows or
            none.
        """
        rows: list[Any] = []
        inbox = self._inbox
        size = math.ceil(batch_size)
        while len(rows) < size:
            items = inbox.take(self.qname_in, size - len(rows))
            if items is Boundary.FEED:
                self.done_feeding = True
                break
            if items is Boundary.PARTITION:
                if rows and not self.train_mode:
                    break
            elif rows:
                rows += items
            else:
                rows = list(items)
        if self.input_tensors is None:
            return rows
        return {name: [row[i] for row in rows] for i, name in enumerate(self.input_tensors)}

    def should_stop(self) -> bool:
        """Return True if `next_batch` has reached the end of the feed."""
        return self.done_feeding

    def batch_results(self, results: Sequence[Any]) -> None:
        """Return the results of an inference, one for each row, in the order of the rows.

        Raises:
            ValueError: if there are more results than rows that wait for a result.
        """
        self._inbox.give(results if isinstance(results, list) else list(results))

    def terminate(self) -> None:
        """Stop the feed: rows that Spark still feeds are read and dropped."""
        self._inbox.terminate()

    def as_dataset(self, batch_size: int) -> Any:
        """Return the rows as a `tf.data.Dataset`, which is much faster than `next_batch`.

        The dataset ends with the feed. Tuples and rows of a DataFrame become a tuple of tensors,
        one for each part. Any other row, such as a list of numbers, becomes one tensor. With
        `input_mapping` the elements are dicts of tensors. Python floats become float32, Python
        integers int64, and arrays keep their type. All rows must have the shapes of the first rows.

        Args:
            batch_size: number of rows in a batch; the last batch may have fewer.

        Example:
            >>> def main(args, ctx):
            ...     rows = ctx.get_data_feed().as_dataset(batch_size=64)
            ...     model.fit(rows, steps_per_epoch=args.steps)
        """
        from sparkdl.tfos.feed.dataset import dataset

        inbox = self._inbox
        return dataset(lambda: inbox.take(self.qname_in), batch_size, self.input_tensors)


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
    """Start the TensorFlow server of this node, for programs that use tf.compat.v1.

    Args:
        ctx: the context of this node.
        num_gpus: 0 hides the GPUs of this node.
        rdma: must be False; TensorFlow 2 has no RDMA.

    Returns:
        The `tf.train.ClusterSpec` of all nodes, and the running `tf.distribute.Server`.

    Raises:
        ValueError: if `rdma` is True.
    """
    if rdma:
        raise ValueError("rdma is True, but TensorFlow 2 has no RDMA server. Pass rdma=False.")
    if num_gpus == 0 or ctx.job_name == "ps":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    cluster = tf.train.ClusterSpec(ctx.cluster_spec)
    return cluster, tf.distribute.Server(cluster, ctx.job_name, ctx.task_index)


def next_batch(mgr: Any, batch_size: int, qname: str = "input") -> None:
    """Refuse the call, as TensorFlowOnSpark does: use `DataFeed.next_batch`."""
    _refuse_removed("next_batch")


def batch_results(mgr: Any, results: Sequence[Any], qname: str = "output") -> None:
    """Refuse the call, as TensorFlowOnSpark does: use `DataFeed.batch_results`."""
    _refuse_removed("batch_results")


def terminate(mgr: Any, qname: str = "input") -> None:
    """Refuse the call, as TensorFlowOnSpark does: use `DataFeed.terminate`."""
    _refuse_removed("terminate")


def _refuse_removed(name: str) -> None:
    raise RuntimeError(
        f"TFNode.{name}() was removed from TensorFlowOnSpark. Use feed = ctx.get_data_feed() and "
        f"feed.{name}()."
    )


def release_port(ctx: Any) -> None:
    """Release the port that is held for this node, so that a server can listen on it."""
    if ctx.tmp_socket is None:
        _logger.warning("release_port() was called, but no port is held.")
    else:
        ctx.tmp_socket.close()
        ctx.tmp_socket = None
