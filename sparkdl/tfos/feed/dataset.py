"""Runs in the training process. Convert the rows that Spark feeds to a `tf.data.Dataset`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sparkdl.tfos.feed.chunks import columns_of
from sparkdl.tfos.feed.inbox import Boundary


def dataset(take: Callable[[], Any], batch_size: int, names: Sequence[str] | None) -> Any:
    """Return batches of rows. Wait for the first rows, which determine the types.

    Args:
        take: returns the next rows, or a `Boundary`.
        batch_size: number of rows in a batch.
        names: the names of the parts of a row; None returns a tuple of the parts.

    Raises:
        ValueError: if the feed ends before the first row, so that the types are unknown.
    """
    import tensorflow as tf

    chunks = _chunks(take)
    first = next(chunks, None)
    if first is None:
        raise ValueError(
            "as_dataset() received no rows: the feed ended before the first row. The types of the "
            "dataset come from the first rows; feed at least one row to each node."
        )

    def to_element(rows: Any) -> Any:
        parts = columns_of(rows)
        if names is not None:
            return dict(zip(names, parts, strict=False))
        return tuple(parts) if len(parts) > 1 else parts[0]

    def elements() -> Iterator[Any]:
        nonlocal first
        if first is not None:
            rows, first = first, None
            yield to_element(rows)
        yield from map(to_element, chunks)

    def spec(array: Any) -> Any:
        dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
        return tf.TensorSpec((None, *array.shape[1:]), dtype)

    signature = tf.nest.map_structure(spec, to_element(first))
    unbatched = tf.data.Dataset.from_generator(elements, output_signature=signature)
    return unbatched.rebatch(batch_size).prefetch(tf.data.AUTOTUNE)


def _chunks(take: Callable[[], Any]) -> Iterator[Any]:
    while (rows := take()) is not Boundary.FEED:
        if rows is not Boundary.PARTITION:
            yield rows
