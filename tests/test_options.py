"""Options and settings: an error names the invalid value and the valid ones."""

from typing import Any

import pytest

from sparkdl import config
from sparkdl.errors import ConfigError
from sparkdl.options import Options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_jobs": 2}, "Did you mean 'parallelism'"),
        ({"timeout": 2}, "Did you mean 'timeout_s'"),
        ({"seeds": 2}, "Did you mean 'seed'"),
        ({"seed": -1}, "at least 0"),
        ({"parallelism": True}, "whole number"),
        ({"timeout_s": 0}, "above 0"),
        ({"framework": "tf"}, "'tensorflow', 'torch' or 'jax'"),
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


def test_direction_defaults_to_max_and_accepts_long_names() -> None:
    assert Options.parse({}).direction == "max"
    assert Options.parse({"metric": "val_loss", "direction": "minimize"}).direction == "min"
    assert Options.parse({"metric": "lossless_ratio_x"}).direction == "max"


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
