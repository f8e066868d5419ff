"""Runs on the driver and in Spark tasks. Feed RDDs and DataFrames to the nodes of a cluster.

The driver calls `feed`, which runs one feed task for each partition. A feed task connects to a
node of its own host and sends the rows of its partition.
"""

import contextlib
import functools
import itertools
import logging
import pickle
import socket
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.serializers import BatchedSerializer, CPickleSerializer, NoOpSerializer
from pyspark.sql.types import ArrayType, StructField, UserDefinedType

from sparkdl.cluster.arrow_row import arrow_row
from sparkdl.cluster.feeding import exhaust
from sparkdl.cluster.process.server_folder import dial, locked
from sparkdl.files.layout import TrialPaths
from sparkdl.files.rank_files import RankFiles
from sparkdl.spark.python import map_in_arrow
from sparkdl.tfos.cluster.node_files import ALIVE
from sparkdl.tfos.cluster.node_supervisor import executor_of_task, node_folder
from sparkdl.tfos.feed import protocol
from sparkdl.tfos.feed.node_loss import NodeFailedError, explain

FED_SCHEMA = "terminated boolean, may_repeat boolean, failure string"

# Target size of a chunk of rows: each small chunk has a cost, and a large one makes a node wait.
CHUNK_BYTES = 1 << 18
ARROW_BYTES = 1 << 20

_logger = logging.getLogger("sparkdl.tfos")

# Errors of a connection to a node that is ending or has ended.
_NODE_GONE = (FileNotFoundError, ConnectionRefusedError)

_TERMINATED = (
    "the node has called terminate(), and rows have no result yet: inference needs one result for "
    "each row"
)


def feed(sc: Any, rows: Any, num_epochs: int, task_fields: Mapping[str, Any]) -> bool:
    """Feed rows to the nodes. Return when the nodes have used all rows.

    Args:
        sc: the SparkContext.
        rows: an RDD or a DataFrame.
        num_epochs: number of passes over the rows.
        task_fields: the fields of the `FeedTask`, except `is_inference`.

    Returns:
        True if a node accepts no more rows.

    Raises:
        NodeFailedError: if a node has failed.
    """
    # Arrow cannot carry user-defined types, such as the vectors of Spark ML.
    if hasattr(rows, "mapInArrow") and any(map(_has_user_defined_type, rows.schema)):
        rows = rows.rdd
    if hasattr(rows, "mapInArrow"):
        repeated = functools.reduce(type(rows).unionAll, [rows] * num_epochs)
        task = ArrowFeedTask(FeedTask(**task_fields, is_inference=False))
        return _summarize(map_in_arrow(repeated, task, FED_SCHEMA).collect())
    repeated = sc.union([rows] * num_epochs)
    pickled = _as_pickled(repeated)
    task_type = FeedTask if pickled is None else PickledFeedTask
    repeated = repeated if pickled is None else pickled
    fed = repeated.mapPartitionsWithIndex(task_type(**task_fields, is_inference=False))
    return _summarize(fed.collect())


def _summarize(results: Sequence[tuple[bool, bool, str | None]]) -> bool:
    """Return True if a node accepts no more rows; warn if rows may have been fed twice.

    Args:
        results: the results of the feed tasks, see `FeedTask`.

    Raises:
        NodeFailedError: if a node has failed.
    """
    for *_, failure in results:
        if failure is not None:
            raise NodeFailedError(failure)
    if count := sum(may_repeat for _, may_repeat, _ in results):
        _logger.warning(
            "Spark repeated feed tasks that had failed, and rows of their partitions may have "
            "been used twice (partitions: %d): those that the failed tasks had fed to other hosts, "
            "and those that now came in another order or with other values. Sort the partitions "
            "after a shuffle, or write the rows to files first, to use each row once.",
            count,
        )
    return any(terminated for terminated, *_ in results)


def _has_user_defined_type(field: StructField) -> bool:
    element_type = field.dataType
    while isinstance(element_type, ArrayType):
        element_type = element_type.elementType
    return isinstance(element_type, UserDefinedType)


def _as_pickled(rdd: Any) -> Any:
    """Return the RDD with Spark's pickled lists of rows as elements, or None if it has none.

    PySpark has no public API for the pickled rows; the constructor of RDD accepts them.
    """
    serializer = rdd._jrdd_deserializer
    if isinstance(serializer, BatchedSerializer) and isinstance(
        serializer.serializer, CPickleSerializer
    ):
        from pyspark import RDD  # Imported late: clients of Spark Connect have no RDDs.

        return RDD(rdd._jrdd, rdd.context, NoOpSerializer())
    return None


