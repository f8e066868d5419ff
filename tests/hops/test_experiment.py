"""hops-util-py's functions on embedded Spark: arguments, meanings and return values."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment as verbs
from sparkdl.errors import AllTrialsFailedError, ConfigError
from sparkdl.hops import devices, experiment, hdfs, tensorboard
from sparkdl.hops.experiment import Direction
from sparkdl.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.fixture(autouse=True)
def project(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    return root


def run_of(path: str) -> Run:
    """Return the run that a path of a run or of a trial belongs to."""
    return verbs.load(path.partition("/trials/")[0])


def test_launch_pairs_the_lists() -> None:
    def train(a: int, b: int) -> int:
        return 10 * a + b

    path, values = experiment.launch(train, {"a": [1, 2], "b": [5, 3]}, name="pairs")
    assert [trial.value for trial in run_of(path).trials] == [15, 23]
    assert values is None
    assert run_of(path).name == "pairs"
    with pytest.raises(ConfigError, match="equal length"):
        experiment.launch(train, {"a": [1, 2], "b": [5]})
    _, values = experiment.launch(map_fun=train, args_dict={"a": [1], "b": [5]})
    assert values
    assert values["metric"] == 15


def test_launch_returns_numbers_files_and_the_log(project: str) -> None:
    hdfs.dump("seen: ", "Resources/words.txt")

    def train() -> dict[str, Any]:
        assert tensorboard.logdir().endswith("/")
        assert devices.get_num_gpus() == 0
        Path(tensorboard.logdir() + "note.txt").write_text("a note")
        words = Path(hdfs.copy_to_local("Resources/words.txt")).read_text()
        Path("diagram.txt").write_text(f"{words}a diagram")
        print("training has started")
        return {"accuracy": 0.5, "loss": 2.0, "diagram": "diagram.txt"}

    path, values = experiment.launch(
        train,
        name="with files",
        local_logdir=True,
        versioned_resources=["Resources/words.txt"],
        description="returns a file",
        metric_key="accuracy",
    )
    assert values
    assert (values["accuracy"], values["loss"]) == (0.5, 2.0)
    assert hdfs.load(hdfs.project_path() + values["diagram"]) == b"seen: a diagram"
    assert "training has started" in hdfs.load(values["log"]).decode()
    run = run_of(path)
    assert (run.metric, run.trials[0].value, run.path) == ("accuracy", 0.5, path)
    assert Path(run.trials[0].path, "tensorboard", "note.txt").read_text() == "a note"
    assert Path(path, "resources", "words.txt").read_text() == "seen: "
    assert path.startswith(f"{project}/with-files-")


def test_launch_without_a_value_and_with_a_failure() -> None:
    assert experiment.launch(lambda: None)[1] == {"metric": None, "log": hdfs_log()}

    def train() -> None:
        raise OSError("the disk is full")

    with pytest.raises(AllTrialsFailedError, match="the disk is full"):
        experiment.launch(train)


def hdfs_log() -> str:
    """Return the path of the log of the newest run, relative to the project."""
    newest = max(Path(os.environ["SPARKDL_ROOT"]).iterdir(), key=os.path.getmtime)
    return f"{newest.name}/trials/0/log.txt"


def test_grid_search_runs_every_combination() -> None:
    def train(rate: float, dropout: float) -> dict[str, float]:
        return {"accuracy": rate + dropout, "loss": rate * dropout}

    grid = {"rate": [0.1, 0.2, 0.3], "dropout": [0.5, 0.6]}
    path, params, values = experiment.grid_search(
        train, grid, direction=Direction.MIN, optimization_key="loss"
    )
    assert params == {"rate": 0.1, "dropout": 0.5}
    assert values["loss"] == pytest.approx(0.05)
    assert len(run_of(path).trials) == 6
    assert path == run_of(path).best.path
    _, params, _ = experiment.grid_search(train, grid, "max", optimization_key="accuracy")
    assert params == {"rate": 0.3, "dropout": 0.6}
    with pytest.raises(ConfigError, match=r"Direction\.MAX"):
        experiment.grid_search(train, grid, direction="up")
    with pytest.raises(AllTrialsFailedError, match="metric 'metric' was neither returned"):
        experiment.grid_search(train, {"rate": [0.1], "dropout": [0.5]})


def test_random_search_takes_two_values_as_bounds() -> None:
    def train(kernel: int, rate: float) -> float:
        return kernel + rate

    path, params, values = experiment.random_search(
        train, {"kernel": [2, 8], "rate": [0.0, 0.5]}, samples=6
    )
    rows = [trial.params for trial in run_of(path).trials]
    assert len(rows) == 6
    assert all(type(row["kernel"]) is int and 2 <= row["kernel"] <= 8 for row in rows)
    assert all(0 <= row["rate"] <= 0.5 for row in rows)
    assert values["metric"] == params["kernel"] + params["rate"]
    path, _, _ = experiment.random_search(lambda kernel: kernel, {"kernel": [1, 2]}, samples=9)
    assert len(run_of(path).trials) <= 2
    for bounds in ([2, 1], ["a", "b"]):
        with pytest.raises(ConfigError, match="two numbers"):
            experiment.random_search(train, {"kernel": bounds, "rate": [0.0, 1.0]})


def test_differential_evolution_is_one_run_of_several_generations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def train(kernel: int, way: str) -> dict[str, float]:
        return {"accuracy": -abs(kernel - 5) - (way == "up"), "loss": 1.0}

    path, params, values = experiment.differential_evolution(
        train,
        {"kernel": [2, 8], "way": ["up", "down"]},
        generations=2,
        population=4,
        name="evolution",
        local_logdir=True,
        optimization_key="accuracy",
    )
    run = run_of(path)
    assert (run.state, run.name, run.is_search) == ("COMPLETE", "evolution", True)
    assert 2 <= len(run.trials) <= 12
    counts = Counter(str(trial.params) for trial in run.trials)
    assert set(counts.values()) == {1}
    assert (path, params) == (run.best.path, run.best.params)
    assert values["accuracy"] == run.best.value
    assert "Generation 2: average metric" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="at least 2"):
        experiment.differential_evolution(train, {"kernel": [2, 8]}, generations=1)


def test_an_experiment_of_the_program_itself() -> None:
    path = experiment.begin(name="sum", description="adds numbers")
    Path(tensorboard.logdir(), "note.txt").write_text("a note")
    with pytest.raises(RuntimeError, match=r"experiment\.end"):
        experiment.launch(lambda: 1)
    with pytest.raises(RuntimeError, match=r"experiment\.end"):
        experiment.begin()
    experiment.end(sum([1, 2]))
    run = verbs.load(path)
    assert (run.state, run.name, run.trials[0].value) == ("COMPLETE", "sum", 3.0)
    assert Path(run.trials[0].path, "tensorboard", "note.txt").read_text() == "a note"
    assert path not in tensorboard.logdir()
    assert "sum" in str(verbs.history(os.environ["SPARKDL_ROOT"])["run"][0])
    with pytest.raises(RuntimeError, match="no experiment is running"):
        experiment.end()
