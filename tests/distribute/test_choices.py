"""Choices that need no TensorFlow: strategies, tested versions, learning rates."""

import json

import pytest

from sparkdl import distribute
from sparkdl.context import Context
from sparkdl.distribute.strategies import choose
from sparkdl.distribute.tested_versions import untested


@pytest.mark.parametrize(
    ("strategy", "world_size", "expected"),
    [
        ("local", 1, "local"),
        ("local", 4, "local"),
        ("multi_worker", 1, "local"),
        ("multi_worker", 2, "multi_worker"),
        ("parameter_server", 4, "parameter_server"),
    ],
)
def test_choose_takes_the_strategy_of_the_role(
    strategy: str, world_size: int, expected: str
) -> None:
    assert choose(Context(strategy=strategy, world_size=world_size)) == expected


@pytest.mark.parametrize("role", ["worker", "ps"])
def test_choose_rejects_servers_of_a_parameter_server_run(role: str) -> None:
    with pytest.raises(RuntimeError, match=rf"on {role} 2 .* Call distribute.serve\(\) here"):
        choose(Context(strategy="none", role=role, index=2, world_size=4))


def test_serve_rejects_processes_that_are_not_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in ({}, {"task": {"type": "chief", "index": 0}}):
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        with pytest.raises(RuntimeError, match="expected the type 'worker' or 'ps'"):
            distribute.serve()


def test_untested_names_the_versions_and_the_ways_out() -> None:
    tested = {"tensorflow": "2.21.3", "keras": "3.15.0"}
    assert untested(tested) is None
    assert untested({**tested, "keras": "3.9.0"}, legacy=True) is None
    for other in ({"keras": "3.16.0"}, {"tensorflow": "2.2.1"}, {"keras": "3.1.5"}):
        message = untested({**tested, **other})
        assert message
        (found,) = [f"{name} {version}" for name, version in other.items()]
        for part in (found, "tensorflow 2.21.* with keras 3.15.*", "SPARKDL_ALLOW_UNTESTED=1"):
            assert part in message
    # The last versions with tf.estimator, which belong together.
    estimators = {"tensorflow": "2.15.1", "keras": "2.15.0"}
    assert untested(estimators) is None
    assert untested({**tested, "tensorflow": "2.15.1"}) is not None
    assert untested({}) is not None
    assert "keras" not in (untested({"tensorflow": "2.19.0"}, legacy=True) or "")


def test_learning_rates_are_scaled_and_warmed_up() -> None:
    assert distribute.scale_learning_rate(0.1) == 0.1
    assert distribute.scale_learning_rate(0.1, 4) == 0.4
    with pytest.raises(ValueError, match="num_workers=0"):
        distribute.scale_learning_rate(0.1, 0)
    assert distribute.warmed_up(0, 0, 0.1, 0.4) == 0.4
