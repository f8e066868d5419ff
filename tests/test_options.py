"""Options and settings: what is wrong is named, with what is right."""

from typing import Any

import pytest

from sparkdl import config
from sparkdl.errors import ConfigError
from sparkdl.options import Options


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n_jobs": 2}, "Did you mean 'parallelism'"),
        ({"timeout": 2}, "Did you mean 'timeout_s'"),
        ({"seeds": 2}, "Did you mean 'seed'"),
        ({"seed": -1}, "at least 0"),
        ({"parallelism": True}, "whole number"),
        ({"timeout_s": 0}, "above 0"),
        ({"framework": "tf"}, "'tensorflow', 'torch' or 'jax'"),
        ({"metric": ["a"]}, "the name of one number"),
        ({"metric": "rmse"}, "looks like one that should be small"),
        ({"direction": "best"}, "'max' or 'min'"),
        ({"keep_checkpoints": "best"}, "'best'; expected 'best\\+last'"),
        ({"keep_checkpoints": 0}, "at least 1"),
        ({"keep_checkpoints": True}, "at least 1"),
        ({"max_to_keep": 3}, "Did you mean 'keep_checkpoints'"),
    ],
)
def test_wrong_options(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Options.parse(given)


def test_directions() -> None:
    assert Options.parse({}).direction == "max"
    assert Options.parse({"metric": "val_loss", "direction": "minimize"}).direction == "min"
    assert Options.parse({"metric": "lossless_ratio_x"}).direction == "max"


def test_values_of_env_are_not_shown() -> None:
    assert "s3cret" not in repr(Options.parse({"env": {"KEY": "s3cret"}}))


def test_settings_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
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
