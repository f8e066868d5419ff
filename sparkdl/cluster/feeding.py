"""Runs in a Spark task. Send the rows of its partition, or a copy of them, to its process."""

import contextlib
import socket
from collections.abc import Iterable

import pyarrow as pa

from sparkdl.cluster.process.shared_rows import SharedRows
from sparkdl.data.dataframe.protocol import Feed
from sparkdl.data.dataframe.sender import RowSender

__all__ = ["exhaust", "feed_sockets", "feeding", "reserved_copy"]


def feeding(
    feed: Feed | None, batches: Iterable[pa.RecordBatch], rank: int
) -> "contextlib.AbstractContextManager[RowSender | None]":
    """Return the sender of the partition's rows; None for a rank that reads no rows."""
    if feed and rank in feed.readers:
        return RowSender(feed, batches, SharedRows.of(feed))
    exhaust(batches)
    return contextlib.nullcontext()


def reserved_copy(feed: Feed | None) -> contextlib.AbstractContextManager[object]:
    """Let the copy of the rows stay until the block ends, if the partition does not have the rows.

    Raises:
        NoCopyError: if there is no copy on this executor.
    """
    if feed is None or feed.is_in_partition:
        return contextlib.nullcontext()
    return SharedRows.reserved(feed)


def exhaust(batches: Iterable[pa.RecordBatch]) -> None:
    """Read a partition to its end: Spark ends a Python worker that leaves rows unread."""
    for _ in batches:
        pass


def feed_sockets(feeder: RowSender | None) -> dict[str, socket.socket]:
    """Return the socket from which a training process receives its rows, if it gets any."""
    return {"feed": feeder.process_end} if feeder else {}
