"""Runs in a Spark task. Send the rows of its partition, or a copy of them, to its process."""

import contextlib
import socket
import sys
from collections.abc import Iterable, Iterator
from io import BufferedReader
from typing import TYPE_CHECKING

from sparkdl.cluster.process.shared_rows import SharedRows
from sparkdl.data.dataframe.protocol import Feed
from sparkdl.data.dataframe.sender import RowSender

if TYPE_CHECKING:
    import pyarrow as pa

# The names of the stream from which a worker gets its rows: in functions of pyspark 4.3, and of
# pyspark 4.1 and 4.2.
_INPUTS = ("input_data_stream", "infile")


def feeding(
    feed: Feed | None,
    batches: "Iterable[pa.RecordBatch]",
    rank: int,
    copy: SharedRows | None = None,
) -> "contextlib.AbstractContextManager[RowSender | None]":
    """Return the sender of the partition's rows; None for a rank that reads no rows.

    Args:
        feed: the datasets of the partition.
        batches: the partition.
        rank: the rank.
        copy: the result of `reserved_copy`.
    """
    if not feed or rank not in feed.readers:
        exhaust(batches)
        return contextlib.nullcontext()
    if stream := _worker_input():
        batches = whole(batches, stream)
        copy = copy or SharedRows.of(feed)  # Only rows that are known to be all make a copy.
    return RowSender(feed, batches, copy)


def _worker_input() -> BufferedReader | None:
    """Return the stream from Spark of this Python worker; None if this pyspark has another one."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        for name in _INPUTS:
            if isinstance(stream := frame.f_locals.get(name), BufferedReader):
                return stream
    return None


def whole(
    batches: "Iterable[pa.RecordBatch]", stream: BufferedReader
) -> "Iterator[pa.RecordBatch]":
    """Yield batches; raise an error if Spark has ended them early.

    When Spark fails to compute a row, or the task is cancelled, it closes the stream, and Arrow
    takes that for the end of the rows. After all rows, Spark sends a number.

    Args:
        batches: the batches that are read from the stream.
        stream: the stream from Spark.

    Raises:
        EOFError: if nothing follows the last batch.
    """
    yield from batches
    if not stream.peek(1):
        raise EOFError("Spark has ended the task before all rows were read; see its own error")


def reserved_copy(
    feed: Feed | None,
) -> "contextlib.AbstractContextManager[SharedRows | None]":
    """Get the copy of the rows for the block, if the partition does not have the rows.

    Raises:
        NoCopyError: if there is no copy on this executor.
    """
    if feed is None or feed.is_in_partition:
        return contextlib.nullcontext()
    return SharedRows.reserve(feed)


def exhaust(batches: "Iterable[pa.RecordBatch]") -> None:
    """Read a partition to its end: Spark ends a Python worker that leaves rows unread."""
    for _ in batches:
        pass


def feed_sockets(feeder: RowSender | None) -> dict[str, socket.socket]:
    """Return the socket from which a training process receives its rows, if it gets any."""
    return {"feed": feeder.process_end} if feeder else {}
