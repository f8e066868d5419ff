"""Runs in the training process. Horovod's process sets: some of the ranks, with their own ring."""

import functools
import itertools
import os
from collections.abc import Iterable, Sequence

from sparkdl.distribute.groups import Group, group
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.world import ring
from sparkdl.horovod.agreement import agree, together

__all__ = [
    "ProcessSet",
    "add_process_set",
    "barrier",
    "close_process_sets",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "group_of",
    "init_process_sets",
    "own_ring",
    "remove_process_set",
    "ring_of",
    "root_in",
]


class ProcessSet:
    """Some of the ranks, for `hvd.init(process_sets=...)`, `hvd.add_process_set` and collectives.

    Args:
        ranks: the ranks of the set.

    Attributes:
        process_set_id: number of the set; None before it was added and after it was removed.
        ranks: the ranks of the set, in ascending order.

    Raises:
        ValueError: if `ranks` is no list of ranks, but a communicator of MPI, for example.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.ProcessSet([2, 0]).ranks
        [0, 2]
    """

    mpi_comm = None

    def __init__(self, ranks: Iterable[int]) -> None:
        rank_list = list(ranks) if isinstance(ranks, Iterable) else [None]
        if not all(isinstance(rank, int) for rank in rank_list):
            raise ValueError(f"ProcessSet got {ranks!r}; expected a list of ranks.")
        self.process_set_id: int | None = None
        self.ranks = sorted({rank for rank in rank_list if rank is not None})

    def size(self) -> int | None:
        """Return the number of ranks in the set; None before it was added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this rank's place in the set; None before it was added, or outside it."""
        rank = ring().rank
        is_member = self.process_set_id is not None and rank in self.ranks
        return self.ranks.index(rank) if is_member else None

    def included(self) -> bool:
        """Return True if this rank is in the set."""
        return ring().rank in self.ranks

    def __str__(self) -> str:
        number, ranks = self.process_set_id, self.ranks
        return f"ProcessSet(process_set_id={number}, ranks={ranks}, mpi_comm=None)"


class _AllRanks(ProcessSet):
    """The set of all ranks, which an elastic gang changes."""

    def __init__(self) -> None:
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int]:  # type: ignore[override]
        """All ranks."""
        return list(range(ring().size))


global_process_set = _AllRanks()


def init_process_sets(process_sets: Sequence[ProcessSet | Sequence[int]] | None) -> None:
    """Add the sets that were given to `hvd.init`, unless an earlier call has added them.

    Raises:
        ValueError: if `process_sets` is no list of sets, or has a set twice.
    """
    sets = [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in process_sets or ()]
    ranks = [s.ranks for s in (global_process_set, *sets)]
    if twice := [each for number, each in enumerate(ranks) if each in ranks[:number]]:
        raise ValueError(
            f"hvd.init got two process sets of the ranks {twice[0]}; expected different sets. All "
            "ranks together are hvd.global_process_set."
        )
    for process_set in sets:
        numbers = {tuple(r): number for number, r in get_process_set_ids_and_ranks().items()}
        if (number := numbers.get(tuple(process_set.ranks))) is None:
            add_process_set(process_set)
        else:
            process_set.process_set_id = number


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a set of ranks; all ranks must call it, also those outside the set.

    Args:
        process_set: the set, or its ranks.

    Raises:
        ValueError: if there is a set of these ranks already; on all ranks, if another rank has
            called a collective instead, or asks for other ranks.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.init()
        >>> hvd.add_process_set([0])
        Traceback (most recent call last):
        ValueError: there is a process set of the ranks [0] already: ...
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    for number, ranks in get_process_set_ids_and_ranks().items():
        if ranks == process_set.ranks:
            raise ValueError(
                f"there is a process set of the ranks {ranks} already: number {number}. Use it, or "
                "remove it with hvd.remove_process_set."
            )
    with together(ring()) as world:
        agree(world, {"call": "add_process_set", "ranks": process_set.ranks})
    groups = _groups(os.getpid())
    number = next(number for number in itertools.count(1) if number not in groups)
    groups[number] = group(process_set.ranks)
    process_set.process_set_id = number
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set; all ranks must call it. Return False if the set was never added.

    Raises:
        ValueError: on all ranks, if another rank has called a collective instead.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.remove_process_set(hvd.global_process_set)
        False
    """
    number = process_set.process_set_id
    if not number:  # The set of all ranks stays.
        return False
    # No rank may leave while others still use the set.
    with together(ring()) as world:
        agree(world, {"call": "remove_process_set", "set": number})
    process_set.process_set_id = None
    _groups(os.getpid()).pop(number).close()
    return True


def close_process_sets() -> None:
    """Leave the rings of all sets; those of the other ranks notice at once."""
    groups = _groups(os.getpid())
    for each in (_all_ranks(os.getpid()), *groups.values()):
        each.close()
    groups.clear()
    _all_ranks.cache_clear()


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of each set, by number.

    Example:
        >>> from sparkdl.horovod.process_sets import get_process_set_ids_and_ranks
        >>> get_process_set_ids_and_ranks()
        {0: [0]}
    """
    groups = _groups(os.getpid())
    return {0: global_process_set.ranks} | {number: g.ranks for number, g in groups.items()}


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Block until all ranks have called `barrier`.

    Args:
        process_set: the ranks that take part.

    Raises:
        ValueError: on all ranks, if another rank has called a collective instead.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.barrier()
    """
    with together(ring_of(process_set)) as members:
        agree(members, {"call": "barrier"})


def ring_of(process_set: ProcessSet) -> Ring:
    """Return the ring of a set.

    Raises:
        ValueError: if the set was not added, or this rank is not in it.
    """
    if process_set.process_set_id == 0:
        return ring()
    return group_of(process_set).ring


def group_of(process_set: ProcessSet) -> Group:
    """Return the group of a set.

    Raises:
        ValueError: if the set was not added.
    """
    if process_set.process_set_id == 0:
        return _all_ranks(os.getpid())
    if process_set.process_set_id is None:
        raise ValueError(
            f"{process_set} was not added. Pass it to hvd.init(process_sets=[...]) or "
            "hvd.add_process_set on all ranks first."
        )
    groups = _groups(os.getpid())
    if process_set.process_set_id not in groups:
        raise ValueError(f"{process_set} is not known; hvd.add_process_set gives a set its number.")
    return groups[process_set.process_set_id]


def own_ring(process_set: ProcessSet) -> Ring:
    """Return the ring of a set; outside the set, a ring of this rank alone.

    Raises:
        ValueError: if the set was not added.
    """
    group = group_of(process_set)
    return group.ring if process_set.included() else Ring()


def root_in(process_set: ProcessSet, root_rank: int) -> int:
    """Return the place of a root in a set.

    Raises:
        ValueError: if it is not in the set.
    """
    if root_rank not in process_set.ranks:
        raise ValueError(
            f"root_rank is {root_rank!r}; expected one of the ranks {process_set.ranks}."
        )
    return process_set.ranks.index(root_rank)


# Process-wide state: the sets of this process, by number, see `world._ring_of`.
@functools.lru_cache(maxsize=1)
def _groups(pid: int) -> dict[int, Group]:
    return {}


# Process-wide state: the group of all ranks, see above.
@functools.lru_cache(maxsize=1)
def _all_ranks(pid: int) -> Group:
    return Group(global_process_set.ranks, ring())
