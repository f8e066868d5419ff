"""Runs anywhere (pure). The marks that programs put into queues between rows."""

from sparkdl.tfos.absent_names import absent_names

__all__ = ["EndPartition", "Marker"]

__getattr__ = absent_names(__name__, __all__)


class Marker:
    """The base class of marks in a queue of rows."""


class EndPartition(Marker):
    """The end of a partition: in inference, `TFNode.DataFeed.next_batch` returns here."""
