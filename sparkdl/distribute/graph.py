"""Where it runs: P. The ring inside TensorFlow's graphs: gradients of all ranks made one.

Gradients appear from the last layer to the first. They are reduced in that order, in buckets, while
the backward pass goes on. A graph hands the memory of a gradient to Python as it is, and takes a
result without copying it if its memory is aligned (py_func.cc); so the results come from a pool.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.nccl import Group
from sparkdl.distribute.ring import Ring

__all__ = ["Pool", "Reducer"]

BUCKET_BYTES = 8 << 20
ALIGNMENT = 64


class Pool:
    """Memory for results, which is used again when TensorFlow has dropped it.

    Fresh memory costs a page fault for every 4 KiB, at each step.
    """

    def __init__(self) -> None:
        self._owners: list[Any] = []

    def take(self, size: int, dtype: Any) -> Any:
        """An aligned array with so many elements; it is in use as long as anybody has it."""
        nbytes = size * np.dtype(dtype).itemsize
        for owner in self._owners:
            # Three that have it are this list, `owner`, and the call itself.
            if owner.size == nbytes + ALIGNMENT and sys.getrefcount(owner) == 3:
                break
        else:
            owner = np.empty(nbytes + ALIGNMENT, np.uint8)
            self._owners.append(owner)
        begin = -owner.ctypes.data % ALIGNMENT
        return owner[begin : begin + nbytes].view(dtype)


class Reducer:
    """Averages gradients over all ranks, in a graph or eagerly.

    Args:
        ring: of the ranks.
        op: `mean` or `sum`.
        wire: the dtype in which gradients of more bits travel, such as `bfloat16`; None for theirs.
        group: what reduces tensors instead of the ring, see `nccl.chosen`.
    """

    def __init__(
        self,
        ring: Ring,
        op: str = "mean",
        wire: str | None = None,
        group: Group | None = None,
    ) -> None:
        self.ring, self._op, self._wire, self._pool = ring, op, wire, Pool()
        self._group = group
        self._counts_steps = self._is_over = False

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks as one; None and `tf.IndexedSlices` stay what they are.

        All ranks must have the same variables, in the same order.
        """
        import tensorflow as tf

        results = list(gradients)
        before: list[Any] = []
        dense = [i for i, g in enumerate(gradients) if isinstance(g, tf.Tensor)]
        for bucket in _buckets(dense[::-1], [gradients[i] for i in dense[::-1]]):
            with tf.control_dependencies(before):
                reduced = self._reduced([gradients[i] for i in bucket])
            before = reduced[:1]
            for i, one in zip(bucket, reduced, strict=True):
                results[i] = one
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                with tf.control_dependencies(before):
                    results[i] = self._gathered(gradient)
                before = [results[i].indices]
        return results

    def _reduced(self, tensors: list[Any]) -> list[Any]:
        """The tensors of a bucket, which have one dtype."""
        import tensorflow as tf

        dtype = tensors[0].dtype
        flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
        joined = tf.concat(flat, 0) if len(flat) > 1 else flat[0]
        wire = tf.as_dtype(self._wire) if self._wire and dtype.is_floating else dtype
        if wire.size < dtype.size:
            joined = tf.cast(joined, wire)
        if self._group and self._group.takes(joined):
            whole = self._group.reduce(joined, self._op)
        else:
            whole = tf.numpy_function(self._reduce, [joined], joined.dtype)
        whole = tf.cast(whole, dtype) if wire.size < dtype.size else whole
        parts = tf.split(whole, [tf.size(one) for one in flat]) if len(flat) > 1 else [whole]
        shapes = (tf.shape(tensor) for tensor in tensors)
        reduced = [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
        for one, tensor in zip(reduced, tensors, strict=True):
            one.set_shape(tensor.shape)
        return reduced

    def _reduce(self, flat: Any) -> Any:
        return self.ring.allreduce(flat, self._op, out=self._pool.take(flat.size, flat.dtype))

    def _gathered(self, slices: Any) -> Any:
        """The rows of all ranks: what one process would have with all their examples."""
        import tensorflow as tf

        share = self.ring.size if self._op == "mean" else 1

        def gather(values: Any, indices: Any) -> Any:
            rows = np.concatenate(self.ring.allgather(values))
            return rows / rows.dtype.type(share), np.concatenate(self.ring.allgather(indices))

        types = [slices.values.dtype, slices.indices.dtype]
        values, indices = tf.numpy_function(gather, [slices.values, slices.indices], types)
        values.set_shape([None, *slices.values.shape[1:]])
        indices.set_shape([None])
        return tf.IndexedSlices(values, indices, slices.dense_shape)

    def agreed(self) -> Any:
        """A context for what is to happen only in a step that all ranks make.

        Not even the optimizer may count a step that another rank has no rows for.
        """
        import tensorflow as tf

        if not self._counts_steps:
            return contextlib.nullcontext()

        def step() -> Any:
            if self.ring.allreduce(np.ones(1, np.uint8), "min")[0]:
                return np.uint8(1)
            self._is_over = True
            raise StopIteration  # TensorFlow makes OutOfRangeError of it: the rows have run out.

        return tf.control_dependencies([tf.numpy_function(step, [], tf.uint8)])

    @contextlib.contextmanager
    def counting_steps(self) -> Iterator[None]:
        """Meanwhile each step begins with the question whether all ranks make it.

        Raises:
            tf.errors.OutOfRangeError: in a step, as another rank has called `end_epoch`.
        """
        self._counts_steps, self._is_over = True, False
        try:
            yield
        finally:
            self._counts_steps = False

    def end_epoch(self) -> None:
        """Tell the others that this rank makes no more steps, unless one has told it before."""
        if not self._is_over:
            self.ring.allreduce(np.zeros(1, np.uint8), "min")
        self._is_over = False


def _buckets(places: Sequence[int], tensors: Sequence[Any]) -> list[list[int]]:
    """Places of tensors that are reduced as one: neighbours of one dtype, up to some bytes."""
    buckets: list[list[int]] = []
    dtype, room = None, 0
    for place, tensor in zip(places, tensors, strict=True):
        size = (tensor.shape.num_elements() or BUCKET_BYTES) * tensor.dtype.size
        if tensor.dtype != dtype or size > room:
            buckets.append([])
            dtype, room = tensor.dtype, BUCKET_BYTES
        buckets[-1].append(place)
        room -= size
    return buckets
