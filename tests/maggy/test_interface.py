"""The names, arguments and defaults of maggy 0.5.3, 1.0 and 1.1.2, and the names not there.

The data were read from the sources of these versions.
"""

import importlib
import inspect
from typing import Any

import pytest

from sparkdl.errors import ConfigError

REQUIRED = inspect.Parameter.empty
ES = {"es_interval": 1, "es_min": 10, "es_policy": "median"}
OPTIMIZATION = {
    **dict.fromkeys(("num_trials", "optimizer", "searchspace"), REQUIRED),
    "optimization_key": "metric",
    "direction": "max",
    **ES,
    "name": "HPOptimization",
    "description": "",
    "hb_interval": 1,
}
LAGOM = {
    "name": "no-name",
    "experiment_type": "optimization",
    "searchspace": None,
    "optimizer": None,
    "direction": "max",
    "num_trials": 1,
    "ablation_study": None,
    "ablator": None,
    "optimization_key": "metric",
    "hb_interval": 1,
    **ES,
    "description": "",
}
MODEL = {"model": None, "dataset": None}
STUDY = ("training_dataset_name", "training_dataset_version", "label_name", "kwargs")
GP = {
    "async_strategy": "impute",
    "impute_strategy": "cl_min",
    "acq_fun": None,
    "acq_fun_kwargs": None,
    "acq_optimizer": "lbfgs",
    "acq_optimizer_kwargs": None,
}
ABLATION = {
    "ablation_study": REQUIRED,
    "ablator": "loco",
    "direction": "max",
    "name": "ablationStudy",
    "description": "",
    "hb_interval": 1,
    **MODEL,
}
TRANSFORM = {"normalize_categorical": False}
TPE = {"gamma": 0.15, "n_samples": 24, "bw_estimation": "normal_reference", "bw_factor": 3}
INTERFACE: dict[str, dict[str, Any]] = {
    "experiment lagom": {"train_fn": None, "config": None, **LAGOM},
    "Searchspace": {"kwargs": REQUIRED},
    "Searchspace add": {"name": REQUIRED, "value": REQUIRED},
    "Searchspace get": {"name": REQUIRED, "default": None},
    "Searchspace get_random_parameter_values": {"num": REQUIRED},
    "Searchspace transform": {"hparams": REQUIRED, **TRANSFORM},
    "Searchspace inverse_transform": {"transformed_hparams": REQUIRED, **TRANSFORM},
    "Searchspace list_to_dict": {"hparams": REQUIRED},
    **{f"Searchspace {name}": {} for name in "to_dict names items keys values json".split()},
    "AblationStudy": dict.fromkeys(STUDY, REQUIRED),
    "AblationStudy set_dataset_generator": {"dataset_generator": REQUIRED},
    "ablation.ablationstudy Features include": {"args": REQUIRED},
    "ablation.ablationstudy Features exclude": {"args": REQUIRED},
    "ablation.ablationstudy Features list_all": {},
    "ablation.ablationstudy Layers include": {"args": REQUIRED},
    "ablation.ablationstudy Layers exclude": {"args": REQUIRED},
    "ablation.ablationstudy Layers include_groups": {"args": REQUIRED, "prefix": None},
    "ablation.ablationstudy Layers exclude_groups": {"args": REQUIRED, "prefix": None},
    "ablation.ablationstudy Layers print_all": {},
    "ablation.ablationstudy Layers print_all_groups": {},
    "ablation.ablationstudy Model set_base_model_generator": {"base_model_generator": REQUIRED},
    "ablation.ablationstudy Model add_custom_model_generator": {
        "custom_model_generator": REQUIRED,
        "model_identifier": REQUIRED,
    },
    "config BaseConfig": {"name": "base", "hb_interval": 1, "description": ""},
    "config AblationConfig": ABLATION,
    "config HyperparameterOptConfig": {**OPTIMIZATION, "optimization_key": "Metric", **MODEL},
    "experiment_config OptimizationConfig": OPTIMIZATION,
    "core.reporter Reporter broadcast": {"metric": REQUIRED, "step": None},
    "core.reporter Reporter log": {"log_msg": REQUIRED, "jupyter": False},
    "core.reporter Reporter get_data": {},
    "core.reporter Reporter get_trial_id": {},
    "optimizer Asha": {"reduction_factor": 2, "resource_min": 1, "resource_max": 4},
    "optimizer.bayes TPE": {**TPE, "kwargs": REQUIRED},
    "optimizer.bayes GP": {**GP, "kwargs": REQUIRED},
    "optimizer AbstractOptimizer": {"pruner": None, "pruner_kwargs": None},
    "tensorboard logdir": {},
}


@pytest.mark.parametrize("path", INTERFACE)
def test_arguments_and_defaults_are_those_of_maggy(path: str) -> None:
    first, *names = path.split()
    is_module = first[0].islower()
    found: Any = importlib.import_module(f"sparkdl.maggy{'.' + first if is_module else ''}")
    for name in names if is_module else (first, *names):
        found = getattr(found, name)
    ours = {p.name: p.default for p in inspect.signature(found).parameters.values()}
    ours.pop("self", None)
    ours.pop("map_fun", None)
    assert ours == INTERFACE[path]


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("from sparkdl.maggy.config import TorchDistributedConfig", "framework='torch'"),
        (
            "from sparkdl.maggy.experiment_config.tf_distributed import TfDistributedConfig",
            "distribute.strategy",
        ),
        ("from sparkdl.maggy.optimizer.bayes import BaseAsyncBO", "algorithm="),
        ("from sparkdl.maggy.earlystop import AbstractEarlyStop", "pruner="),
        ("from sparkdl.maggy.ablation.ablator import AbstractAblator", "experiment.launch"),
        ("from sparkdl.maggy import Trial", "experiment.load"),
    ],
)
def test_a_name_that_is_not_there_says_what_to_write(line: str, instead: str) -> None:
    with pytest.raises(ImportError, match=instead):
        exec(line, {})  # noqa: S102 The line of a program.


def test_an_unknown_name_is_no_attribute() -> None:
    from sparkdl import maggy

    assert not hasattr(maggy, "optimiser")
    assert "experiment" in dir(maggy)


def test_own_optimizers_and_pruners_are_refused() -> None:
    from sparkdl.maggy.optimizer import AbstractOptimizer, RandomSearch
    from sparkdl.maggy.optimizer.bayes import GP, TPE
    from sparkdl.maggy.searchspace import Searchspace

    class Own(AbstractOptimizer):
        pass

    with pytest.raises(ConfigError, match="a sampler of Optuna"):
        Own().search(Searchspace(), 3)
    with pytest.raises(ConfigError, match="pruner is 'hyperband'"):
        RandomSearch(pruner="hyperband", pruner_kwargs={"eta": 3})
    with pytest.warns(UserWarning, match="gamma, num_warmup_trials of TPE has no effect"):
        TPE(gamma=0.3, num_warmup_trials=5)
    with pytest.raises(TypeError, match="unexpected argument 'kernel'"):
        GP(kernel="rbf")
