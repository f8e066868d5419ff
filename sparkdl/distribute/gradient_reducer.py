"""Runs in the training process.

The ring inside TensorFlow's graphs: gradients of all ranks made one.

Gradients appear from the last layer to the first. They are reduced in that order, in buckets, while
the backward pass goes on. A graph hands the memory of a gradient to Python as it is, and takes a
result without copying it if its memory is aligned (py_func.cc); so the results come from a pool.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.nccl import Group
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.timed_links import begins_step

__all__ = ["Pool", "Reducer"]

BUCKET_BYTES = 8 << 20
ALIGNMENT = 64

# What ranks say before a step; the least of it is what all do.
_OVER, _WAIT, _GO = range(3)


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
        self._let_in: Callable[[], None] | None = None
        self._midway = False
        self.steps = 0

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
                reduced = self._reduced([gradients[i] for i in bucket], is_first=not before)
            before = reduced[:1]
            for i, one in zip(bucket, reduced, strict=True):
                results[i] = one
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                with tf.control_dependencies(before):
                    results[i] = self._gathered(gradient, is_first=not before)
                before = [results[i].indices]
        return results

    def _reduced(self, tensors: list[Any], is_first: bool) -> list[Any]:
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
            reduce = begins_step(self._reduce) if is_first else self._reduce
            whole = tf.numpy_function(reduce, [joined], joined.dtype)
        whole = tf.cast(whole, dtype) if wire.size < dtype.size else whole
        parts = tf.split(whole, [tf.size(one) for one in flat]) if len(flat) > 1 else [whole]
        shapes = (tf.shape(tensor) for tensor in tensors)
        reduced = [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
        for one, tensor in zip(reduced, tensors, strict=True):
            one.set_shape(tensor.shape)
        return reduced

    def _reduce(self, flat: Any) -> Any:
        return self.ring.allreduce(flat, self._op, out=self._pool.take(flat.size, flat.dtype))

    def _gathered(self, slices: Any, is_first: bool) -> Any:
        """The rows of all ranks: what one process would have with all their examples."""
        import tensorflow as tf

        def gather(values: Any, indices: Any) -> Any:
            # At once: so they are of the same ranks, should one be lost.
            width, tail = indices.itemsize, values.shape[1:]
            told = self.ring.allgather(np.concatenate([_rows(indices), _rows(values)], axis=1))
            rows, share = np.concatenate(told), len(told) if self._op == "mean" else 1
            indices = rows[:, :width].copy().view(indices.dtype).reshape(-1)
            values = rows[:, width:].copy().reshape(-1).view(values.dtype)
            values = values.reshape(len(rows), *tail)
            return values / values.dtype.type(share), indices

        types = [slices.values.dtype, slices.indices.dtype]
        call = begins_step(gather) if is_first else gather
        values, indices = tf.numpy_function(call, [slices.values, slices.indices], types)
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
            while (said := self._say(self._wish())) == _WAIT and self._let_in:
                self._let_in()
            if said == _GO:
                self.steps += 1
                return np.uint8(1)
            self._is_over = True
            raise StopIteration  # TensorFlow makes OutOfRangeError of it: the rows have run out.

        return tf.control_dependencies([tf.numpy_function(step, [], tf.uint8)])

    def _wish(self) -> int:
        if not self._let_in or (self.steps and not self._midway):
            return _GO
        return _WAIT if isinstance(self.ring, ElasticRing) and self.ring.is_awaited else _GO

    def _say(self, wish: int) -> int:
        return int(self.ring.allreduce(np.array([wish], np.uint8), "min")[0])

    @contextlib.contextmanager
    def counting_steps(
        self, let_in: Callable[[], None] | None = None, midway: bool = False
    ) -> Iterator[None]:
        """Meanwhile each step begins with the question whether all ranks make it.

        Args:
            let_in: called on all ranks, between two steps, when one waits to be admitted.
            midway: between any two; else before the first of an epoch.

        Raises:
            tf.errors.OutOfRangeError: in a step, as another rank has called `end_epoch`.
        """
        self._counts_steps, self._is_over = True, False
        self._let_in, self._midway = let_in, midway
        try:
            yield
        finally:
            self._counts_steps, self._let_in = False, None

    def begin_epoch(self) -> None:
        """Count `steps` from 0."""
        self.steps = 0

    def end_epoch(self) -> None:
        """Tell the others that this rank makes no more steps, unless one has told it before."""
        if not self._is_over:
            self._say(_OVER)
        self._is_over = False


def _rows(array: Any) -> Any:
    """The bytes of each row of an array."""
    each = array.itemsize * int(np.prod(array.shape[1:]))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), each)


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
