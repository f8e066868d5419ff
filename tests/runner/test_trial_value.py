"""The value of a trial: the last one, or on request the best one that it has reported."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl import checkpoints
from sparkdl.cluster.outcome import Status
from sparkdl.errors import ConfigError
from sparkdl.experiment.trials import search
from sparkdl.options import Options
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.pipeline.prepare import find_initial_checkpoint
from sparkdl.runs.history import load
from sparkdl.runs.trial import Trial
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, pruned, returned
from tests.helpers.loops import background, new_loop, request_of, run_trials

pytestmark = pytest.mark.usefixtures("quick_polls")

CURVES = [[0.5, 0.9, 0.7], [0.6, 0.8, 0.8]]


def reporting(tmp_path: Any) -> Any:
    """A task that reports a curve with checkpoints, and returns the last value."""
    source = tmp_path / "model"
    source.mkdir()

    def run(attempt: Attempt) -> Outcome:
        curve = CURVES[attempt.number]
        for step, value in enumerate(curve):
            attempt.report(step, accuracy=value)
            (source / "weights").write_text(str(value))
            checkpoints.commit(source, attempt.paths.folder, step, {"accuracy": value})
        return returned(None, accuracy=curve[-1])

    return run


@pytest.mark.parametrize(
    ("how", "best", "values"), [("last", 1, [0.7, 0.8]), ("best", 0, [0.9, 0.8])]
)
def test_value_and_checkpoint_speak_of_the_same_weights(
    root: str, tmp_path: Any, how: str, best: int, values: list[float]
) -> None:
    cluster = InMemoryCluster(reporting(tmp_path), num_slots=1)
    run = run_trials(root, cluster, 2, metric="accuracy", trial_value=how)
    assert [trial.value for trial in run.trials] == values
    for seen in (run, load(run.path)):
        assert seen.best.number == best
        assert seen.best.checkpoint
        with open(f"{seen.best.checkpoint}/weights") as file:
            assert float(file.read()) == seen.best.value


@pytest.mark.parametrize(("how", "weights"), [("last", 0.7), ("best", 0.9)])
def test_trials_begin_with_the_weights_of_the_value_of_another_trial(
    root: str, tmp_path: Any, how: str, weights: float
) -> None:
    cluster = InMemoryCluster(reporting(tmp_path), num_slots=1)
    options: dict[str, Any] = {"metric": "accuracy", "trial_value": how}
    trial = run_trials(root, cluster, 2, **options).trials[0]
    assert trial.value == weights
    for place in (trial, trial.path, f"{trial.path}/", trial.checkpoint):
        folder, number = find_initial_checkpoint(replace(request_of(), init_from=place)) or ("", 0)
        assert float(Path(folder, "checkpoints", f"{number:06}", "weights").read_text()) == weights
    # Without its run, the newest is all that is known of it.
    shutil.copytree(trial.path, tmp_path / "alone")
    alone = find_initial_checkpoint(replace(request_of(), init_from=tmp_path / "alone"))
    assert alone == (str(tmp_path / "alone"), len(CURVES[0]))


def population(root: str, task: Any, **options: Any) -> Any:
    search = SearchSettings(
        space=Space.of({"x": Float(0, 1)}),
        algorithm={"pbt": {"population": 4}},
        num_trials=8,
        initial_params=[{"x": x} for x in (0.30, 0.31, 0.32, 0.33)],
    )
    request = request_of(
        search=search, metric="score", trial_value="best", parallelism=1, seed=1, **options
    )
    with background(new_loop(root, InMemoryCluster(task, num_slots=1), request)) as loop:
        pass
    return loop.run


def test_members_continue_from_the_weights_of_the_best_value(root: str, tmp_path: Any) -> None:
    """The first interval of member 0 is the best at its first report, and collapses then."""
    (source := tmp_path / "model").mkdir()
    given: dict[int, float] = {}

    def run(attempt: Attempt) -> Outcome:
        trial = attempt.task.trial
        if trial.init_from:
            folder, number = trial.init_from
            [parent] = [c for c in checkpoints.committed(folder) if c.number == number]
            given[attempt.number] = parent.metrics["score"]
        x = trial.params["x"]
        for step, value in enumerate([0.9, 0.1, 0.0] if attempt.number == 0 else [x, x, x]):
            attempt.report(step, score=value)
            (source / "weights").write_text(str(value))
            checkpoints.commit(source, attempt.paths.folder, step, {"score": value})
        return returned(None)

    trials = population(root, run).trials
    assert given == {t.number: trials[t.parent].value for t in trials if t.parent is not None}
    assert (trials[4].parent, given[4]) == (0, 0.9)


@pytest.mark.parametrize("keep", ["last", 3])
def test_population_must_keep_the_weights_of_its_best_values(root: str, keep: Any) -> None:
    with pytest.raises(ConfigError, match=r"continue from the best checkpoint.*'best\+last'"):
        population(root, lambda attempt: returned(1.0), keep_checkpoints=keep)


def test_best_value_of_an_invalid_or_pruned_trial_is_none(root: str) -> None:
    outcomes = [returned(None, loss=float("nan")), pruned(), returned(None, loss=2.0)]

    def run_task(attempt: Attempt) -> Outcome:
        for step, loss in enumerate((3.0, 1.0, float("nan"))):
            attempt.report(step, loss=loss)
        return outcomes[attempt.number]

    cluster = InMemoryCluster(run_task)
    run = run_trials(root, cluster, 3, metric="loss", direction="min", trial_value="best")
    assert [trial.value for trial in run.trials] == [None, None, 1.0]


def losses(attempt: Attempt) -> Outcome:
    return returned(None, val_loss=float(attempt.number + 1))


def test_loss_without_metric_is_not_maximized(root: str) -> None:
    search = SearchSettings(space=Space.of({"x": [0, 1, 2]}), num_trials=3, algorithm="grid")
    run = run_trials(root, InMemoryCluster(losses), search=search, run_id="search")
    assert run.counts() == {"INVALID": 3}
    assert "Pass metric='val_loss' and direction='min'" in run.trials[0].summary
    run = run_trials(root, InMemoryCluster(losses), 3, run_id="launch")
    assert run.counts() == {"COMPLETE": 3}
    assert run.top(3) == []
    assert "Pass metric='val_loss'" in (run.trials[0].note or "")
    run = run_trials(root, InMemoryCluster(losses), 3, metric="val_loss", direction="min")
    assert run.best.value == 1.0
    # A single trial is compared with no other trial.
    assert run_trials(root, InMemoryCluster(losses), run_id="one").best.value == 1.0


@pytest.mark.parametrize(("patience_s", "value"), [(0.0, 0.5), (60.0, 0.9)])
def test_reports_that_cannot_be_read_do_not_end_the_run(
    root: str, monkeypatch: pytest.MonkeyPatch, patience_s: float, value: float
) -> None:
    def run_task(attempt: Attempt) -> Outcome:
        attempt.report(0, accuracy=0.9)
        return returned(None, accuracy=0.5)

    read, errors = Trial.reported_values, [OSError("the store is busy")]

    def fail_once(trial: Trial) -> list[float]:
        if errors:
            raise errors.pop()
        return read(trial)

    monkeypatch.setattr(Trial, "reported_values", fail_once)
    monkeypatch.setattr("sparkdl.runner.loop.conclusion.READ_S", patience_s)
    monkeypatch.setattr("sparkdl.files.polling.pause_s", lambda _: 0.001)
    run = run_trials(root, InMemoryCluster(run_task), 1, metric="accuracy", trial_value="best")
    (trial,) = run.trials
    assert (run.state, trial.value) == ("COMPLETE", value)
    note = "the value is the last one, as the reported values could not be read: the store is busy"
    assert trial.note == (note if value == 0.5 else None)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"metric": "loss", "direction": "min"}, "one with the lowest loss\n"),
        ({"metric": "accuracy"}, "one with the highest accuracy\n"),
        ({}, "one with the highest value; pass direction='min' if smaller values are better\n"),
    ],
)
def test_a_search_says_which_trial_is_the_best(
    root: str, capsys: pytest.CaptureFixture[str], options: dict[str, Any], line: str
) -> None:
    space = Space.of({"x": [0.5]})
    settings = SearchSettings(space=space, num_trials=1, algorithm="grid")
    request = request_of(search=settings, root=root, **options)
    request = replace(request, options=replace(request.options, progress=True))
    name = options.get("metric", "value")
    outcome = Outcome(status=Status.RETURNED, outputs={name: 0.5})
    execute(request, InMemoryCluster(lambda attempt: outcome))
    assert f"The best trial is the {line}" in capsys.readouterr().out


def test_trial_value_is_validated() -> None:
    with pytest.raises(ConfigError, match="expected 'last' or 'best'"):
        Options.parse({"trial_value": "max"})
    with pytest.raises(ConfigError, match="Did you mean 'trial_value'"):
        Options.parse({"scope": "max"})
    with pytest.raises(ConfigError, match="may belong to different weights"):
        search(
            lambda x: x,
            {"x": [1]},
            num_trials=1,
            metric=["accuracy", "loss"],
            direction=["max", "min"],
            trial_value="best",
        )
