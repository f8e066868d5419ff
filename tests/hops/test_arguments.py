"""The order of arguments and the returned values of hops-util-py, without Spark."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.hops import experiment
from sparkdl.hops.results import values_of
from sparkdl.runs import Trial

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


def test_a_single_value_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Write \[3\] for a single value"):
        experiment.launch(lambda x: x, {"x": 3})  # type: ignore[dict-item]


def test_a_text_that_is_the_name_of_a_folder_stays(tmp_path: Path) -> None:
    for name in ("work", "tensorboard"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "plot.png").touch()
    returned = {"padding": "work", "kind": ".", "plot": "work/plot.png"}
    trial = Trial(number=0, params={}, path=str(tmp_path), outputs=returned, _shape="dict")
    values = values_of(trial)
    assert (values["padding"], values["kind"]) == ("work", ".")
    assert values["plot"].endswith(f"{tmp_path}/work/plot.png")


def test_values_have_the_names_that_the_function_returned(tmp_path: Path) -> None:
    named = Trial(number=0, params={}, path=str(tmp_path), outputs={"value": 3}, _shape="dict")
    assert values_of(named)["value"] == 3
    single = Trial(number=0, params={}, path=str(tmp_path), outputs={"loss": 3}, _shape="value")
    assert values_of(single)["metric"] == 3
