"""Runs in the training process. Reduce gradients to the shards that each rank updates."""

from collections.abc import Callable
from typing import Any

from sparkdl.distribute.buckets import LARGE_BYTES
from sparkdl.distribute.gradient_reducer import Reducer
from sparkdl.distribute.shard_marks import is_shard


class ShardedReducer(Reducer):
    """The reducer of an optimizer whose state is sharded.

    A long gradient becomes the flat part of it that this rank updates, with the bits that `Reducer`
    gives it. Short ones travel together, and are reduced as by `Reducer`.
    """

    def is_local(self, variable: Any) -> bool:
        """Return True if each rank keeps its own values of a variable."""
        return is_shard(variable)

    def _reduction_of(self, tensors: list[Any]) -> Callable[..., list[Any]]:
        if self._is_sharded(tensors):
            return self._reduce_part
        return super()._reduction_of(tensors)

    def _shapes_of(self, tensors: list[Any]) -> list[Any]:
        if not self._is_sharded(tensors):
            return super()._shapes_of(tensors)
        part = self.ring.part_of(tensors[0].shape.num_elements())
        return [[part.stop - part.start]]

    def _is_sharded(self, tensors: list[Any]) -> bool:
        count = tensors[0].shape.num_elements()
        is_long = count is not None and count * tensors[0].dtype.size >= LARGE_BYTES
        return is_long and not self._group

    def _reduce_part(self, array: Any) -> list[Any]:
        flat = array.reshape(-1)
        whole = self._pool.take(flat.size, flat.dtype)
        part = self.ring.reduce_part(flat, self._op, whole)
        out = self._pool.take(part.size, part.dtype)
        out[...] = part
        return [out]
