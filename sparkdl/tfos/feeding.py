"""Where it runs: T. What Spark executes to feed a partition to a node of its host."""

import contextlib
import itertools
import json
import pickle
import socket
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from sparkdl import storage
from sparkdl.cluster.ends import says_failure
from sparkdl.cluster.forkserver import locked
from sparkdl.cluster.keeper import executor_of_task, node_folder
from sparkdl.cluster.node import read_row
from sparkdl.cluster.process import dial
from sparkdl.cluster.task import exhaust
from sparkdl.runs.layout import TrialPaths
from sparkdl.tfos import wire

__all__ = ["TERMINATED_SCHEMA", "ArrowFeedTask", "FeedTask", "PickledFeedTask"]

TERMINATED_SCHEMA = "terminated boolean"

# A chunk of rows is about so large: handing over many small ones costs, a large one is waited for.
CHUNK_BYTES = 1 << 18

# So long after a node has gone it must be known why.
GONE_S = 15.0
LOOK_S = 0.05


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
            try:
                if link:
                    return (yield from self._converse(link, partition, rows))
            except EOFError:
                pass
            self._explain(rank)
            exhaust(rows)
            return True

    def _converse(
        self, link: wire.Link, partition: int, rows: Iterator[Any]
    ) -> Generator[Any, None, bool]:
        link.put(wire.HELLO, pickle.dumps(self._hello(partition)))
        talk = _Talk(link)
        yield from talk.until(lambda: talk.skip is not None)
        chunks = self._chunks(rows, talk.skip or 0)
        for kind, count, body in chunks:
            talk.sent += count
            link.put(kind, body)
            yield from talk.until(lambda: not link.is_full)
            if talk.is_terminating:
                exhaust(rows)
                return True
        link.put(wire.END)
        yield from talk.until(lambda: talk.is_done or (self.is_inference and talk.is_answered))
        if talk.is_terminating and self.is_inference and not talk.is_answered:
            raise RuntimeError(_TERMINATED.format(talk.got, talk.sent))
        return talk.is_terminating

    def _hello(self, partition: int) -> dict[str, Any]:
        return {
            "feed": self.feed,
            "partition": partition,
            "qname": self.qname,
            "is_inference": self.is_inference,
        }

    def _chunks(self, rows: Iterator[Any], skip: int) -> Iterator[tuple[bytes, int, bytes]]:
        """Frames of rows: their kind, how many rows, the body."""
        exhaust(itertools.islice(rows, skip))
        size = 1
        while chunk := list(itertools.islice(rows, size)):
            body = pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL)
            yield wire.ROWS, len(chunk), body
            if len(body) < CHUNK_BYTES:
                size *= 2
            elif len(body) > 2 * CHUNK_BYTES and size > 1:
                size //= 2

    # ---- the node

    def _reach(
        self, partition: int, stack: contextlib.ExitStack
    ) -> tuple[int | None, wire.Link | None]:
        """The rank of a node of this host and a link to it; None where there is none that lives."""
        own, others = self._nodes(executor_of_task()[0]), self._nodes("*")
        turn = partition % max(1, len(own))
        # First one that nobody feeds: nodes that train together wait for the one without rows.
        turned = [*own[turn:], *own[:turn]]
        free = next((f for f in turned if stack.enter_context(locked(f, wait=False))), None)
        rank = None
        for folder in [*([free] if free else []), *turned, *others]:
            rank = int(folder.name.split("-")[2])
            try:
                return rank, stack.enter_context(wire.Link(dial(folder, socket.SOCK_STREAM)))
            except (FileNotFoundError, ConnectionRefusedError):
                continue  # It ends just now, or has ended.
        return rank, None

    def _nodes(self, executor: int | str) -> list[Path]:
        """The folders of this host's nodes, of one executor or of all."""
        pattern = node_folder(self.run_path, "*", executor)
        return sorted(pattern.parent.glob(pattern.name))

    def _explain(self, rank: int | None) -> None:
        """Return if a node has gone that wanted no more rows.

        Raises:
            RuntimeError: it went for another reason, or there was none; the text says why.
        """
        folder = self.trial.ranks(0)
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            names = storage.names(folder)
            rows = [name for name in names if name.endswith(".row")]
            outcomes = [read_row(storage.join(folder, name))[0] for name in rows]
            for outcome in filter(says_failure, outcomes):
                where = f"{outcome['role']} (rank {outcome['rank']}) on host {outcome['host']}"
                raise RuntimeError(f"a node has failed: {where}: {outcome.get('error', outcome)}")
            if any(name.endswith(".terminated") for name in names if _is_of(name, rank)):
                return
            if not names:
                self._explain_end()
            if not any(name.endswith(".failed") for name in names):
                self._explain_peaceful(rank, outcomes)
            time.sleep(LOOK_S)
        raise RuntimeError(f"a node has gone, and nothing says why: see {self.run_path}")

    def _explain_end(self) -> None:
        """Say how the whole cluster has ended."""
        why = f"everything is in {self.run_path}"
        if storage.exists(self.trial.error):
            why = storage.read(self.trial.error).decode()
        raise RuntimeError(f"the cluster has ended: {why}")

    def _explain_peaceful(self, rank: int | None, outcomes: list[dict[str, Any]]) -> None:
        if rank is None and not outcomes:
            host = socket.gethostname()
            raise RuntimeError(
                f"no node runs on host {host} that this task could feed: the nodes are "
                f"{self._places()}. Let num_executors be the number of the application's executors."
            )
        done = [o for o in outcomes if rank is None or o["rank"] == rank]
        if done and "stopped" in done[0]:
            raise RuntimeError(f"{done[0]['role']} has been stopped: {done[0]['stopped']}")
        if done:
            raise RuntimeError(
                f"{done[0]['role']} returned before all rows were fed to it. Let its function take "
                "rows until should_stop(), or call terminate() of its DataFeed to end earlier."
            )

    def _places(self) -> str:
        ranks = json.loads(storage.read(self.trial.attempt(0))).get("ranks", {})
        return ", ".join(f"{name} on {where['host']}" for name, where in ranks.items())


_TERMINATED = (
    "the node called terminate() when it had given {} results for {} rows: an inference needs one "
    "for each"
)


def _is_of(name: str, rank: int | None) -> bool:
    return rank is None or name.partition(".")[0] == str(rank)


class _Talk:
    """What the node has said so far.

    Attributes:
        skip: how many rows of this partition it has already, from an attempt before; None until
            it has said so.
        sent, got: how many rows went there, and how many results came.
        is_terminating: it wants no more rows.
        is_done: it has used them all.
    """

    def __init__(self, link: wire.Link) -> None:
        self._link = link
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
            for kind, body in self._link.turn(waits):
                yield from self._hear(kind, body)
            if self.is_terminating or condition():
                return
            waits = True

    def _hear(self, kind: bytes, body: bytes) -> Iterator[Any]:
        if kind == wire.RESULTS:
            results = pickle.loads(body)
            self.got += len(results)
            yield from results
        elif kind == wire.WELCOME:
            self.skip = int(body)
        elif kind == wire.TERMINATING:
            self.is_terminating, self.skip = True, self.skip or 0
        elif kind == wire.DONE:
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
                yield wire.ROWS, 0, body


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
            if left.num_rows:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, left.schema) as stream:
                    stream.write_batch(left)
                yield wire.ARROW, left.num_rows, sink.getvalue().to_pybytes()
