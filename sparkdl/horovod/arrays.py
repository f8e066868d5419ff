"""Runs in the training process. Horovod's collectives on NumPy arrays.

All ranks agree first, see `agreement`. The rules of Horovod 0.28 for scaling and for integers are
those of its C++ code (horovod/common/ops/collective_operations.h).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.distribute.buckets import plan_buckets
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.rows import check_splits, split_rows
from sparkdl.horovod.adasum import adasum
from sparkdl.horovod.agreement import agree, describe

__all__ = ["Reduction", "allgather", "alltoall", "broadcast", "reducescatter", "scale"]


@dataclass(frozen=True)
class Reduction:
    """The reduction of some arrays; those of equal reductions can be reduced together.

    Args:
        op: `mean`, `sum`, `min`, `max`, `product` or `adasum`.
        prescale: factor applied before the reduction.
        postscale: factor applied after it.
    """

    op: str
    prescale: float = 1.0
    postscale: float = 1.0

    def __call__(self, world: Ring, *arrays: Any) -> list[Any]:
        """Return the reductions of some arrays, after all ranks have agreed.

        Args:
            world: the ring of the ranks that take part.
            *arrays: the arrays.
        """
        agree(world, self.description(arrays))
        return self.without_agreement(world, arrays)

    def description(self, arrays: Sequence[Any]) -> Any:
        """Return the description of the reduction, see `describe`."""
        arrays = [np.asarray(array) for array in arrays]
        parts = []
        for bucket in self._buckets(arrays):
            first, size = arrays[bucket[0]], sum(arrays[i].size for i in bucket)
            parts.append([first.dtype.name, size, _ring_operation(self.op, first)])
        scales = [self.prescale, self.postscale]
        return describe("allreduce", arrays, parts=parts, operation=self.op, scales=scales)

    def without_agreement(self, world: Ring, arrays: Sequence[Any]) -> list[Any]:
        """Return the reductions of arrays whose descriptions are known to be equal on all ranks.

        Args:
            world, arrays: see `__call__`.
        """
        arrays = [np.asarray(array, order="C") for array in arrays]
        if self.op == "adasum":
            scaled_arrays = [scale(array, self.prescale) for array in arrays]
            totals = [adasum(world, array) for array in scaled_arrays]
            return [scale(total, self.postscale) for total in totals]
        results: list[Any] = [None] * len(arrays)
        for bucket in self._buckets(arrays):
            flat = [scale(arrays[i], self.prescale).reshape(-1) for i in bucket]
            ring_op = _ring_operation(self.op, flat[0])
            total = world.allreduce(np.concatenate(flat) if len(flat) > 1 else flat[0], ring_op)
            is_mean_by_sum = (self.op, ring_op) == ("mean", "sum")
            factor = self.postscale / world.size if is_mean_by_sum else self.postscale
            parts = split_rows(scale(total, factor), [part.size for part in flat])
            for i, part in zip(bucket, parts, strict=True):
                # A result does not keep the memory of the others.
                part = part.copy() if len(bucket) > 1 else part
                results[i] = part.reshape(arrays[i].shape)
        return results

    def _buckets(self, arrays: Sequence[Any]) -> list[list[int]]:
        if self.op == "adasum":  # Its result depends on the whole array.
            return [[i] for i in range(len(arrays))]
        return plan_buckets([a.nbytes for a in arrays], [a.dtype.name for a in arrays])


def reducescatter(
    world: Ring, arrays: Sequence[Any], op: str, prescale: float = 1.0, postscale: float = 1.0
) -> list[Any]:
    """Return this rank's rows of the reductions of some arrays, see `Reduction`."""
    arrays = [np.asarray(array, order="C") for array in arrays]
    description = _describe_rows("reducescatter", arrays, op=op, scales=[prescale, postscale])
    if op not in ("mean", "sum"):
        description = {"error": f"reducescatter got op={op!r}; expected hvd.Average or hvd.Sum."}
    agree(world, description)
    results = []
    for array in arrays:
        ring_op = _ring_operation(op, array)
        factor = postscale / world.size if (op, ring_op) == ("mean", "sum") else postscale
        results.append(scale(world.reduce_scatter(scale(array, prescale), ring_op), factor))
    return results


def allgather(world: Ring, arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays of all ranks, concatenated along their first dimension."""
    arrays = [np.asarray(array, order="C") for array in arrays]
    agree(world, _describe_rows("allgather", arrays, rows_differ=True))
    return [world.allgather_rows(array)[0] for array in arrays]


def broadcast(world: Ring, arrays: Sequence[Any], root: int) -> list[Any]:
    """Return the arrays of a rank.

    Args:
        world: the ring of the ranks that take part.
        arrays: the arrays.
        root: rank in that ring.
    """
    arrays = [np.asarray(array, order="C") for array in arrays]
    agree(world, describe("broadcast", arrays, root=root))
    return [world.broadcast(array, root) for array in arrays]


def alltoall(world: Ring, array: Any, splits: Any) -> tuple[Any, Any]:
    """Return the rows that all ranks have for this rank, and how many come from each rank.

    Args:
        world: the ring of the ranks that take part.
        array: the rows for all ranks.
        splits: number of rows for each rank; empty for equally many.
    """
    array = np.asarray(array, order="C")
    num_rows = len(array) if array.ndim else 0
    counts = [int(split) for split in splits] or [num_rows // world.size] * world.size
    description = describe("alltoall", [array], rows_differ=True)
    try:
        check_splits(array, counts, world.size)
    except ValueError as exc:
        description = {"error": str(exc)}
    agree(world, description)
    rows, received = world.alltoall_rows(array, counts)
    return rows, np.array(received, np.int32)


def scale(array: Any, factor: float) -> Any:
    """Return the product with a factor: integers by way of float64, float16 by way of float32.

    Example:
        >>> scale(np.array([3, -3]), 0.5)
        array([ 1, -1])
    """
    if factor == 1.0:
        return array
    kind = array.dtype.kind
    if kind in "iub":
        wide: Any = np.dtype(np.float64)
    elif array.dtype.itemsize == 2:
        wide = np.dtype(np.float32)
    else:
        wide = array.dtype
    return (array.astype(wide, copy=False) * wide.type(factor)).astype(array.dtype, copy=False)


def _describe_rows(call: str, arrays: Sequence[Any], **more: Any) -> Any:
    """Describe a collective over rows, which a number does not have."""
    if any(array.ndim == 0 for array in arrays):
        return {"error": f"{call} got a number; expected at least one dimension."}
    return describe(call, arrays, **more)


def _ring_operation(op: str, array: Any) -> str:
    """Return the operation of the ring: integers are averaged by scaling their sum."""
    is_float = array.dtype.kind not in "iub"
    return "sum" if op == "adasum" or (op == "mean" and not is_float) else op