@dataclass(frozen=True, kw_only=True)
class FeedTask:
    """The function that Spark calls for each partition of an RDD to feed the rows to a node.

    Attributes:
        run_path: the run directory of the cluster.
        trial: the folder in which the nodes report.
        call_number: number of the call of `train` or `inference`, from 0.
        first_running_call: number of the first call of `train` that has not returned.
        qname: the name of the queue.
        is_inference: the node returns a result for each row.
    """

    run_path: str
    trial: TrialPaths
    call_number: int
    first_running_call: int
    qname: str
    is_inference: bool

    def __call__(self, partition: int, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of an inference; in training yield one tuple.

        The tuple is True if the node has terminated; True if rows may have been fed twice, because
        a failed attempt may have fed a node of another host, or its rows did not come again as
        they were; and the failure of a node, if any: a value, as Spark would repeat a task that
        raises it.
        """
        if self.is_inference:
            yield from self._feed(partition, iter(rows), [])
        else:
            is_repeated = TaskContext.get().attemptNumber() > 0
            fed = self._nodes_with_rows_of(partition) if is_repeated else []
            try:
                terminated, has_changed = yield from self._feed(partition, iter(rows), fed)
            except NodeFailedError as exc:
                yield True, False, str(exc)
                return
            yield terminated, has_changed or (is_repeated and not fed), None

    def _feed(
        self, partition: int, rows: Iterator[Any], fed_folders: Sequence[Path]
    ) -> Generator[Any, None, tuple[bool, bool]]:
        """Feed all rows and yield results.

        Return True if the node accepts no more rows, and True if it had rows that did not come
        again as they were.

        Args:
            partition: number of the partition.
            rows: the rows.
            fed_folders: the folders of the nodes that an earlier attempt has fed.
        """
        with contextlib.ExitStack() as stack:
            rank, connection = self._connect(partition, fed_folders, stack)
            dialog = _Dialog(connection) if connection else None
            try:
                if dialog is None:
                    raise EOFError
                yield from self._send_rows(dialog, partition, rows)
                if not dialog.is_terminating:
                    return False, dialog.num_missing > 0
            except EOFError:
                explain(self.run_path, self.trial, rank)
            num_unsent = sum(1 for _ in rows)
            if self.is_inference and (num_unsent or (dialog and not dialog.is_answered)):
                raise RuntimeError(_TERMINATED)
            return True, False

    def _send_rows(self, dialog: "_Dialog", partition: int, rows: Iterator[Any]) -> Iterator[Any]:
        """Send rows and yield results until all rows are used or the node accepts no more."""
        connection = dialog.connection
        self._greet(dialog, partition)
        for kind, count, body in self._chunks(rows):
            dialog.num_sent += count
            connection.put(kind, body)
            yield from dialog.until(lambda: not connection.is_full)
            if dialog.is_terminating:
                return
        connection.put(protocol.END)
        yield from dialog.until(
            lambda: dialog.is_done or (self.is_inference and dialog.is_answered)
        )

    def _greet(self, dialog: "_Dialog", partition: int) -> int:
        """Send the partition number to the node. Return the number of rows that the node has."""
        hello = {
            "call_number": self.call_number,
            "first_running_call": self.first_running_call,
            "partition": partition,
            "qname": self.qname,
            "is_inference": self.is_inference,
        }
        dialog.connection.put(protocol.HELLO, pickle.dumps(hello))
        exhaust(dialog.until(lambda: dialog.num_known is not None))  # Yields no results yet.
        return dialog.num_known or 0

    def _chunks(self, rows: Iterator[Any]) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield the kind, the number of rows and the body of each frame of rows.

        The same rows make the same frames: the node recognises the frames of a failed task.
        """
        size = 1
        while chunk := list(itertools.islice(rows, size)):
            body = pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL)
            yield protocol.ROWS, len(chunk), body
            if len(body) < CHUNK_BYTES:
                size *= 2
            elif len(body) > 2 * CHUNK_BYTES and size > 1:
                size //= 2

    # ---- the node

    def _connect(
        self, partition: int, fed_folders: Sequence[Path], stack: contextlib.ExitStack
    ) -> tuple[int | None, protocol.FeedConnection | None]:
        """Connect to a node of this host.

        Returns:
            The rank of the node and the connection; None for each that does not exist.
        """
        executor = executor_of_task()[0]
        rank = None
        own = self._node_folders(executor)
        if not own and (rank := self._rank_of_ended_node(executor)) is not None:
            return rank, None
        start = partition % max(1, len(own))
        rotated = [*own[start:], *own[:start]]
        # Prefer a node that no other task feeds: in a gang, all nodes wait for one without rows.
        idle = next((f for f in rotated if stack.enter_context(locked(f, wait=False))), None)
        folders = list(dict.fromkeys([*([idle] if idle else []), *rotated]))
        folders = folders or self._node_folders("*")
        folders = [*fed_folders] or folders
        for folder in folders:
            rank = int(folder.name.split("-")[2])
            with contextlib.suppress(*_NODE_GONE):
                connection = protocol.FeedConnection(dial(folder, socket.SOCK_STREAM))
                return rank, stack.enter_context(connection)
        return rank, None

    def _nodes_with_rows_of(self, partition: int) -> list[Path]:
        """Return the folders of the nodes of this host that earlier attempts have fed."""
        return [f for f in self._node_folders("*") if self._has_rows_of(f, partition)]

    def _has_rows_of(self, folder: Path, partition: int) -> bool:
        """Return True if a node has rows of this partition from an earlier attempt."""
        with (
            contextlib.suppress(EOFError, *_NODE_GONE),
            protocol.FeedConnection(dial(folder, socket.SOCK_STREAM)) as connection,
        ):
            return self._greet(_Dialog(connection), partition) > 0
        return False

    def _rank_of_ended_node(self, executor: int) -> int | None:
        """Return the rank of the node of an executor that has ended and removed its folder."""
        files = RankFiles(self.trial.ranks(0))
        for rank, heartbeat in files.read_all(files.look().ranks(ALIVE), ALIVE).items():
            if heartbeat.decode().split()[2:] == [f"{executor}", socket.gethostname()]:
                return rank
        return None

    def _node_folders(self, executor: int | str) -> list[Path]:
        """Return the folders of the nodes of an executor of this host, or of all with `"*"`."""
        pattern = node_folder(self.run_path, "*", executor)
        return sorted(pattern.parent.glob(pattern.name))


