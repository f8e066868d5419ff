"""Runs anywhere (pure). The marks that programs put into queues between rows."""

__all__ = ["EndPartition", "Marker"]


class Marker:
    """The base class of marks in a queue of rows."""


class EndPartition(Marker):
    """The end of a partition: in inference, `TFNode.DataFeed.next_batch` returns here.

    Example:
        >>> from sparkdl.tfos import TFManager, TFNode
        >>> manager = TFManager.start(b"a key", ["input"])
        >>> for item in (1, 2, EndPartition(), 3, None):
        ...     manager.get_queue("input").put(item)
        >>> feed = TFNode.DataFeed(manager, train_mode=False)
        >>> feed.next_batch(10), feed.next_batch(10)
        ([1, 2], [3])
    """
