"""Runs in a Spark task. What Spark executes to feed a partition to a node of its host."""

import contextlib
import itertools
import pickle
import socket
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from sparkdl import storage
from sparkdl.cluster.process.fork_server import locked
from sparkdl.cluster.process.training_process import dial
from sparkdl.cluster.trial_task import exhaust
from sparkdl.runs.layout import TrialPaths
from sparkdl.tfos.cluster.node_files import ALIVE
from sparkdl.tfos.cluster.node_supervisor import executor_of_task, node_folder
from sparkdl.tfos.feed import protocol
from sparkdl.tfos.feed.node_loss import explain

__all__ = ["TERMINATED_SCHEMA", "ArrowFeedTask", "FeedTask", "PickledFeedTask"]

TERMINATED_SCHEMA = "terminated boolean"

# A chunk of rows is about so large: handing over many small ones costs, a large one is waited for.
CHUNK_BYTES = 1 << 18
ARROW_BYTES = 1 << 20

# What is said of a node that ends just now, or has ended.
_ENDING = (FileNotFoundError, ConnectionRefusedError)


@dataclass(frozen=True)
class FeedTask:
    """Feeds the partitions of an RDD.

    Attributes:
        run_path, trial: the cluster's run directory, and where its nodes tell how it goes.
        feed: which call of `train` or `inference` this is.
        qname: the name of the queue.
        is_inference: a result comes back for each row.
    """

    run_path: str
    trial: TrialPaths
    feed: int
    qname: str
    is_inference: bool

    def __call__(self, partition: int, rows: Iterable[Any]) -> Iterator[Any]:
        """The results of a partition's rows; without inference, whether the node has terminated."""
        if self.is_inference:
            yield from self._fed(partition, iter(rows))
        else:
            terminated = yield from self._fed(partition, iter(rows))
            yield terminated

    def _fed(self, partition: int, rows: Iterator[Any]) -> Generator[Any, None, bool]:
        """Feed all rows, yield results; returns whether the node wants no more."""
        with contextlib.ExitStack() as stack:
            rank, link = self._reach(partition, stack)
            talk = _Talk(link) if link else None
            try:
                if talk is None:
                    raise EOFError
                yield from self._converse(talk, partition, rows)
                if not talk.is_terminating:
                    return False
            except EOFError:
                explain(self.run_path, self.trial, rank)
            # No more rows are wanted.
            left = sum(1 for _ in rows)
            if self.is_inference and (left or (talk and not talk.is_answered)):
                raise RuntimeError(_TERMINATED)
            return True

    def _converse(self, talk: "_Talk", partition: int, rows: Iterator[Any]) -> Iterator[Any]:
        """Feed until all rows are used, or no more are wanted; yields results."""
        link = talk.link
        for kind, count, body in self._chunks(rows, self._greet(talk, partition)):
            talk.sent += count
            link.put(kind, body)
            yield from talk.until(lambda: not link.is_full)
            if talk.is_terminating:
                return
        link.put(protocol.END)
        yield from talk.until(lambda: talk.is_done or (self.is_inference and talk.is_answered))

    def _greet(self, talk: "_Talk", partition: int) -> int:
        """Say which partition this is; how many rows of it the node has already."""
        who = {"feed": self.feed, "partition": partition, "qname": self.qname}
        hello = pickle.dumps({**who, "is_inference": self.is_inference})
        talk.link.put(protocol.HELLO, hello)
        exhaust(talk.until(lambda: talk.skip is not None))  # No result comes before any row.
        return talk.skip or 0

    def _chunks(self, rows: Iterator[Any], skip: int) -> Iterator[tuple[bytes, int, bytes]]:
        """Frames of rows: their kind, how many rows, the body."""
        exhaust(itertools.islice(rows, skip))
        size = 1
        while chunk := list(itertools.islice(rows, size)):
            body = pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL)
            yield protocol.ROWS, len(chunk), body
            if len(body) < CHUNK_BYTES:
                size *= 2
            elif len(body) > 2 * CHUNK_BYTES and size > 1:
                size //= 2

    # ---- the node

    def _reach(
        self, partition: int, stack: contextlib.ExitStack
    ) -> tuple[int | None, protocol.Link | None]:
        """The rank of a node of this host and a link to it; None where there is none that lives."""
        executor = executor_of_task()[0]
        own, rank = self._nodes(executor), None
        if not own and (rank := self._ended(executor)) is not None:
            return rank, None
        turn = partition % max(1, len(own))
        # First one that nobody feeds: nodes that train together wait for the one without rows.
        turned = [*own[turn:], *own[:turn]]
        free = next((f for f in turned if stack.enter_context(locked(f, wait=False))), None)
        folders = list(dict.fromkeys([*([free] if free else []), *turned])) or self._nodes("*")
        if TaskContext.get().attemptNumber() and not self.is_inference:
            begun = [folder for folder in self._nodes("*") if self._has_begun(folder, partition)]
            folders = begun or folders
        for folder in folders:
            rank = int(folder.name.split("-")[2])
            with contextlib.suppress(*_ENDING):
                return rank, stack.enter_context(protocol.Link(dial(folder, socket.SOCK_STREAM)))
        return rank, None

    def _has_begun(self, folder: Path, partition: int) -> bool:
        """Whether a node has rows of this partition, from an attempt before."""
        with (
            contextlib.suppress(EOFError, *_ENDING),
            protocol.Link(dial(folder, socket.SOCK_STREAM)) as link,
        ):
            return self._greet(_Talk(link), partition) > 0
        return False

    def _ended(self, executor: int) -> int | None:
        """The rank of an executor's node; its folder is gone, as it has ended."""
        folder = self.trial.ranks(0)
        names = [name for name in storage.names(folder) if name.endswith(f".{ALIVE}")]
        for name in names:
            keeper = storage.read(storage.join(folder, name)).decode().split()
            if keeper[2:] == [f"{executor}", socket.gethostname()]:
                return int(name.removesuffix(f".{ALIVE}"))
        return None

    def _nodes(self, executor: int | str) -> list[Path]:
        """The folders of this host's nodes, of one executor or of all."""
        pattern = node_folder(self.run_path, "*", executor)
        return sorted(pattern.parent.glob(pattern.name))


