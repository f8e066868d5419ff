"""Options and settings: an error names the invalid value and the valid ones."""

import inspect
from typing import Any

import numpy as np
import pytest

from sparkdl import config, experiment
from sparkdl.errors import ConfigError
from sparkdl.options import Options, check_count, check_direction


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_jobs": 2}, "Did you mean 'parallelism'"),
        ({"timeout": 2}, "Did you mean 'timeout_s'"),
        ({"seeds": 2}, "Did you mean 'seed'"),
        ({"seed": -1}, "at least 0"),
        ({"parallelism": True}, "whole number"),
        ({"timeout_s": 0}, "above 0"),
        ({"timeout_s": "5"}, "above 0"),
        ({"trial_timeout_s": -1}, "trial_timeout_s is -1; .* above 0"),
        ({"framework": "tf"}, "'tensorflow', 'torch' or 'jax'"),
        ({"trial_value": "first"}, "'last' or 'best'"),
        ({"logs": "some"}, "'all', 'best' or 'none'"),
        ({"env": {"A": 1}}, r"env\['A'\] is an int"),
        ({"env": {1: "A"}}, r"env\[1\] is a str; expected names"),
        ({"metric": ["a"]}, "the name of one number"),
        ({"metric": "rmse"}, "'rmse' looks like a value to minimize"),
        ({"direction": "best"}, "'max' or 'min'"),
        ({"keep_checkpoints": "best"}, "'best'; expected 'best\\+last'"),
        ({"keep_checkpoints": 0}, "at least 1"),
        ({"keep_checkpoints": True}, "at least 1"),
        ({"max_to_keep": 3}, "Did you mean 'keep_checkpoints'"),
    ],
)
def test_options_refuse_invalid_names_and_values(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options.parse(given)


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("max_failed_trials", [0, 5], [-1, 0.5]),
        ("max_restarts", [0, 5], [-1, "1"]),
        ("max_losses", [0, 5], [-1, True]),
        ("seed", [0, 2**40], [-1, 1.0]),
        ("parallelism", [1, 8], [0]),
        ("num_cpus", [1, 8], [0]),
        ("fail_fast_identical", [1, 8], [0]),
        ("num_gpus", [0, 1, 4, 0.25, 1e-3], [-1, 0.0, 1.0, 1.5, -0.5, True, "1"]),
        ("timeout_s", [1e-3, 60], [0, -1.0, "1"]),
        ("framework", ["tensorflow", "torch", "jax"], ["keras", ""]),
        ("trial_value", ["last", "best"], ["first", None]),
        ("logs", ["all", "best", "none"], ["some", True]),
        ("keep_checkpoints", ["best+last", "last", "all", 1, 8], ["best", 0, -1, 1.0, None]),
        ("secrets", [["four"], ("long enough",)], [["abc"], "four", [b"four"]]),
    ],
)
def test_options_accept_what_they_document_and_nothing_else(
    name: str, valid: list[Any], invalid: list[Any]
) -> None:
    for value in valid:
        assert getattr(Options.parse({name: value}), name) == value
    for value in invalid:
        with pytest.raises(ConfigError, match=name):
            Options.parse({name: value})


def test_options_that_nobody_gives_change_nothing() -> None:
    """The table of docs/api.md is written from these."""
    options = Options.parse({})
    off = ("fingerprint", "smoke", "tensorboard")
    assert [getattr(options, name) for name in off] == [False, False, False]
    assert options.wait is options.progress is True
    assert (options.trial_value, options.keep_checkpoints) == ("last", "best+last")


def test_signatures_of_verbs_show_the_defaults() -> None:
    parameters = inspect.signature(experiment.launch).parameters
    shown = {name: parameters[name].default for name in ("env", "trial_value", "seed")}
    assert shown == {"env": {}, "trial_value": "last", "seed": None}


def test_direction_defaults_to_max_and_accepts_long_names() -> None:
    assert Options.parse({}).direction == "max"
    assert Options.parse({"metric": "val_loss", "direction": "minimize"}).direction == "min"
    assert Options.parse({"metric": "lossless_ratio_x"}).direction == "max"


