"""Runs in the training process. Adasum (Maleki et al. 2020, arXiv:2006.02924).

Of two gradients, each loses half of its projection on the other: those at right angles are added
up, and equal ones averaged. The results of two pairs are again a pair.
"""

from typing import Any

import numpy as np

from sparkdl.distribute.ring import Ring
from sparkdl.distribute.stride_plan import SHORT_BYTES
from sparkdl.horovod.agreement import Disagreement


def adasum(world: Ring, array: Any) -> Any:
    """Return the Adasum of the arrays of all ranks.

    Args:
        world: the ring of the ranks, a power of two of them.
        array: the array of this rank.

    Raises:
        Disagreement: if the number of ranks is no power of two.
    """
    if world.size & (world.size - 1):
        raise Disagreement(
            f"Adasum was called by {world.size} ranks; expected a power of two. Use hvd.Average."
        )
    flat = array.reshape(-1)
    if array.nbytes <= SHORT_BYTES:
        rows = [row.astype(np.float64) for row in world.allgather(flat)]
        while len(rows) > 1:
            pairs = zip(rows[::2], rows[1::2], strict=True)
            rows = [_combined(*pair, _products(*pair)) for pair in pairs]
        total = rows[0].astype(array.dtype)
    else:
        total = _by_halving(world, flat, array.dtype, bit=0)
    return total.reshape(array.shape)


def _by_halving(world: Ring, row: Any, dtype: Any, bit: int) -> Any:
    """Return a part of the Adasum of all ranks.

    Two ranks whose numbers differ in a bit each combine a half of their rows (vector halving,
    distance doubling). Sums travel in a wider dtype than the arrays.

    Args:
        world: the ring of all ranks.
        row: the part of the Adasum of the ranks whose numbers differ in lower bits only.
        dtype: dtype of the result.
        bit: number of the bit.
    """
    if 1 << bit == world.size:
        return row.astype(dtype)
    is_second = bool(world.rank >> bit & 1)
    halves = [row[: row.size // 2], row[row.size // 2 :]]
    own, sent = halves[is_second], halves[not is_second]
    is_narrow = dtype.kind not in "iub" and dtype.itemsize <= 2
    wide = np.float32 if is_narrow else np.float64
    left, right = (
        values.astype(wide, copy=False) for values in (own, world.swap(sent, bit, own.size))
    )
    if is_second:
        left, right = right, left
    # The ranks that have the other parts of the same rows have the other terms of the products.
    pair = world.rank >> bit + 1
    products = np.zeros((world.size >> bit + 1, 3))
    products[pair] = _products(left, right)
    products = world.allreduce(products, "sum")
    total = _by_halving(world, _combined(left, right, products[pair]), dtype, bit + 1)
    other = world.swap(total, bit, sent.size)
    return np.concatenate([other, total] if is_second else [total, other])


def _products(left: Any, right: Any) -> list[Any]:
    """Return the scalar products of two rows, and of each with itself.

    Those of bfloat16 values may be larger, or smaller, than float32 can be.
    """
    pairs = (left, right), (left, left), (right, right)
    return [np.einsum("i,i", *pair, dtype=np.float64) for pair in pairs]


def _combined(left: Any, right: Any, products: Any) -> Any:
    """Return the Adasum of two rows, by their products, see `_products`."""
    product, *squares = products
    first, second = (
        left.dtype.type(1 - product / (2 * square) if square else 1) for square in squares
    )
    return first * left + second * right