_TERMINATED = (
    "the node has called terminate(), and rows have no result yet: an inference needs one for each"
)


class _Talk:
    """What the node has said so far.

    Attributes:
        skip: how many rows of this partition it has already, from an attempt before; None until
            it has said so.
        sent, got: how many rows went there, and how many results came.
        is_terminating: it wants no more rows.
        is_done: it has used them all.
    """

    def __init__(self, link: protocol.Link) -> None:
        self.link = link
        self.skip: int | None = None
        self.sent = self.got = 0
        self.is_terminating = self.is_done = False

    @property
    def is_answered(self) -> bool:
        """Whether there is a result for each row."""
        return self.got == self.sent

    def until(self, condition: Any) -> Iterator[Any]:
        """Send and receive until the condition holds, or the node wants no more; yields results."""
        waits = False
        while True:
            for kind, body in self.link.turn(waits):
                yield from self._hear(kind, body)
            if self.is_terminating or condition():
                return
            waits = True

    def _hear(self, kind: bytes, body: bytes) -> Iterator[Any]:
        if kind == protocol.RESULTS:
            results = pickle.loads(body)
            self.got += len(results)
            yield from results
        elif kind == protocol.WELCOME:
            self.skip = int(body)
        elif kind == protocol.TERMINATING:
            self.is_terminating, self.skip = True, self.skip or 0
        elif kind == protocol.DONE:
            self.is_done = True


class PickledFeedTask(FeedTask):
    """Feeds the partitions of an RDD whose elements are pickled lists of rows, as Spark has them.

    The node alone unpickles them: half the work where rows are long.
    """

    def _chunks(self, rows: Iterator[Any], skip: int) -> Iterator[tuple[bytes, int, bytes]]:
        for body in rows:
            if skip:
                chunk = pickle.loads(body)
                left, skip = chunk[skip:], max(0, skip - len(chunk))
                body = pickle.dumps(left, pickle.HIGHEST_PROTOCOL) if left else b""
            if body:
                yield protocol.ROWS, 0, body


@dataclass(frozen=True)
class ArrowFeedTask:
    """Feeds the partitions of a DataFrame, as `mapInArrow` calls it.

    Attributes:
        feed: how rows are fed otherwise.
    """

    feed: FeedTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Whether the node has terminated, as one row of `TERMINATED_SCHEMA`."""
        told = _ArrowFeed(**vars(self.feed))
        terminated = list(told(TaskContext.get().partitionId(), batches))
        yield pa.RecordBatch.from_pydict({"terminated": pa.array(terminated, pa.bool_())})


class _ArrowFeed(FeedTask):
    def _chunks(self, rows: Iterator[Any], skip: int) -> Iterator[tuple[bytes, int, bytes]]:
        for batch in rows:
            left = batch.slice(min(skip, batch.num_rows))
            skip -= batch.num_rows - left.num_rows
            each = max(1, left.num_rows * ARROW_BYTES // max(1, left.nbytes))
            for begin in range(0, left.num_rows, each):
                some, sink = left.slice(begin, each), pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, some.schema) as stream:
                    stream.write_batch(some)
                yield protocol.ARROW, some.num_rows, sink.getvalue().to_pybytes()