class _Dialog:
    """The state of an exchange with a node.

    Attributes:
        num_known: number of rows of this partition that the node has from an earlier attempt;
            None until the node has reported the number.
        num_missing: number of these rows that did not come again as they were.
        num_sent: number of rows sent.
        num_results: number of results received.
        is_terminating: the node accepts no more rows.
        is_done: the node has used all rows.
    """

    def __init__(self, connection: protocol.FeedConnection) -> None:
        self.connection = connection
        self.num_known: int | None = None
        self.num_missing = 0
        self.num_sent = 0
        self.num_results = 0
        self.is_terminating = False
        self.is_done = False

    @property
    def is_answered(self) -> bool:
        """Return True if the node has returned a result for each row sent."""
        return self.num_results == self.num_sent

    def until(self, condition: Any) -> Iterator[Any]:
        """Exchange frames and yield results until the condition holds or the node terminates."""
        wait = False
        while True:
            for kind, body in self.connection.exchange(wait):
                yield from self._handle(kind, body)
            if self.is_terminating or condition():
                return
            wait = True

    def _handle(self, kind: bytes, body: bytes) -> Iterator[Any]:
        if kind == protocol.RESULTS:
            results = pickle.loads(body)
            self.num_results += len(results)
            yield from results
        elif kind == protocol.WELCOME:
            self.num_known = int(body)
        elif kind == protocol.TERMINATING:
            self.is_terminating = True
            self.num_known = self.num_known or 0
        elif kind == protocol.DONE:
            self.is_done = True
            self.num_missing = int(body)


class PickledFeedTask(FeedTask):
    """A feed task for an RDD whose elements are the pickled lists of rows that Spark stores.

    Only the node unpickles the rows, which halves the work for long rows.
    """

    def _chunks(self, rows: Iterator[Any]) -> Iterator[tuple[bytes, int, bytes]]:
        for body in rows:
            yield protocol.ROWS, 0, body


@dataclass(frozen=True)
class ArrowFeedTask:
    """The function that `mapInArrow` calls for each partition of a DataFrame.

    Attributes:
        task: the feed task whose fields are used.
    """

    task: FeedTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row of `FED_SCHEMA`, see `FeedTask`."""
        task = _RecordBatchFeedTask(**vars(self.task))
        ((terminated, may_repeat, failure),) = task(TaskContext.get().partitionId(), batches)
        row = {"terminated": terminated, "may_repeat": may_repeat, "failure": failure}
        yield arrow_row(row)


class _RecordBatchFeedTask(FeedTask):
    def _chunks(self, rows: Iterator[Any]) -> Iterator[tuple[bytes, int, bytes]]:
        for batch in rows:
            size = max(1, batch.num_rows * ARROW_BYTES // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, size):
                part = batch.slice(start, size)
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, part.schema) as stream:
                    stream.write_batch(part)
                yield protocol.ARROW, part.num_rows, sink.getvalue().to_pybytes()
