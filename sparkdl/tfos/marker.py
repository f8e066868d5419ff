"""Runs anywhere (pure). The marks that programs put into queues between rows."""

__all__ = ["EndPartition", "Marker"]


class Marker:
    """The base class of marks in a queue of rows."""


class EndPartition(Marker):
    """The end of a partition: in inference, `TFNode.DataFeed.next_batch` returns here."""
