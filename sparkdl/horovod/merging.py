"""Runs in the training process. Reductions that wait at the same time are made as one."""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl.distribute.ring import Ring
from sparkdl.horovod.arrays import Reduction

__all__ = ["Mergeable", "call_merged", "merged_names"]


class Mergeable:
    """A reduction that waits, and can be made together with others of its kind.

    Args:
        reduction: the reduction.
        arrays: its arrays.
        finish: returns the result of the collective for the reduced arrays.

    Attributes:
        reduction, arrays, finish: see above.
    """

    def __init__(
        self, reduction: Reduction, arrays: Sequence[Any], finish: Callable[[Sequence[Any]], Any]
    ) -> None:
        self.reduction = reduction
        self.arrays = arrays
        self.finish = finish

    @functools.cached_property
    def digest(self) -> str:
        """The digest of what must be equal on all ranks."""
        text = json.dumps(self.reduction.description(self.arrays)).encode()
        return hashlib.blake2b(text, digest_size=16).hexdigest()


def merged_names(
    names: Sequence[str],
    mergeables: Mapping[str, Mergeable | None],
    digests_of_ranks: Sequence[Mapping[str, str]],
) -> list[list[str]]:
    """Return the names of collectives in groups that are called as one, in the order of the calls.

    Args:
        names: names of collectives that wait on all ranks.
        mergeables: those of this rank that can be merged, by name.
        digests_of_ranks: of each rank the digests of those that can be merged, by name.
    """
    groups: dict[Any, list[str]] = {}
    for name in names:
        mergeable, digests = mergeables[name], {digests.get(name) for digests in digests_of_ranks}
        # Ranks that disagree about one get an error for that one only.
        kind = mergeable.reduction if mergeable and len(digests) == 1 else name
        groups.setdefault(kind, []).append(name)
    return list(groups.values())


def call_merged(ring: Ring, calls: Sequence[Mergeable]) -> list[Callable[[], Any]]:
    """Make reductions of one kind, on which all ranks agree; return the ends of the collectives.

    Each end returns the result of a collective or raises its error, such as that of a tensor which
    cannot be written to.

    Args:
        ring: the ring of the ranks that take part.
        calls: the reductions.
    """
    arrays = [array for call in calls for array in call.arrays]
    reduced = iter(calls[0].reduction.without_agreement(ring, arrays))
    parts = [[next(reduced) for _ in call.arrays] for call in calls]
    return [functools.partial(each.finish, part) for each, part in zip(calls, parts, strict=True)]
