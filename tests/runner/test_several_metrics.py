"""Searches of several metrics that stop trials early, on a cluster in memory."""

import time
from pathlib import Path
from typing import Any

from sparkdl import checkpoints
from sparkdl.errors import TrialPruned
from sparkdl.runs import Run
from sparkdl.runs.events import ReportsReceived
from sparkdl.runs.history import read_run
from sparkdl.runs.journal import read_journal
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from sparkdl.training.reporter import Reporter, Rungs
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, pruned, returned
from tests.helpers.loops import background, new_loop, request_of

EPOCHS = 8


def values(x: float) -> dict[str, float]:
    """The front is from 0.5 to 1; each point below is dominated by each of the front."""
    return {"accuracy": x, "latency": x if x > 0.5 else 2.0}


def climb(attempt: Attempt) -> Outcome:
    """Report each metric with a call of its own, and ask at the rungs."""
    spec = attempt.task.trial
    folder = Path(attempt.paths.folder)
    reporter = Reporter(
        folder,
        "metrics.jsonl",
        True,
        attempt.attempt,
        rungs=Rungs(spec.rungs, spec.reported, spec.metrics),
    )
    newest = checkpoints.newest(attempt.paths.folder)
    made = folder / f"made-{attempt.attempt}"
    made.mkdir(exist_ok=True)
    (made / "weights").write_text("1")
    try:
        for epoch in range(0 if newest is None else (newest.step or 0) + 1, EPOCHS):
            for name, value in values(spec.params["x"]).items():
                reporter.write({name: value}, epoch)
                reporter.raise_if_paused({name: value}, has_checkpoint=False)
            checkpoints.commit(str(made), attempt.paths.folder, epoch, {}, attempt.attempt)
            reporter.raise_if_paused({}, has_checkpoint=True)
    except TrialPruned:
        return pruned()
    return returned(**values(spec.params["x"]))


def wait_until_heard(attempt: Attempt, step: int) -> ReportsReceived:
    """Wait until the driver has written its decision about a report."""
    journal = str(Path(attempt.paths.folder).parents[1] / "journal")
    while True:
        for event in read_journal(journal):
            if isinstance(event, ReportsReceived):
                heard = [(number, step) for number, step, _ in event.reports]
                if (attempt.number, step) in heard:
                    return event
        time.sleep(0.01)


def run_until_stopped(attempt: Attempt) -> Outcome:
    """Report, and end when the driver says so."""
    x = attempt.task.trial.params["x"]
    for epoch in range(2):  # The first rung is at the second report.
        for name, value in values(x).items():
            attempt.report(epoch, **{name: value})
        heard = wait_until_heard(attempt, epoch)
        if attempt.number in dict(heard.stops or ()):
            attempt.await_order(lambda order: "stop" in order)
            return pruned()
    return returned(**values(x))


def run_of(root: str, cluster: InMemoryCluster, pruner: Any) -> Run:
    search = SearchSettings(
        space=Space.of({"x": Float(0.0, 1.0)}), algorithm="random", pruner=pruner, num_trials=10
    )
    request = request_of(
        search=search,
        objectives={"accuracy": "max", "latency": "min"},
        metric="accuracy",
        direction="max",
        seed=1,
        parallelism=1,
    )
    loop = new_loop(root, cluster, request)
    with background(loop):
        pass
    return loop.run


def test_promoted_trials_ask_when_all_metrics_are_there_and_notes_say_why(root: str) -> None:
    pruner = {"asha": {"promote": True, "reduction": 2, "max_reports": EPOCHS}}
    run = run_of(root, InMemoryCluster(climb), pruner)
    assert run.counts().keys() == {"COMPLETE", "PRUNED"}
    for trial in read_run(run.path).trials:
        num_reports = len(trial.history)
        if trial.state == "COMPLETE":
            assert (trial.note, num_reports) == (None, EPOCHS)
            assert trial.params["x"] > 0.5
        else:
            assert num_reports in (1, 2, 4)
            assert (trial.note or "").startswith(f"paused at report {num_reports}: ")
    assert {trial.number for trial in run.pareto} <= {t.number for t in run.trials if not t.note}


def test_notes_of_stopped_trials_are_kept(root: str) -> None:
    run = run_of(root, InMemoryCluster(run_until_stopped), "asha")
    assert run.counts()["PRUNED"] >= 4
    for trial in read_run(run.path).trials:
        assert (trial.note or "").startswith("stopped at report ") == (trial.state == "PRUNED")
    assert all(trial.params["x"] > 0.5 for trial in run.pareto)