@pytest.mark.parametrize(
    "metric",
    [
        *("logloss", "binary_crossentropy", "val_binary_crossentropy", "cross_entropy", "wer"),
        *(
            "fid",
            "mape",
            "msle",
            "rmsle",
            "ppl",
            "val/loss",
            "valLoss",
            "validation loss",
            "time_s",
        ),
    ],
)
def test_direction_is_asked_for_where_the_name_of_the_metric_does_not_tell(metric: str) -> None:
    with pytest.raises(ConfigError, match=r"Pass direction='m(in|ax)' or direction='m(in|ax)'"):
        Options.parse({"metric": metric})
    assert Options.parse({"metric": metric, "direction": "min"}).direction == "min"


@pytest.mark.parametrize(
    "metric",
    [
        "accuracy",
        "val_acc",
        "auc",
        "roc_auc",
        "f1",
        "macro-F1",
        "precision",
        "recall",
        "r2",
        "score",
    ]
    + ["mean_iou", "mAP@0.5", "bleu", "reward", "valAccuracy", "F1Score", "value"],
)
def test_larger_values_of_a_metric_that_says_so_are_better(metric: str) -> None:
    check_direction(metric, None)
    assert Options.parse({"metric": metric}).direction == "max"


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    given = {"seed": np.int64(3), "parallelism": np.int32(2), "timeout_s": np.float32(1.5)}
    options = Options.parse(given)
    assert (options.seed, options.parallelism, options.timeout_s) == (3, 2, 1.5)
    assert {type(options.seed), type(options.parallelism)} == {int}
    with pytest.raises(ConfigError, match="whole number"):
        Options.parse({"seed": np.float64(3.0)})
    assert check_count("n", np.int64(3)) == 3 and type(check_count("n", np.int64(3))) is int


def test_secrets_are_texts_that_do_not_occur_by_chance() -> None:
    assert "hunter22" not in repr(Options.parse({"secrets": ["hunter22"]}))
    for secrets in ("hunter22", ["abc"], [1234], {"a": "b"}):
        with pytest.raises(ConfigError, match="secrets") as raised:
            Options.parse({"secrets": secrets})
        assert "abc" not in str(raised.value)


def test_repr_hides_values_of_env() -> None:
    assert "s3cret" not in repr(Options.parse({"env": {"KEY": "s3cret"}}))


def test_settings_resolve_argument_then_environment_then_conf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf = {"spark.sparkdl.root": "from-conf", "spark.sparkdl.forkServer": "no"}
    assert config.resolve("root") is None
    assert config.resolve("root", None, conf.get) == "from-conf"
    monkeypatch.setenv("SPARKDL_ROOT", "from-env")
    assert config.resolve("root", None, conf.get) == "from-env"
    assert config.resolve("root", "given", conf.get) == "given"
    assert config.resolve("fork_server", None, conf.get) is False
    monkeypatch.setenv("SPARKDL_SLOTS", "many")
    with pytest.raises(ConfigError, match=r"SPARKDL_SLOTS is 'many'.*int"):
        config.resolve("slots")


def test_a_misspelt_metric_is_corrected_before_its_direction_is_asked_for() -> None:
    for metric, name in (("acuracy", "accuracy"), ("val_los", "val_loss")):
        with pytest.raises(ConfigError, match=f"Did you mean '{name}'. Otherwise pass direction="):
            experiment.search(lambda x: x, {"x": [1, 2]}, num_trials=1, metric=metric)
    with pytest.raises(ConfigError) as caught:
        check_direction("gap", None)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("metric", ["x", "lossless_ratio_x", "ratio", "images_per_second"])
def test_a_search_asks_for_the_direction_of_a_metric_whose_name_says_nothing(metric: str) -> None:
    with pytest.raises(ConfigError, match="does not tell whether larger or smaller"):
        check_direction(metric, None)
    with pytest.raises(ConfigError, match="does not tell whether larger or smaller"):
        experiment.search(lambda x: x, {"x": [1, 2]}, num_trials=1, metric=metric)
    check_direction(metric, "min")
    assert Options.parse({"metric": metric}).direction == "max"
