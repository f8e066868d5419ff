"""Runs in the training process. Reduce gradients over all ranks, inside TensorFlow's graphs.

Gradients are computed from the last layer to the first. They are reduced in that order, in buckets,
while the backward pass continues. A graph passes the memory of a gradient to Python without a copy,
and uses a result without a copy if its memory is aligned (py_func.cc); the results therefore come
from a pool of aligned memory.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.aligned_memory import Pool
from sparkdl.distribute.buckets import plan_buckets
from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.first_step import check_equal
from sparkdl.distribute.graph_order import call_in_order
from sparkdl.distribute.nccl import Group
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.rows import split_rows
from sparkdl.distribute.step_times import step_times
from sparkdl.distribute.stride_plan import SHORT_BYTES
from sparkdl.distribute.timed_links import mark_step_start

# The votes of the ranks before a step. All ranks act on the smallest vote.
_STOP, _ADMIT, _STEP = range(3)

# Part of the error of TensorFlow's collectives that another rank has interrupted.
_ABORTED = "Collective ops is aborted"


class Reducer:
    """Reduces gradients over all ranks, in a graph or eagerly.

    Args:
        ring: the ring of all ranks.
        op: `mean` or `sum`.
        wire_dtype: dtype in which gradients of wider dtypes travel, such as `bfloat16`; None to
            keep their own dtype.
        group: reduces dense tensors in place of the ring, see `nccl.choose_group`.

    Attributes:
        ring: the ring of all ranks.
        steps: number of steps that all ranks have made in this epoch.
        is_over: True if another rank has ended this epoch.
        evaluates_together: make an evaluation outside `fit` one of the rows of all ranks.
    """

    evaluates_together = True
    _votes_with_gradients = True
    _checks_variables = True  # Before the first step of a loop; `fit` makes them equal itself.

    def __init__(
        self,
        ring: Ring,
        op: str = "mean",
        wire_dtype: str | None = None,
        group: Group | None = None,
    ) -> None:
        self.ring = ring
        self.steps = 0
        self._op = op
        self._wire_dtype = wire_dtype
        self._group = group
        self._pool = Pool()
        self._counts_steps = False
        self._is_vote_due = False
        self.is_over = False
        self._admit: Callable[[], None] | None = None

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        """Reduce the gradients; None stays None, and `tf.IndexedSlices` stay sparse.

        Args:
            gradients: tensors, `tf.IndexedSlices` or None, of the same variables in the same order
                on all ranks.
        """
        import tensorflow as tf

        results = list(gradients)
        previous: list[Any] = []
        for bucket in self._buckets(gradients):
            with tf.control_dependencies(previous):
                reduced = self._reduce_dense([gradients[i] for i in bucket], is_first=not previous)
            previous = reduced[:1]
            self._is_vote_due = False
            for i, tensor in zip(bucket, reduced, strict=True):
                results[i] = tensor
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                with tf.control_dependencies(previous):
                    results[i] = self._reduce_sparse(gradient, is_first=not previous)
                previous = [results[i].indices]
        return results

    def _buckets(self, gradients: Sequence[Any]) -> list[list[int]]:
        """Return the positions of the dense gradients that are reduced together, in that order."""
        import tensorflow as tf

        dense = [i for i, gradient in enumerate(gradients) if isinstance(gradient, tf.Tensor)]
        return _buckets(dense[::-1], [gradients[i] for i in dense[::-1]])

    def is_local(self, variable: Any) -> bool:
        """Return True if each rank keeps its own values of a variable."""
        return False

    def reduce_for(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduce the gradients of some variables, see `__call__`.

        Args:
            gradients: see `__call__`.
            variables: the variables, in the same order.
        """
        if self._checks_variables and not self._counts_steps:
            check_equal(self.ring, variables)
        return self(gradients)

    def keep(self, gradient: Any) -> Any:
        """Return a gradient as an optimizer applies it, if a tape has reduced it already."""
        return gradient

    def _reduce_dense(self, tensors: list[Any], is_first: bool) -> list[Any]:
        """Reduce the tensors of a bucket, which have the same dtype."""
        import tensorflow as tf

        dtype = tensors[0].dtype
        is_cast = self._wire_dtype and dtype.is_floating
        wire_dtype = tf.as_dtype(self._wire_dtype) if is_cast else dtype
        is_narrowed = wire_dtype.size < dtype.size
        wire_tensors = (
            [tf.cast(tensor, wire_dtype) for tensor in tensors] if is_narrowed else tensors
        )
        if self._group and self._group.can_reduce(wire_tensors[0]):
            reduced = _reduce_on_gpus(self._group, wire_tensors, self._op)
        else:
            reduce = self._reduction_of(tensors)
            reduce = mark_step_start(reduce) if is_first else reduce
            reduced = self._call(
                reduce, wire_tensors, [wire_dtype if is_narrowed else dtype] * len(wire_tensors)
            )
        if is_narrowed:
            reduced = [tf.cast(total, dtype) for total in reduced]
        for result, shape in zip(reduced, self._shapes_of(tensors), strict=True):
            result.set_shape(shape)
        return reduced

    def _reduction_of(self, tensors: list[Any]) -> Callable[..., list[Any]]:
        """Return the function that reduces the arrays of a bucket."""
        return self._agree_and_reduce if self._is_vote_due else self._reduce

    def _shapes_of(self, tensors: list[Any]) -> list[Any]:
        """Return the shapes of the reduced tensors of a bucket."""
        return [tensor.shape for tensor in tensors]

    def _call(self, function: Callable[..., Any], tensors: list[Any], dtypes: list[Any]) -> Any:
        """Return the results of a function of arrays as tensors."""
        return call_in_order(function, tensors, dtypes)

    def _reduce(self, *arrays: Any) -> list[Any]:
        """Reduce arrays of one dtype, as one."""
        return _like(arrays, self._reduce_flat(self._concatenate(arrays)))

    def _agree_and_reduce(self, *arrays: Any) -> list[Any]:
        """Reduce arrays in a step that all ranks make; the vote takes no trip of its own."""
        flat = self._concatenate(arrays)
        out = self._pool.take(flat.size, flat.dtype)

        def vote(preference: int) -> int:
            if preference != _STEP:
                return self._vote(preference)
            return self.ring.vote(preference, flat, self._op, out)

        self._agree(vote)
        return _like(arrays, out)

    def _concatenate(self, arrays: Sequence[Any]) -> Any:
        flat = [array.reshape(-1) for array in arrays]
        if len(flat) == 1:
            return flat[0]
        buffer = self._pool.take(sum(array.size for array in flat), flat[0].dtype)
        return np.concatenate(flat, out=buffer)

    def _reduce_flat(self, flat: Any) -> Any:
        return self.ring.allreduce(flat, self._op, out=self._pool.take(flat.size, flat.dtype))

    def _gather(self, rows: Any) -> tuple[Any, list[int]]:
        return self.ring.allgather_rows(rows)

    def _reduce_sparse(self, slices: Any, is_first: bool) -> Any:
        """Gather the rows of all ranks, as one process would have them for all examples."""
        import tensorflow as tf

        def gather(values: Any, indices: Any) -> Any:
            # One call gathers both: values and indices are then of the same ranks, also if a
            # rank is lost.
            width = indices.itemsize
            row_shape = values.shape[1:]
            rows = np.concatenate([_row_bytes(indices), _row_bytes(values)], axis=1)
            rows, counts = self._gather(rows)
            divisor = len(counts) if self._op == "mean" else 1
            indices = rows[:, :width].copy().view(indices.dtype).reshape(-1)
            values = rows[:, width:].copy().reshape(-1).view(values.dtype)
            values = values.reshape(len(rows), *row_shape)
            return values / values.dtype.type(divisor), indices

        dtypes = [slices.values.dtype, slices.indices.dtype]
        function = mark_step_start(gather) if is_first else gather
        values, indices = self._call(function, [slices.values, slices.indices], dtypes)
        values.set_shape([None, *slices.values.shape[1:]])
        indices.set_shape([None])
        return tf.IndexedSlices(values, indices, slices.dense_shape)

    def agreed_step(self, gradients: Sequence[Any]) -> Any:
        """Return a context for operations that must run only in a step that all ranks make.

        Even the optimizer's step counter must not count a step for which another rank has no rows.

        Args:
            gradients: the gradients of this rank. The ranks vote when those that are reduced first
                are known: a rank has read its rows then, and its backward pass continues.
        """
        import tensorflow as tf

        if not self._counts_steps:
            return contextlib.nullcontext()
        dense = [g for g in gradients if g is not None][::-1]
        first = _buckets(range(len(dense)), dense)[:1]

        def agree() -> Any:
            step_times().vote()
            self._agree(self._vote)
            return np.uint8(1)

        with tf.control_dependencies([dense[i] for bucket in first for i in bucket]):
            vote = call_in_order(agree, [], tf.uint8)
        return tf.control_dependencies([vote])

    def agreed_update(
        self, gradients: Sequence[Any], reduce: Callable[[], Any], update: Callable[[Any], Any]
    ) -> Any:
        """Reduce gradients and update variables in a step that all ranks make; return the update.

        Args:
            gradients: the gradients of this rank.
            reduce: returns the reduced gradients, by `__call__` of this object.
            update: updates variables, given the result of `reduce`.
        """
        import tensorflow as tf

        if not self._can_vote_with(gradients):
            with self.agreed_step(gradients):
                return update(reduce())
        self._is_vote_due = True
        try:
            reduced = reduce()
        finally:
            self._is_vote_due = False
        # All gradients of a bucket are known at the same time, so one of them is enough.
        with tf.control_dependencies([reduced[i] for i in self._first_bucket(gradients)[:1]]):
            return update(reduced)

    def _can_vote_with(self, gradients: Sequence[Any]) -> bool:
        """Return True if the vote can travel with the gradients that are reduced first."""
        if not self._counts_steps or self._group or not self._votes_with_gradients:
            return False
        first = [gradients[i] for i in self._first_bucket(gradients)]
        sizes = [
            (tensor.shape.num_elements() or SHORT_BYTES) * tensor.dtype.size for tensor in first
        ]
        return bool(0 < sum(sizes) <= SHORT_BYTES)

    def _first_bucket(self, gradients: Sequence[Any]) -> list[int]:
        """Return the positions of the dense gradients that are reduced first."""
        buckets = self._buckets(gradients)
        return buckets[0] if buckets else []

    def _agree(self, vote: Callable[[int], int]) -> None:
        """Vote until all ranks make a step, or one of them has ended the epoch.

        Args:
            vote: returns the smallest vote of all ranks, given that of this rank.
        """
        while (decision := vote(self._preference())) == _ADMIT and self._admit:
            self._admit()
            step_times().begin_step()  # The same for the rank that was admitted.
        if decision != _STEP:
            self.is_over = True
            # TensorFlow turns StopIteration into OutOfRangeError, as at the end of a dataset.
            raise StopIteration
        self.steps += 1

    def _preference(self) -> int:
        if not self._admit:
            return _STEP
        return _ADMIT if isinstance(self.ring, ElasticRing) and self.ring.is_awaited else _STEP

    def _vote(self, preference: int) -> int:
        return self.ring.vote(preference)

    @contextlib.contextmanager
    def counting_steps(self, admit: Callable[[], None] | None = None) -> Iterator[None]:
        """Begin each step inside the block with a vote on whether all ranks make the step.

        Args:
            admit: called on all ranks, between two steps, when a rank waits to be admitted.

        Raises:
            tf.errors.OutOfRangeError: in a step, if another rank has called `end_epoch`.
        """
        self._counts_steps = True
        self.is_over = False
        self._admit = admit
        try:
            yield
        finally:
            self._counts_steps = False
            self._admit = None

    def begin_epoch(self) -> None:
        """Reset `steps` to 0."""
        self.steps = 0
        step_times().begin_epoch()

    def end_epoch(self) -> None:
        """Vote that this rank makes no further step, unless another rank has done so before."""
        if not self.is_over:
            self._vote(_STOP)
        self.is_over = False

    def ring_error(self, exc: Exception) -> Exception | None:
        """Return the error that has broken the ring, which names a lost rank; None if it works.

        Args:
            exc: the exception that has ended a step.
        """
        if self._group and _ABORTED in str(exc):
            # TensorFlow's collective may notice a lost rank before the ring does: ask the ring.
            with contextlib.suppress(Exception):  # The ring keeps the error.
                self._vote(_STOP)
        return self.ring.broken


