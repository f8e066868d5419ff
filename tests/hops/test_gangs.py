"""hops-util-py's distributed functions on three executors: their processes, roles and values."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment as verbs
from sparkdl.errors import ConfigError
from sparkdl.hops import experiment, hdfs, tensorboard, util

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("three_executors")]


@pytest.fixture(autouse=True)
def project(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    return root


def see() -> dict[str, Any]:
    """Write a file for events, and return the cluster; each process of a gang calls it."""
    import os

    from sparkdl import context

    task = json.loads(os.environ["TF_CONFIG"])
    Path(tensorboard.logdir() + "note.txt").write_text(task["task"]["type"])
    sizes = {role: len(members) for role, members in task["cluster"].items()}
    return {"accuracy": 0.5 + context.rank, "cluster": sizes}


def test_mirrored_trains_on_all_executors() -> None:
    assert util.num_executors() == 3
    path, values = experiment.mirrored(see, name="all", local_logdir=True, metric_key="accuracy")
    assert values
    assert (values["accuracy"], values["cluster"]) == (0.5, {"worker": 3})
    assert values["log"].endswith("trials/0/log-worker-0.txt")
    assert hdfs.exists(values["log"])
    run = verbs.load(path)
    assert (run.metric, run.trials[0].value, run.result["accuracy"]) == ("accuracy", 0.5, 0.5)
    notes = Path(run.trials[0].path, "tensorboard")
    assert (notes / "note.txt").exists()
    assert (notes / "worker-2" / "note.txt").exists()


def test_an_evaluator_is_one_of_the_executors() -> None:
    _, values = experiment.multi_worker_mirrored(see, evaluator=True)
    assert values
    assert values["cluster"] == {"worker": 2}
    _, values = experiment.collective_all_reduce(map_fun=see)
    assert values
    assert values["cluster"] == {"worker": 3}


def test_parameter_servers_are_counted_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="NUM_TF_PS"):
        experiment.parameter_server(see)
    monkeypatch.setenv("NUM_TF_PS", "1")
    _, values = experiment.parameter_server(see)
    assert values
    assert values["cluster"] == {"chief": 1, "worker": 1, "ps": 1}
    assert values["log"].endswith("log-chief-0.txt")
    monkeypatch.setenv("NUM_TF_PS", "2")
    with pytest.raises(ConfigError, match="2 parameter servers"):
        experiment.parameter_server(see)
    monkeypatch.setenv("NUM_TF_PS", "two")
    with pytest.raises(ConfigError, match="'two'"):
        experiment.parameter_server(see)
