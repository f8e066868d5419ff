"""The order of arguments of hops-util-py, without Spark."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.hops import experiment

NAMED = ["name", "local_logdir", "description"]
SEARCH = [*NAMED, "optimization_key"]
GANG = ["train_fn", *NAMED, "evaluator", "metric_key"]


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        (experiment.launch, ["train_fn", "args_dict", *NAMED, "metric_key"]),
        (experiment.grid_search, ["train_fn", "grid_dict", "direction", *SEARCH]),
        (experiment.random_search, ["train_fn", "boundary_dict", "direction", "samples", *SEARCH]),
        (
            experiment.differential_evolution,
            [
                *("train_fn", "boundary_dict", "direction", "generations", "population"),
                *("mutation", "crossover", *SEARCH),
            ],
        ),
        (experiment.mirrored, GANG),
        (experiment.parameter_server, GANG),
    ],
)
def test_arguments_are_in_the_order_of_2_5(verb: Callable[..., Any], names: list[str]) -> None:
    parameters = [*inspect.signature(verb).parameters]
    assert parameters[: len(names)] == names
    assert parameters[len(names)] == "versioned_resources"


def test_arguments_in_the_order_of_1_0_are_refused() -> None:
    with pytest.raises(ConfigError, match="by name"):
        experiment.launch(lambda: 1, None, "mine", False, ["Resources/a.csv"], "a description")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"\['Resources/a.csv'\]"):
        experiment.launch(lambda: 1, versioned_resources="Resources/a.csv")