def _like(arrays: Sequence[Any], flat: Any) -> list[Any]:
    """Return the parts of a flat array, in the shapes of some arrays."""
    parts = split_rows(flat, [array.size for array in arrays])
    return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _row_bytes(array: Any) -> Any:
    """Return the bytes of an array, as a uint8 array with one row per row of the array."""
    width = array.itemsize * int(np.prod(array.shape[1:]))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), width)


def _reduce_on_gpus(group: Group, tensors: list[Any], op: str) -> list[Any]:
    import tensorflow as tf

    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    total = group.reduce(tf.concat(flat, 0) if len(flat) > 1 else flat[0], op)
    parts = tf.split(total, [tf.size(tensor) for tensor in flat]) if len(flat) > 1 else [total]
    return [tf.reshape(part, tf.shape(t)) for part, t in zip(parts, tensors, strict=True)]


def _buckets(places: Sequence[int], tensors: Sequence[Any]) -> list[list[int]]:
    """Group the places of tensors that are reduced together.

    Args:
        places: positions of the tensors in the list of gradients.
        tensors: the tensors, in the same order.
    """
    counts = [tensor.shape.num_elements() for tensor in tensors]
    sizes = [n if n is None else n * t.dtype.size for n, t in zip(counts, tensors, strict=True)]
    buckets = plan_buckets(sizes, [tensor.dtype for tensor in tensors])
    return [[places[i] for i in bucket] for bucket in buckets]
