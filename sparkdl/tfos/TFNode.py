"""Runs in the training process. What a node's function asks for, by TensorFlowOnSpark's names.

Arguments and defaults are those of TensorFlowOnSpark 2.2.5's `TFNode`.
"""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.tfos.feed.inbox import Cut, Inbox
from sparkdl.tfos.node.saved_model import export_saved_model
from sparkdl.tfos.paths import hdfs_path
from sparkdl.tfos.TFManager import Queued, TFManager

__all__ = [
    "DataFeed",
    "export_saved_model",
    "hdfs_path",
    "release_port",
    "start_cluster_server",
]


class DataFeed:
    """The rows that Spark feeds to this node, in InputMode.SPARK.

    Args:
        mgr: `ctx.mgr`; or a `TFManager`, whose queues are read then, to test a function with.
        train_mode: False for inference: batches do not cross the end of a partition.
        qname_in, qname_out: the queues' names.
        input_mapping: from columns to the names of tensors: `next_batch` gives a dict then.

    Raises:
        ValueError: the cluster has no such queue.

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
                f"{', '.join(mgr.queues)}. TFCluster.run(queues=...) names them."
            )
        self.mgr, self.train_mode = mgr, train_mode
        self.qname_in, self.qname_out = qname_in, qname_out
        self.done_feeding = False
        mapped = sorted(input_mapping.items()) if input_mapping is not None else None
        self.input_tensors = [tensor for _, tensor in mapped] if mapped is not None else None

    @property
    def _inbox(self) -> Inbox | Queued:
        inbox: Inbox | None = getattr(self.mgr, "inbox", None)
        if isinstance(self.mgr, TFManager):
            return Queued(self.mgr, self.qname_out)
        if inbox is None:
            raise RuntimeError(
                "this node is not fed by Spark. Run the cluster with "
                "input_mode=TFCluster.InputMode.SPARK, or read files in the function; parameter "
                "servers and evaluators are never fed."
            )
        return inbox

    def next_batch(self, batch_size: float) -> Any:
        """The next rows; waits until there are as many, or no more will come.

        Args:
            batch_size: how many; rounded up.

        Raises:
            RuntimeError: this node is not fed.

        Returns:
            A list of rows as the RDD has them; of a DataFrame, tuples. With `input_mapping` a dict
            of lists by tensor, their columns in the order of the columns' names. At the end of the
            feed, and in inference at the end of a partition, there are fewer, perhaps none.
        """
        rows: list[Any] = []
        inbox, wanted = self._inbox, math.ceil(batch_size)
        while len(rows) < wanted:
            some = inbox.take(self.qname_in, wanted - len(rows))
            if some is Cut.FEED:
                self.done_feeding = True
                break
            if some is Cut.PARTITION:
                if rows and not self.train_mode:
                    break
            elif rows:
                rows += some
            else:
                rows = list(some)
        if self.input_tensors is None:
            return rows
        return {name: [row[i] for row in rows] for i, name in enumerate(self.input_tensors)}

    def should_stop(self) -> bool:
        """Whether `next_batch` has seen the end of the feed."""
        return self.done_feeding

    def batch_results(self, results: Sequence[Any]) -> None:
        """Give back the results of rows in inference, one for each, in the order of the rows.

        Raises:
            ValueError: there are more results than rows were taken.
        """
        self._inbox.give(results if isinstance(results, list) else list(results))

    def terminate(self) -> None:
        """Want no more rows: what Spark still feeds is read and dropped."""
        self._inbox.terminate()

    def as_dataset(self, batch_size: int) -> Any:
        """The rows as a `tf.data.Dataset`: whole pieces at a time, much faster than `next_batch`.

        It ends with the feed. Rows that are tuples, and those of a DataFrame, become a tuple of
        tensors, one for each part; any other row, such as a list of numbers, one tensor; with
        `input_mapping`, a dict of tensors. Python's floats are float32 and its whole numbers int64,
        arrays are what they are. All rows have the shapes of the first ones.

        Args:
            batch_size: rows in a batch; the last one may have fewer.

        Example:
            >>> def main(args, ctx):
            ...     rows = ctx.get_data_feed().as_dataset(batch_size=64)
            ...     model.fit(rows, steps_per_epoch=args.steps)
        """
        from sparkdl.tfos.feed.dataset import dataset

        inbox = self._inbox
        return dataset(lambda: inbox.take(self.qname_in), batch_size, self.input_tensors)


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
    """Start TensorFlow's server of this node, for programs of tf.compat.v1.

    Args:
        ctx: this node's context.
        num_gpus: 0 hides the GPUs that this node was given.
        rdma: not in TensorFlow 2.

    Returns:
        The `tf.train.ClusterSpec` of all nodes, and the running `tf.distribute.Server`.

    Raises:
        ValueError: `rdma` is asked for.
    """
    if rdma:
        raise ValueError("rdma=True was asked for, and TensorFlow 2 has no server for it.")
    if num_gpus == 0 or ctx.job_name == "ps":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    cluster = tf.train.ClusterSpec(ctx.cluster_spec)
    return cluster, tf.distribute.Server(cluster, ctx.job_name, ctx.task_index)


def release_port(ctx: Any) -> None:
    """Give up the port that was held for this node, so that a server can listen on it."""
    if ctx.tmp_socket is None:
        print("sparkdl: release_port() was called, and no port is held.", file=sys.stderr)
    else:
        ctx.tmp_socket.close()
        ctx.tmp_socket = None
