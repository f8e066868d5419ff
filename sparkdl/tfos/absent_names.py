"""Runs anywhere. Names of TensorFlowOnSpark that sparkdl does not have, and what replaces each."""

from collections.abc import Callable, Sequence
from typing import Any

from sparkdl.host import missing_names

__all__ = ["INSTEAD", "absent_names"]

_NODES = "TFCluster.run, and the methods of the cluster that it returns, do this for all nodes."
_SERVER = "Spark starts all nodes together, without a reservation server: use ctx.cluster_spec."

# What to write in place of a name of TensorFlowOnSpark 2.2.5, by module.
INSTEAD: dict[str, dict[str, str]] = {
    "TFSparkNode": dict.fromkeys(("TFSparkNode", "inference", "run", "shutdown", "train"), _NODES),
    "pipeline": {"get_meta_graph_def": "Use tf.saved_model.load(folder).signatures."},
    "reservation": dict.fromkeys(("MessageSocket", "Reservations"), _SERVER),
}


def absent_names(module: str, public: Sequence[str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module of `sparkdl.tfos`.

    Args:
        module: the name of the module.
        public: the names that the module has.

    Example:
        >>> absent_names("sparkdl.tfos", ["TFNode"])("TFNodes")
        Traceback (most recent call last):
        AttributeError: module 'sparkdl.tfos' has no 'TFNodes'. ... See docs/tensorflowonspark.md.
    """
    instead = INSTEAD.get(module.rpartition(".")[2])
    page = "docs/tensorflowonspark.md"
    return missing_names.absent_names(module, public, page=page, instead=instead)
