"""Runs on the driver. Run a training function several times, under the names of hops-util-py."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl import experiment
from sparkdl.errors import ConfigError
from sparkdl.hops.arguments import NO_NAME, Direction, options_of, verb
from sparkdl.hops.evolution import Evolution, check_bounds, dimensions_of
from sparkdl.hops.generations import Generations
from sparkdl.hops.results import BestResult, Result, best_of, result_of

__all__ = ["differential_evolution", "grid_search", "launch", "random_search"]


@verb(map_fun="train_fn")
def launch(
    train_fn: Callable[..., Any],
    args_dict: Mapping[str, Sequence[Any]] | None = None,
    name: str = NO_NAME,
    local_logdir: bool = False,
    description: str | None = None,
    metric_key: str | None = None,
    versioned_resources: Sequence[str] | None = None,
) -> Result:
    """Run a training function once, or once for each position in the lists of arguments.

    Args:
        train_fn: the training function.
        args_dict: a list for each parameter, all of the same length: the first values are used
            together, the second values together, and so on.
        name: the name of the run; by default that of the function.
        local_logdir: has no effect, see `tensorboard.logdir`.
        versioned_resources: files of the project, and local files, to copy into the run directory.
        description: a sentence about the run.
        metric_key: the name of the returned number that is the metric of the run.

    Returns:
        The run directory; and for a single execution the values that the function returned,
        otherwise None.

    Raises:
        sparkdl.errors.SparkDLError: see `sparkdl.experiment.launch`.

    Example:
        >>> path, values = launch(lambda a, b: a + b, {"a": [1], "b": [5]}) # doctest: +ELLIPSIS
        Run ...
        >>> values["metric"]
        6
    """
    options = options_of(name, versioned_resources, description, metric_key)
    return result_of(experiment.launch(train_fn, args_dict or None, combine="zip", **options))


@verb(map_fun="train_fn", args_dict="grid_dict")
def grid_search(
    train_fn: Callable[..., Any],
    grid_dict: Mapping[str, Sequence[Any]],
    direction: str = Direction.MAX,
    name: str = NO_NAME,
    local_logdir: bool = False,
    description: str | None = None,
    optimization_key: str | None = "metric",
    versioned_resources: Sequence[str] | None = None,
) -> BestResult:
    """Run a training function with every combination of parameters.

    Args:
        train_fn: the training function; it returns a number, or a dict with `optimization_key`.
        grid_dict: a list of values for each parameter.
        direction: `Direction.MAX` or `Direction.MIN`; `max` and `min` are accepted too.
        name, local_logdir, versioned_resources, description: see `launch`.
        optimization_key: the name of the returned number to optimize.

    Returns:
        The folder of the best trial, its parameters, and the values that it returned.

    Raises:
        sparkdl.errors.SparkDLError: see `sparkdl.experiment.launch`.
    """
    options = options_of(name, versioned_resources, description, optimization_key, direction)
    return best_of(experiment.launch(train_fn, grid_dict, **options))


@verb(map_fun="train_fn")
def random_search(
    train_fn: Callable[..., Any],
    boundary_dict: Mapping[str, Sequence[Any]],
    direction: str = Direction.MAX,
    samples: int = 10,
    name: str = NO_NAME,
    local_logdir: bool = False,
    description: str | None = None,
    optimization_key: str | None = "metric",
    versioned_resources: Sequence[str] | None = None,
) -> BestResult:
    """Run a training function with random parameters. Equal combinations run once.

    Args:
        train_fn, direction, name, local_logdir: see `grid_search`.
        boundary_dict: the lower and the upper bound of each parameter: two whole numbers for whole
            numbers including both bounds, otherwise numbers between the bounds.
        samples: number of combinations.
        versioned_resources, description, optimization_key: see `grid_search`.

    Returns:
        The folder of the best trial, its parameters, and the values that it returned.

    Raises:
        ConfigError: if the bounds of a parameter are no numbers, or in the wrong order.
        sparkdl.errors.SparkDLError: see `sparkdl.experiment.launch`.
    """
    options = options_of(name, versioned_resources, description, optimization_key, direction)
    check_bounds(boundary_dict)
    rows = [
        {key: _random_number(key, *bounds) for key, bounds in boundary_dict.items()}
        for _ in range(samples)
    ]
    unique = [row for number, row in enumerate(rows) if row not in rows[:number]]
    columns = {key: [row[key] for row in unique] for key in boundary_dict}
    return best_of(experiment.launch(train_fn, columns, combine="zip", **options))


def _random_number(name: str, low: Any, high: Any) -> float:
    types = {type(low), type(high)}
    if not types <= {int, float} or not low < high:
        raise ConfigError(
            f"boundary_dict[{name!r}] is {[low, high]!r}; expected two numbers, of which the first "
            "is smaller. For categories call grid_search or differential_evolution."
        )
    return random.randint(low, high) if types == {int} else random.uniform(low, high)


@verb(map_fun="train_fn", objective_function="train_fn")
def differential_evolution(
    train_fn: Callable[..., Any],
    boundary_dict: Mapping[str, Sequence[Any]],
    direction: str = Direction.MAX,
    generations: int = 4,
    population: int = 6,
    mutation: float = 0.5,
    crossover: float = 0.7,
    name: str = NO_NAME,
    local_logdir: bool = False,
    description: str | None = None,
    optimization_key: str | None = "metric",
    versioned_resources: Sequence[str] | None = None,
    cleanup_generations: bool = False,
) -> BestResult:
    """Improve a population of parameter combinations from generation to generation.

    All generations are one run, of at most `population * (generations + 1)` trials: a combination
    that was tried before does not run again.

    Args:
        train_fn, direction, name, local_logdir: see `grid_search`.
        boundary_dict: two bounds for each parameter: two whole numbers for whole numbers, two
            numbers for numbers; any other two values are categories.
        generations: number of generations after the first population, at least 2.
        population: number of combinations in a generation, at least 4.
        mutation: factor of the difference of two combinations that is added to a third one.
        crossover: probability with which a new combination takes a parameter from that sum.
        versioned_resources, description, optimization_key: see `grid_search`.
        cleanup_generations: has no effect; all trials are kept.

    Returns:
        The folder of the best trial, its parameters, and the values that it returned.

    Raises:
        ConfigError: if an argument is invalid.
        sparkdl.errors.SparkDLError: see `sparkdl.experiment.search`.
    """
    options = options_of(name, versioned_resources, description, optimization_key, direction)
    if generations < 2:
        raise ConfigError(f"generations is {generations!r}; expected at least 2.")
    dimensions = dimensions_of(boundary_dict)
    is_max = options["direction"] == "max"
    evolution = Evolution(dimensions, population, mutation, crossover, is_max)
    search = Generations(train_fn, dimensions, options)
    for number, scores in enumerate(evolution.run(generations, search.scores), start=1):
        finite = [score for score in scores if abs(score) < float("inf")]
        if finite:
            best = search.run.best
            print(
                f"Generation {number}: average metric {sum(finite) / len(finite):g}, best metric "
                f"{best.value:g}, best parameters {best.params}"
            )
    return best_of(search.run)
