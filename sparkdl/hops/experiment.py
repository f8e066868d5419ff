"""Runs on the driver. Run a training function, under the names of hops-util-py.

Each function returns the path of its results and what the training function returned, see
`sparkdl.hops.results`. The run itself is `sparkdl.experiment.load(path)`.
"""

from collections.abc import Sequence
from pathlib import Path

from sparkdl.files.resources import distinct_names
from sparkdl.hops.absent_names import absent_names
from sparkdl.hops.arguments import NO_NAME, Direction, verb
from sparkdl.hops.distributed import (
    collective_all_reduce,
    mirrored,
    multi_worker_mirrored,
    parameter_server,
)
from sparkdl.hops.open_experiment import OpenExperiment, state
from sparkdl.hops.project import root
from sparkdl.hops.resources import local_resources
from sparkdl.hops.trials import differential_evolution, grid_search, launch, random_search

__all__ = [
    "Direction",
    "begin",
    "collective_all_reduce",
    "differential_evolution",
    "end",
    "grid_search",
    "launch",
    "mirrored",
    "multi_worker_mirrored",
    "parameter_server",
    "random_search",
]

__getattr__ = absent_names(__name__, __all__)


@verb()
def begin(
    name: str = NO_NAME,
    local_logdir: bool = False,
    versioned_resources: Sequence[str] | None = None,
    description: str | None = None,
) -> str:
    """Begin an experiment that this program runs itself, without Spark, until `end`.

    Args:
        name, local_logdir, versioned_resources, description: see `launch`.

    Returns:
        The run directory.

    Raises:
        RuntimeError: if an experiment has begun already.

    Example:
        >>> path = begin(name="sum")
        >>> end(sum([1, 2]))
        >>> from sparkdl import experiment
        >>> experiment.load(path).trials[0].value
        3.0
    """
    paths = local_resources(versioned_resources)
    names = distinct_names(str(path.absolute()) for path in paths)
    resources = {name: Path(path) for name, path in names.items()}
    state.experiment = OpenExperiment.begin(root(), name, description, resources)
    return state.experiment.opened.run.path


def end(metric: float | None = None) -> None:
    """End the experiment that `begin` has begun.

    Args:
        metric: the metric of the experiment.

    Raises:
        RuntimeError: if no experiment has begun.
        TypeError, ValueError: if the metric is no number. The experiment goes on.
    """
    if state.experiment is None:
        raise RuntimeError("no experiment is running: experiment.end follows experiment.begin.")
    value = None if metric is None else float(metric)
    experiment = state.experiment
    state.experiment = None
    experiment.end(value)
