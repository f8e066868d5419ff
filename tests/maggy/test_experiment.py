"""maggy's experiments on embedded Spark: arguments, what trials get, and results."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment as verbs
from sparkdl.errors import AllTrialsFailedError, ConfigError, FunctionError
from sparkdl.maggy import AblationStudy, Searchspace, experiment
from sparkdl.maggy.config import AblationConfig, HyperparameterOptConfig
from sparkdl.maggy.earlystop import NoStoppingRule
from sparkdl.maggy.experiment_config import OptimizationConfig
from sparkdl.maggy.optimizer import Asha, RandomSearch
from sparkdl.maggy.optimizer.bayes import TPE
from sparkdl.runs.states import TrialState

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

KERNEL = {"kernel": ("INTEGER", [2, 8])}
PAIR = {"kernel": ("DISCRETE", [2, 4]), "name": ("CATEGORICAL", ["a", "b"])}


@pytest.fixture(autouse=True)
def project(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    return root


def test_a_search_with_keywords() -> None:
    def train(kernel: int, dropout: float, reporter: Any) -> float:
        from sparkdl.maggy import tensorboard

        Path(tensorboard.logdir(), "note.txt").write_text("a note")
        reporter.broadcast(kernel, 0)
        reporter.broadcast(metric=kernel + dropout)
        reporter.log(f"trial {reporter.get_trial_id()} reported")
        return kernel + dropout

    space = Searchspace(dropout=("DOUBLE", [0, 0.5]), **KERNEL)
    result = experiment.lagom(
        train,
        searchspace=space,
        optimizer="RandomSearch",
        direction="MIN",
        num_trials=3,
        name="MNIST",
        hb_interval=1,
        es_interval=1,
        es_min=5,
        description="three trials",
    )
    run = verbs.load(result["path"])
    values = [trial.value or 0.0 for trial in run.trials]
    assert sorted(result["metric_list"]) == sorted(values)
    assert (result["best_val"], result["worst_val"]) == (min(values), max(values))
    assert result["avg"] == pytest.approx(sum(values) / 3)
    assert (result["num_trials"], result["early_stopped"]) == (3, 0)
    best = run.trials[int(result["best_id"])]
    assert result["best_config"] == result["best_hp"] == best.params
    assert best.params.keys() == {"kernel", "dropout"}
    assert best.reported_steps() == [(0, best.params["kernel"]), (1, best.value)]
    assert Path(best.path, "tensorboard", "note.txt").read_text() == "a note"
    assert f"trial {best.number} reported" in Path(best.path, "log.txt").read_text()
    assert (run.name, run.direction, run.metric) == ("MNIST", "min", "metric")


def test_a_grid_with_the_names_of_older_versions() -> None:
    def train(kernel: int, name: str) -> dict[str, Any]:
        return {"accuracy": kernel + len(name), "name": name}

    result = experiment.lagom(
        map_fun=train,
        searchspace=Searchspace(**PAIR),
        optimizer="gridsearch",
        num_trials=1,
        optimization_key="accuracy",
    )
    assert result["num_trials"] == 4
    assert result["best_val"] == 5
    run = verbs.load(result["path"])
    assert (run.name, run.trials[0].outputs["name"]) == ("train", run.trials[0].params["name"])


def test_a_config_of_1_1_passes_a_dict_a_model_and_a_dataset() -> None:
    class Net:
        size = 10

    def train(model: type[Net], dataset: list[int], hparams: dict[str, int], reporter: Any) -> Any:
        value = hparams["kernel"] + model.size + sum(dataset)
        reporter.broadcast(value)
        return [value, "beside"]

    config = HyperparameterOptConfig(
        num_trials=2,
        optimizer=RandomSearch(),
        searchspace=Searchspace(**KERNEL),
        es_policy=NoStoppingRule(),
        model=Net,
        dataset=[100, 200],
    )
    result = experiment.lagom(train_fn=train, config=config)
    assert result["best_val"] == 310 + result["best_config"]["kernel"]
    assert verbs.load(result["path"]).metric == "Metric"


def test_a_config_of_1_0_passes_hyperparameters_by_name() -> None:
    config = OptimizationConfig(2, "tpe", Searchspace(**KERNEL), name="hp_tuning_test")
    result = experiment.lagom(lambda kernel: kernel, config)
    assert result["best_val"] == result["best_config"]["kernel"]
    assert verbs.load(result["path"]).name == "hp_tuning_test"


def test_trials_without_hyperparameters() -> None:
    assert (
        experiment.lagom(lambda: {"metric": 0.5}, "none", num_trials=3)["metric_list"] == [0.5] * 3
    )
    result = experiment.lagom(train_fn=lambda reporter: reporter.step)
    assert result["test result"] == -1


def test_asha_gives_the_best_trials_a_larger_budget() -> None:
    def train(kernel: int, budget: int) -> float:
        return kernel + budget / 10

    space = Searchspace(kernel=("DOUBLE", [0, 100]))
    for direction, worst in (("max", min), ("min", max)):
        result = experiment.lagom(
            train,
            searchspace=space,
            optimizer=Asha(2, 1, 4),
            num_trials=8,
            direction=direction,
            es_policy="none",
        )
        rows = [trial.params for trial in verbs.load(result["path"]).trials]
        rungs = {b: [r["kernel"] for r in rows if r["budget"] == b] for b in (1, 2, 4)}
        assert {*map(len, rungs.values())} <= {*range(1, 9)}
        assert len(rungs[4]) == 1
        assert set(rungs[4]) < set(rungs[2]) < set(rungs[1])
        # The best of the two or more that had ended by then.
        assert rungs[4][0] != worst(rungs[2])


def test_a_trial_that_is_stopped_early_is_no_failure(tmp_path: Path) -> None:
    def train(level: int, reporter: Any) -> float:
        for _ in range(1000 if level else 3):
            try:
                reporter.broadcast(1.0 - level)
            except Exception:
                Path(folder, "caught").touch()
            if level:
                time.sleep(0.1)
        return 1.0 - level

    folder = str(tmp_path)
    space = Searchspace(level=("DISCRETE", [0, 1]))
    result = experiment.lagom(
        train, searchspace=space, optimizer="gridsearch", es_min=1, es_interval=1
    )
    run = verbs.load(result["path"])
    assert [trial.state for trial in run.trials] == [TrialState.COMPLETE, TrialState.PRUNED]
    assert Path(folder, "caught").exists()
    assert (result["best_val"], result["early_stopped"], result["num_trials"]) == (1.0, 1, 2)
    assert result["worst_val"] == 0.0


def generate(units: int, ablated_feature: str | None = None) -> list[str]:
    return [name for name in ("age", "fare") if name != ablated_feature] * units


def test_an_ablation_study_leaves_out_features_and_custom_models() -> None:
    study = AblationStudy("titanic", 1, label_name="survived", dataset_generator=generate)
    study.features.include("fare", ["age"])
    study.model.set_base_model_generator(lambda: ["whole"])
    study.model.add_custom_model_generator(lambda: ["small"], "a small one")

    def train(dataset_function: Callable[..., Any], model_function: Callable[[], Any]) -> float:
        print("rows", dataset_function(2), "model", model_function())
        return len(set(dataset_function(1)))

    result = experiment.lagom(
        train, experiment_type="ablation", ablation_study=study, ablator="loco", name="LOCO"
    )
    run = verbs.load(result["path"])
    logs = [Path(trial.path, "log.txt").read_text() for trial in run.trials]
    assert [trial.params for trial in run.trials] == [
        {"ablated_feature": "None", "ablated_layer": "None"},
        {"ablated_feature": "age", "ablated_layer": "None"},
        {"ablated_feature": "fare", "ablated_layer": "None"},
        {"ablated_feature": "None", "ablated_layer": "Custom model: a small one"},
    ]
    assert "rows ['age', 'fare', 'age', 'fare'] model ['whole']" in logs[0]
    assert "rows ['fare', 'fare'] model ['whole']" in logs[1]
    assert "rows ['age', 'age'] model ['whole']" in logs[2]
    assert "rows ['age', 'fare', 'age', 'fare'] model ['small']" in logs[3]
    assert result["metric_list"] == [2, 1, 1, 2]
    assert (result["worst_val"], result["early_stopped"], run.name) == (1, "n.a", "LOCO")


def test_a_result_that_is_no_number() -> None:
    space = Searchspace(**KERNEL)
    with pytest.raises(AllTrialsFailedError, match=r"returned 'high', a str. Return a number"):
        experiment.lagom(lambda kernel: "high", searchspace=space, optimizer="randomsearch")
    with pytest.raises(AllTrialsFailedError, match="returned loss, without the optimization key"):
        experiment.lagom(lambda kernel: {"loss": 1}, searchspace=space, optimizer="randomsearch")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "bohb"}, "optimizer is 'bohb'; expected one of randomsearch"),
        ({"optimizer": None}, "optimizer is 'none', and the search space has kernel"),
        ({"searchspace": {"kernel": [2, 8]}}, "searchspace is .*, a dict; expected a Searchspace"),
        ({"direction": "up"}, "direction is 'up'; expected max or min"),
        ({"es_policy": "mean"}, "es_policy is 'mean'; expected median or none"),
        ({"num_trials": 0}, "num_trials is 0; expected a number above zero"),
        ({"experiment_type": "study"}, "experiment_type is 'study'"),
        ({"experiment_type": "ablation"}, "lagom got optimizer, searchspace with .*'ablation'"),
        ({"ablator": "loco"}, "lagom got ablator with experiment_type='optimization'"),
        ({"optimizer": "asha"}, "num_trials is 1; expected at least 4"),
    ],
)
def test_an_argument_that_is_invalid(arguments: dict[str, Any], message: str) -> None:
    given = {"searchspace": Searchspace(**KERNEL), "optimizer": "randomsearch", **arguments}
    with pytest.raises(ConfigError, match=message):
        experiment.lagom(lambda kernel: kernel, **given)


def test_a_call_that_is_invalid() -> None:
    space = Searchspace(**KERNEL)
    with pytest.raises(FunctionError, match=r"contains 'kernel', which train.. does not take"):

        def train() -> float:
            return 0.5

        experiment.lagom(train, searchspace=space, optimizer="randomsearch")
    with pytest.raises(FunctionError, match="needs 'size', which searchspace does not contain"):
        config = HyperparameterOptConfig(1, "randomsearch", space)
        experiment.lagom(lambda size: size, config)
    with pytest.raises(ConfigError, match="lagom got a config and num_trials"):
        experiment.lagom(train, OptimizationConfig(1, "tpe", space), num_trials=3)
    with pytest.raises(ConfigError, match="config is 3, an int"):
        experiment.lagom(train, 3)  # type: ignore[arg-type]
    with pytest.raises(FunctionError, match="train is None, a NoneType; expected a function"):
        experiment.lagom()
    with pytest.raises(ConfigError, match="pruner is 'hyperband'"):
        TPE(pruner="hyperband", pruner_kwargs={"eta": 3})
    with pytest.raises(ConfigError, match="None; expected an AblationStudy"):
        experiment.lagom(train, experiment_type="ablation")
    study = AblationStudy("titanic", 1, "survived", dataset_generator=generate)
    for _ in range(2):
        study.model.add_custom_model_generator(lambda: ["small"], "small")
    with pytest.raises(ConfigError, match=r"two trials .* are named .*'Custom model: small'"):
        experiment.lagom(train, AblationConfig(study))
    with pytest.raises(ConfigError, match=r"no feature store. Pass AblationStudy"):
        experiment.lagom(train, AblationConfig(AblationStudy("titanic", 1, "survived")))
