"""Runs anywhere (pure). Which arrays are reduced together."""

from collections.abc import Hashable, Sequence

# Arrays of at least so many bytes are reduced alone, without a copy; smaller ones together.
LARGE_BYTES = 1 << 20
BUCKET_BYTES = 8 << 20


def plan_buckets(num_bytes: Sequence[int | None], kinds: Sequence[Hashable]) -> list[list[int]]:
    """Return the places of the arrays of each bucket, in the order in which they are reduced.

    A bucket has one large array, or small ones of one kind. It is reduced when its last array is
    known, so that the last buckets are those of small arrays that have not become full.

    Args:
        num_bytes: the size of each array; None if it is unknown.
        kinds: only arrays of an equal kind can be reduced together.

    Example:
        >>> plan_buckets([8, 4 << 20, 8], ["float32"] * 3)
        [[1], [0, 2]]
    """
    buckets: list[list[int]] = []
    filling: dict[Hashable, tuple[list[int], int]] = {}
    for place, (nbytes, kind) in enumerate(zip(num_bytes, kinds, strict=True)):
        if nbytes is None or nbytes >= LARGE_BYTES:
            buckets.append([place])
            continue
        bucket, filled_bytes = filling.pop(kind, ([], 0))
        if filled_bytes + nbytes > BUCKET_BYTES:
            buckets.append(bucket)
            bucket, filled_bytes = [], 0
        bucket.append(place)
        filling[kind] = bucket, filled_bytes + nbytes
    return buckets + [bucket for bucket, _ in filling.values()]
