"""Runs in the training process. What Spark feeds to a node as a `tf.data.Dataset`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sparkdl.tfos.feed.chunks import columns_of
from sparkdl.tfos.feed.inbox import Cut

__all__ = ["dataset"]


def dataset(take: Callable[[], Any], batch_size: int, names: Sequence[str] | None) -> Any:
    """Batches of rows; waits for the first ones, which tell the types.

    Args:
        take: gives the next rows, or a `Cut`.
        batch_size: rows in a batch.
        names: what the parts of a row are called; None leaves them in a tuple.

    Raises:
        ValueError: the feed ended before the first row, so that nothing tells the types.
    """
    import tensorflow as tf

    pieces = _pieces(take)
    first = next(pieces, None)
    if first is None:
        raise ValueError("as_dataset() found no row: the feed ended before the first one.")

    def arranged(rows: Any) -> Any:
        parts = columns_of(rows)
        if names is not None:
            return dict(zip(names, parts, strict=False))
        return tuple(parts) if len(parts) > 1 else parts[0]

    def elements() -> Iterator[Any]:
        nonlocal first
        if first is not None:
            begun, first = first, None
            yield arranged(begun)
        yield from map(arranged, pieces)

    def spec(array: Any) -> Any:
        dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
        return tf.TensorSpec((None, *array.shape[1:]), dtype)

    signature = tf.nest.map_structure(spec, arranged(first))
    made = tf.data.Dataset.from_generator(elements, output_signature=signature)
    return made.rebatch(batch_size).prefetch(tf.data.AUTOTUNE)


def _pieces(take: Callable[[], Any]) -> Iterator[Any]:
    while (rows := take()) is not Cut.FEED:
        if rows is not Cut.PARTITION:
            yield rows
