"""A training function is called in this process, as a trial would be called."""

import gc
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from sparkdl import checkpoints, context, experiment
from sparkdl.errors import ConfigError, FunctionError
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runs import Run
from sparkdl.search.settings import SearchSettings
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, returned
from tests.helpers.loops import request_of

pytestmark = pytest.mark.usefixtures("quick_polls")


@pytest.fixture(autouse=True)
def outside_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv(context.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert context.VARIABLE not in os.environ


def test_try_one_calls_the_function_here_with_a_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "labels.txt").write_text("cat dog")
    calls = []

    def train(units: int, rate: float = 0.5) -> dict[str, Any]:
        calls.append((os.getpid(), context.params, context.seed, context.is_chief))
        context.report({"loss": 0.25}, step=2)
        context.report({"loss": 0.2})
        Path("weights.txt").write_text("1")
        return {
            "number": random.random(),
            "labels": Path(context.resource("labels.txt")).read_text(),
            "logdir": context.logdir,
            "object": calls,
        }

    first = experiment.try_one(
        train, {"units": 8}, seed=5, folder="trial", versioned_resources=["labels.txt"]
    )
    second = experiment.try_one(train, {"units": 8}, seed=5, versioned_resources=["labels.txt"])
    gc.collect()
    files = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    assert not [file for file in files if file.endswith("metrics.jsonl")], "left open"
    assert calls == [(os.getpid(), {"units": 8}, 5, True)] * 2
    assert first["number"] == second["number"]
    assert first["labels"] == "cat dog"
    assert first["object"] is calls
    assert first["logdir"] == str(tmp_path / "trial/tensorboard")
    assert len((tmp_path / "trial/metrics.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "weights.txt").exists()
    finders = [type(finder).__module__ for finder in sys.meta_path]
    assert "sparkdl.cluster.program.local_modules" not in finders
    out = capsys.readouterr().out
    assert "step 2: loss=0.25\nloss=0.2\n" in out
    assert f"Its files are in {tmp_path / 'trial'}" in out


def test_try_one_raises_what_the_function_raises(tmp_path: Path) -> None:
    def train(x: int) -> None:
        raise KeyError(context.seed)

    with pytest.raises(KeyError, match="7") as caught:
        experiment.try_one(train, {"x": 1}, seed=7)
    assert caught.traceback[-1].name == "train"
    assert not list(tmp_path.glob("sparkdl-*")), "nothing was written"
    with pytest.raises(FunctionError, match="'y', which train"):
        experiment.try_one(train, {"y": 1})
    with pytest.raises(ConfigError, match=r"'typo\.yaml', which does not exist"):
        experiment.try_one(train, {"x": 1}, versioned_resources=["typo.yaml"])
    # The rows of `data.local` stay within reach.
    with context.acting_as(context.Context(feed=7)):
        assert experiment.try_one(lambda: context.feed) == 7
    with (
        context.acting_as(context.Context(run="one")),
        pytest.raises(ConfigError, match="this process is part of run one"),
    ):
        experiment.try_one(train, {"x": 1})


def train_with_checkpoint(x: float) -> dict[str, Any]:
    """The function of the runs below; the cluster in memory never calls it."""
    from own_layers import WIDTH

    start = context.get_checkpoint()
    weights = Path(start, "weights.txt").read_text() if start else "none"
    if start:
        Path(start, "weights.txt").write_text("spoilt")
    context.report({"x": x})
    resource = Path(context.resource("labels.txt")).read_text()
    mode = os.environ.get("MODE")
    return {"x": x, "seed": context.seed, "weights": weights, "w": WIDTH, "r": resource, "m": mode}


@pytest.fixture
def run(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run with a module of its own, which is changed afterwards."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "own_layers.py").write_text("WIDTH = 8\n")
    (tmp_path / "labels.txt").write_text("cat dog")
    monkeypatch.syspath_prepend(str(project))
    source = project / "own_train.py"
    text = Path(__file__).read_text().partition("def train_with_checkpoint")[2]
    body = text.partition("\n\n\n")[0]
    heading = "import os\nfrom pathlib import Path\nfrom typing import Any\n"
    heading += "from sparkdl import context\n\n"
    source.write_text(f"{heading}def train_with_checkpoint{body}\n")
    import own_train

    request = request_of(2, root=root, versioned_resources=["labels.txt"], env={"MODE": "fast"})
    request = replace(request, train=own_train.train_with_checkpoint)

    def commit(attempt: Attempt) -> Outcome:
        if attempt.number:
            (tmp_path / "model").mkdir()
            (tmp_path / "model/weights.txt").write_text("0.5")
            checkpoints.commit(str(tmp_path / "model"), attempt.paths.folder, 4, {"x": 1.0})
        return returned(1.0)

    yield execute(request, InMemoryCluster(commit))
    for name in ("own_layers", "own_train"):
        sys.modules.pop(name, None)


def snapshot(path: str) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in Path(path).rglob("*") if p.is_file()}


def test_debug_calls_the_kept_function_as_the_trial(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project/own_layers.py").write_text("WIDTH = 16\n")
    (tmp_path / "labels.txt").write_text("changed")
    own = sys.modules["own_train"]
    before = snapshot(run.path)
    trial = experiment.load(run.path).trials[1]
    expected = {"x": 1.0, "seed": trial.seed, "weights": "0.5", "w": 8, "r": "cat dog", "m": "fast"}
    assert trial.debug(env={"MODE": "fast"}) == expected
    out = capsys.readouterr().out
    assert "Note: code own_layers" in out
    assert "+WIDTH = 16" in out
    assert "x=1\n" in out
    assert trial.debug(env={"MODE": "fast"}, from_start=True) == {**expected, "weights": "none"}
    assert run.trials[0].debug(env={"MODE": "fast"})["weights"] == "none"
    assert snapshot(run.path) == before
    assert sys.modules["own_train"] is own
    assert "MODE" not in os.environ
    with pytest.raises(ConfigError, match="MODE}, whose values are never kept"):
        trial.debug()


def objective(trial: optuna.Trial) -> float:
    trial.report(0.5, 0)
    return trial.suggest_float("x", 0, 10) * 2


def test_debug_calls_an_objective_with_the_parameters_that_it_got(root: str) -> None:
    search = SearchSettings(space=None, algorithm="random", num_trials=1)
    request = replace(request_of(search=search, root=root), train=objective)

    def ask(attempt: Attempt) -> Outcome:
        distribution = optuna.distributions.FloatDistribution(0, 10)
        text = optuna.distributions.distribution_to_json(distribution)
        attempt.ask(1, suggest="x", distribution=text)
        return returned(1.0)

    run = execute(request, InMemoryCluster(ask))
    assert run.trials[0].debug() == run.trials[0].params["x"] * 2
