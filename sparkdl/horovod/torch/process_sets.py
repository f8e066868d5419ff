"""Runs in the training process. Horovod's start and process sets, for collectives by name."""

from collections.abc import Sequence
from typing import Any

from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.timed_links import process_recorder, start_recording, stop_recording
from sparkdl.distribute.world import ring
from sparkdl.horovod import process_sets as sets
from sparkdl.horovod import ranks
from sparkdl.horovod.name_order import order_of
from sparkdl.horovod.process_sets import ProcessSet, global_process_set

__all__ = ["add_process_set", "init", "start_timeline", "stop_timeline"]


def init(
    comm: Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Join the other ranks; block until all ranks have called `init`.

    Args:
        comm: must be None: the ranks are those of the gang.
        process_sets: sets of ranks, for collectives over a part of the ranks; "dynamic" for
            `add_process_set` later, which is always possible here.

    Raises:
        RuntimeError: after `shutdown`: the ranks meet once.

    Example:
        >>> import sparkdl.horovod.torch as hvd
        >>> hvd.init()
        >>> hvd.rank(), hvd.size()
        (0, 1)
    """
    ranks.init(comm, process_sets)
    world = ring()
    if isinstance(world, ElasticRing) and world.is_late:
        return  # It has no ring before `hvd.elastic.run`.
    # All ranks of a set must do so together; their first collectives may be of different sets.
    for number, members in sets.get_process_set_ids_and_ranks().items():
        if world.rank in members:
            process_set = ProcessSet(members) if number else global_process_set
            process_set.process_set_id = number
            order_of(process_set)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a set of ranks; all ranks must call it, also those outside the set.

    Args:
        process_set: the set, or its ranks.

    Raises:
        ValueError: if there is a set of these ranks already.

    Example:
        >>> import sparkdl.horovod.torch as hvd
        >>> hvd.init()
        >>> hvd.add_process_set([0])
        Traceback (most recent call last):
        ValueError: there is a process set of the ranks [0] already: ...
    """
    new_set = sets.add_process_set(process_set)
    if new_set.included():
        order_of(new_set)
    return new_set


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record the collectives of rank 0 into a file, as `HOROVOD_TIMELINE` does from the start.

    `experiment.horovod(..., timeline=True)` records all ranks and keeps the files with the run;
    this has no effect then.

    Args:
        file_path: a file on the host of rank 0, for https://ui.perfetto.dev.
        mark_cycles: has no effect: there are no cycles.

    Raises:
        RuntimeError: in an elastic run.

    Example:
        >>> import sparkdl.horovod.torch as hvd
        >>> hvd.init()
        >>> hvd.start_timeline("timeline.json")
        >>> hvd.stop_timeline()
    """
    if isinstance(ring(), ElasticRing):
        ranks.start_timeline(file_path, mark_cycles)  # Tells what to use.
    members = order_of(global_process_set).ring
    if members.rank == 0 and process_recorder() is None:
        stop_recording(members)
        start_recording(members, file_path)


def stop_timeline() -> None:
    """End the timeline that `start_timeline` has started."""
    stop_recording(order_of(global_process_set).ring)
