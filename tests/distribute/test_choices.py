"""Choices that need no TensorFlow: strategies, learning rates."""

import json

import pytest

from sparkdl import distribute
from sparkdl.context import Context
from sparkdl.distribute.strategies import choose


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


def test_learning_rates_are_scaled_and_warmed_up() -> None:
    assert distribute.scale_learning_rate(0.1) == 0.1
    assert distribute.scale_learning_rate(0.1, 4) == 0.4
    with pytest.raises(ValueError, match="num_workers=0"):
        distribute.scale_learning_rate(0.1, 0)
    assert distribute.warmed_up(0, 0, 0.1, 0.4) == 0.4
