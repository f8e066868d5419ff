"""Runs in the training process. Horovod's start and end, and the rank and size of this process."""

import functools
import os
from collections.abc import Sequence
from typing import Any

from sparkdl import context
from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.timed_links import process_recorder, start_recording, stop_recording
from sparkdl.distribute.world import is_joined, ring
from sparkdl.horovod.process_sets import (
    ProcessSet,
    close_process_sets,
    init_process_sets,
)
from sparkdl.horovod.settings import explain_settings

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


_LEFT = (
    "hvd.shutdown was called in this process, which has left the ring for good: the ranks meet "
    "once. Call hvd.shutdown at the end of the training function, or not at all."
)


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
        >>> import sparkdl.horovod as hvd
        >>> hvd.init()
        >>> hvd.rank(), hvd.size()
        (0, 1)
    """
    if comm is not None:
        raise ValueError(f"comm is {comm!r}; expected None: the ranks are those of the gang.")
    if _shutdown_marks(os.getpid()) and not ring().is_alone:
        raise RuntimeError(_LEFT)
    ring()
    _shutdown_marks(os.getpid()).clear()
    if rank() == 0:
        explain_settings(os.environ)
    path = os.environ.get("HOROVOD_TIMELINE") or "DYNAMIC"
    if path != "DYNAMIC" and not isinstance(ring(), ElasticRing):
        start_timeline(path)
    if not isinstance(process_sets, str):
        init_process_sets(process_sets)


def shutdown() -> None:
    """Leave the ring, and those of all process sets; a rank that still communicates fails.

    The ranks cannot meet again in this process.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.init()
        >>> hvd.shutdown()
        >>> hvd.is_initialized()
        False
    """
    if is_initialized():
        close_process_sets()
        world = ring()
        world.close()
        if not world.is_alone:
            world.broken = RuntimeError(_LEFT)
        _shutdown_marks(os.getpid()).append(True)


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
        >>> import sparkdl.horovod as hvd
        >>> hvd.init()
        >>> hvd.start_timeline("timeline.json")
        >>> hvd.stop_timeline()
    """
    if isinstance(ring(), ElasticRing):
        raise RuntimeError(
            f"start_timeline got {file_path!r} in an elastic run, whose ring changes. Use "
            "experiment.horovod(..., timeline=True)."
        )
    if rank() == 0 and process_recorder() is None:
        stop_recording(ring())
        start_recording(ring(), file_path)


def stop_timeline() -> None:
    """End the timeline that `start_timeline` has started."""
    stop_recording(ring())


def is_initialized() -> bool:
    """Return True if this process has joined the other ranks, and has not called `shutdown`."""
    return is_joined() and not _shutdown_marks(os.getpid())


def rank() -> int:
    """Return the rank of this process, from 0; in an elastic gang, among the ranks present."""
    return ring().rank if is_initialized() else context.current().rank


def size() -> int:
    """Return the number of processes that train together, see `rank`."""
    return ring().size if is_initialized() else context.current().world_size


def local_rank() -> int:
    """Return the rank of this process among the processes of its host, from 0.

    It is 0 in a process that has GPUs of its own and sees no others, as if each rank had a host to
    itself: `gpus[hvd.local_rank()]` is one of them.
    """
    return 0 if context.current().owns_gpus else context.current().local_rank


def local_size() -> int:
    """Return the number of processes that train on this host, see `local_rank`."""
    return 1 if context.current().owns_gpus else context.current().local_world_size


def cross_rank() -> int:
    """Return the index of this host among the hosts that have a process with this local rank.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.init()
        >>> hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()
        (0, 1, True)
    """
    return _hosts().index(_nodes()[ring().rank])


def cross_size() -> int:
    """Return the number of hosts that have a process with this local rank."""
    return len(_hosts())


def is_homogeneous() -> bool:
    """Return True if all hosts have the same number of processes."""
    nodes = _nodes()
    return len({nodes.count(node) for node in nodes}) == 1


def gloo_built() -> bool:
    """Return True: as Horovod with Gloo, the ring needs no MPI, and has all collectives on CPUs."""
    return True


def gloo_enabled() -> bool:
    """Return True, see `gloo_built`."""
    return True


def mpi_built() -> bool:
    """Return False: nothing of this is built on MPI, NCCL for Horovod, oneCCL, DDL or ROCm."""
    return False


mpi_enabled = mpi_threads_supported = nccl_built = ccl_built = mpi_built
ddl_built = cuda_built = rocm_built = mpi_built


def _hosts() -> list[str]:
    """Return the hosts that have a process with this local rank, in the order of their ranks."""
    nodes, own_rank = _nodes(), ring().rank
    own_local_rank = nodes[:own_rank].count(nodes[own_rank])
    return [node for node in dict.fromkeys(nodes) if nodes.count(node) > own_local_rank]


def _nodes() -> list[str]:
    """Return the host of each rank, see `local_rank`."""
    if context.current().owns_gpus:
        return [str(rank) for rank in range(ring().size)]
    return list(ring().nodes)


# Process-wide state: not empty after `shutdown`, see `world._ring_of`.
@functools.lru_cache(maxsize=1)
def _shutdown_marks(pid: int) -> list[bool]:
    return []
