"""Runs in the training process. Explain the settings of Horovod that have no effect here."""

import logging
from collections.abc import Mapping

__all__ = ["explain_settings"]

_BUCKETS = "gradients are averaged in buckets while the backward pass computes them"
_STALLS = "SPARKDL_COLLECTIVE_TIMEOUT_S is the time after which a rank that waits warns"
_MEANING = {
    "HOROVOD_FUSION_THRESHOLD": _BUCKETS,
    "HOROVOD_CYCLE_TIME": _BUCKETS,
    "HOROVOD_BATCH_D2D_MEMCOPIES": _BUCKETS,
    "HOROVOD_DISABLE_GROUP_FUSION": _BUCKETS,
    "HOROVOD_CACHE_CAPACITY": "all ranks call collectives in one order, and none is negotiated",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "one ring joins all ranks, those of a host side by side",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "one ring joins all ranks, those of a host side by side",
    "HOROVOD_AUTOTUNE": "there is nothing to tune",
    "HOROVOD_AUTOTUNE_LOG": "there is nothing to tune",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": _STALLS,
    "HOROVOD_STALL_CHECK_DISABLE": _STALLS,
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "a rank that shows no life ends the run by itself",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "SPARKDL_START_TIMEOUT_S is the time for the ranks to meet",
    "HOROVOD_THREAD_AFFINITY": "collectives have no thread of their own",
    "HOROVOD_TIMELINE_MARK_CYCLES": "there are no cycles",
    "HOROVOD_CPU_OPERATIONS": "the ring is the only one",
    "HOROVOD_CONTROLLER": "Spark starts the ranks",
}

_logger = logging.getLogger("sparkdl.horovod")


def explain_settings(environ: Mapping[str, str]) -> None:
    """Log a sentence for each setting of Horovod that is set and has no effect.

    Args:
        environ: the environment variables of a rank.

    Example:
        >>> explain_settings({"HOROVOD_CYCLE_TIME": "5"})  # Logs a sentence.
    """
    for name, why in _MEANING.items():
        if name in environ:
            _logger.info("%s=%s has no effect: %s.", name, environ[name], why)
