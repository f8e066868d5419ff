"""The names of trials in TensorBoard tell them apart, and are names of folders."""

import os

import pytest

from sparkdl.board.trial_names import name_of


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"learning_rate": 0.1, "dropout": 0.3}, "4-learning_rate=0.1,dropout=0.3"),
        ({"lr": 1 / 3, "decay": 1e-05}, "4-lr=0.333333,decay=1e-05"),
        ({"layers": [64, 32], "bias": True, "clip": None}, "4-layers=64_32,bias=True,clip=None"),
        ({"path": "/data/../a b", "name": ""}, "4-path=data_.._a_b,name="),
        ({"größe": "groß", "lr/decay": -1}, "4-größe=groß,lr_decay=-1"),
        ({}, "4-my_run"),
    ],
)
def test_name_has_the_parameters(params: dict[str, object], name: str) -> None:
    assert name_of(4, params, "my run") == name


def test_long_name_is_a_name_of_a_folder() -> None:
    params = {f"parameter-{number}-ü": "ü" * 100 for number in range(20)}
    name = name_of(12345, params, "run")
    assert name.startswith("12345-parameter-0-ü=")
    assert name.endswith("...")
    assert len(os.fsencode(name)) <= 120


def test_trials_with_equal_parameters_have_names_of_their_own() -> None:
    names = {name_of(number, {"x": "a" * 1000}, "run") for number in range(1000)}
    assert len(names) == 1000
