"""The driver's loop without Spark: reports, orders of a pruner, questions of an objective."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, distribution_to_json

from sparkdl.cluster.plan import Role
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.rank_files import RankFiles
from sparkdl.runner.loop import trial_messages
from sparkdl.runner.loop.trial_messages import TrialMessages
from sparkdl.runner.pipeline.execute import description_of
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runs import Trial
from sparkdl.runs.history import load
from sparkdl.runs.opening import open_run
from sparkdl.runs.states import TrialState
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from sparkdl.search.trial_source import TrialSource
from sparkdl.training.joint_stop import ASKS, STOP
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, lost, pruned, raised, returned
from tests.helpers.loops import (
    background,
    events,
    journal_states,
    new_loop,
    packed,
    request_of,
    run_trials,
)
from tests.helpers.processes import eventually

pytestmark = pytest.mark.usefixtures("quick_polls")

SPACE = Space.of({"x": Float(0.0, 1.0)})


def pruning(num_trials: int = 2) -> SearchSettings:
    """A search that prunes trials that report less than 0.5."""
    return SearchSettings(
        space=SPACE,
        algorithm="random",
        pruner=optuna.pruners.ThresholdPruner(lower=0.5),
        num_trials=num_trials,
    )


def test_metrics_that_are_shown_do_not_change_when_a_report_arrives(tmp_path: Path) -> None:
    trial = Trial(0, {}, str(tmp_path), metrics={"loss": 1.0})
    line = json.dumps({"step": 1, "metrics": {"accuracy": 0.5}})
    storage.write(TrialPaths(trial.path).metrics, f"{line}\n")
    shown = iter(trial.metrics.items())
    TrialMessages(TrialSource(), None, is_gang=False).read([trial])  # type: ignore[arg-type]
    assert dict(shown) == {"loss": 1.0}  # An iterator over a dict that has grown raises.
    assert trial.metrics == {"loss": 1.0, "accuracy": 0.5}


def test_many_trials_share_the_requests_to_a_store(
    counting_store: CountingStore,  # noqa: F811
    clock: list[float],
) -> None:
    trials = [Trial(number, {}, counting_store.url(str(number))) for number in range(30)]
    messages = TrialMessages(TrialSource(), None, is_gang=False)  # type: ignore[arg-type]
    for seconds, requests in ((0, 30), (3, 0), (6, 0), (10, 30), (13, 0)):
        counting_store.requests.clear()
        clock[0] = 1000.0 + seconds
        messages.read(trials)
        assert len(counting_store.requests) == requests
    messages.read(trials[:1], are_over=True)  # The last reports of a trial are not waited for.
    assert len(counting_store.requests) == 1


def test_last_reports_of_trials_that_ended_together_are_read_once(
    counting_store: CountingStore,  # noqa: F811
) -> None:
    trials = [Trial(number, {}, counting_store.url(str(number))) for number in range(3)]
    for trial in trials:
        line = '{"step": 0, "metrics": {"loss": 1.0}}'
        storage.write(TrialPaths(trial.path).metrics, f"{line}\n")
    trials[2].state = TrialState.COMPLETE  # Recorded before.
    counting_store.requests.clear()
    TrialMessages(TrialSource(), None, is_gang=False).read_last(trials)  # type: ignore[arg-type]
    assert [trial.metrics for trial in trials] == [{"loss": 1.0}, {"loss": 1.0}, {}]
    assert len(counting_store.requests) == 2


def test_pruner_orders_a_trial_to_stop(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(search=pruning()))) as loop:
        bad, good = cluster.attempt(0), cluster.attempt(1)
        good.report(0, value=0.9)
        bad.report(0, value=0.7)
        bad.report(1, value=0.2)
        assert bad.await_order() == {"stop": "pruned"}
        bad.end(pruned())
        good.end(returned(0.9))
    assert [str(t.state) for t in loop.run.trials] == ["PRUNED", "COMPLETE"]
    assert loop.run.trials[0].metrics == {"value": 0.2}
    assert good.orders() == []
    assert [event["number"] for event in events(loop.run, "stop")] == [0]
    reports = [tuple(r) for event in events(loop.run, "reports") for r in event["reports"]]
    assert sorted(reports) == [(0, 0, 0.7), (0, 1, 0.2), (1, 0, 0.9)]


def test_pruned_trial_that_does_not_end_is_cancelled_and_counts_as_pruned(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_messages, "STOP_GRACE_S", 0.02)
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(search=pruning()))) as loop:
        cluster.attempt(0).report(0, value=0.2)
        cluster.attempt(1).end(returned(0.9))
    assert [str(t.state) for t in loop.run.trials] == ["PRUNED", "COMPLETE"]
    assert "sparkdl:run:0" in cluster.cancelled
    assert loop.run.state == "COMPLETE"


def test_trial_is_ordered_to_stop_once(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(search=pruning(1)))):
        attempt = cluster.attempt(0)
        attempt.report(0, value=0.2)
        attempt.await_order()
        attempt.report(1, value=0.1)
        attempt.report(2, value=0.0)
        attempt.end(pruned())
    assert len(attempt.orders()) == 1


def test_trial_that_completes_although_it_was_ordered_to_stop_is_complete(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(search=pruning(1)))) as loop:
        attempt = cluster.attempt(0)
        attempt.report(0, value=0.2)
        attempt.await_order()
        attempt.end(returned(0.9))
    assert loop.run.trials[0].state == "COMPLETE"


def test_reports_just_before_the_end_are_read(root: str) -> None:
    def reports_and_ends(attempt: Attempt) -> dict[str, object]:
        attempt.report(0, value=0.1)  # Too late to be stopped.
        attempt.report(1, value=0.8)
        return returned(0.8)

    run = run_trials(root, InMemoryCluster(reports_and_ends), search=pruning(1))
    assert run.trials[0].state == "COMPLETE"
    reports = [tuple(r) for event in events(run, "reports") for r in event["reports"]]
    assert (0, 0, 0.1) in reports


def test_reports_of_a_failed_attempt_do_not_count_for_the_next_one(root: str) -> None:
    cluster = InMemoryCluster()
    request = request_of(search=pruning(1), max_restarts=1)
    with background(new_loop(root, cluster, request)) as loop:
        first = cluster.attempt(0)
        first.report(5, value=0.6)
        first.end(raised("ValueError: no"))
        second = cluster.attempt(0, 1)
        second.report(0, value=0.9)
        second.end(returned(0.9))
    assert journal_states(loop.run, 0) == ["RUNNING", "WAITING", "RUNNING", "COMPLETE"]
    assert second.orders() == []
    reports = [tuple(r) for event in events(loop.run, "reports") for r in event["reports"]]
    assert reports == [(0, 5, 0.6), (0, 0, 0.9)]


def test_all_processes_of_a_gang_are_cancelled_when_it_is_pruned(root: str) -> None:
    roles = (Role(name="worker", count=2),)
    cluster = InMemoryCluster(num_slots=2)
    request = request_of(search=pruning(1), roles=roles, is_gang=True)
    with background(new_loop(root, cluster, request)) as loop:
        attempt = cluster.attempt(0)
        attempt.report(0, value=0.2)
    assert loop.run.trials[0].state == "PRUNED"
    assert attempt.orders() == []  # No rank may stop alone.


def test_a_gang_that_asks_is_told_to_agree_on_a_stop(root: str) -> None:
    roles = (Role(name="worker", count=2),)
    cluster = InMemoryCluster(num_slots=2)
    request = request_of(search=pruning(1), roles=roles, is_gang=True)
    with background(new_loop(root, cluster, request)) as loop:
        attempt = cluster.attempt(0)
        files = RankFiles(TrialPaths(loop.run.trials[0].path).ranks(0))
        files.post(0, ASKS)
        attempt.report(0, value=0.2)
        assert eventually(lambda: files.has_ordered(STOP))
        attempt.end(pruned())  # It has saved, and ends by itself.
    assert journal_states(loop.run, 0)[-1] == "PRUNED"


def test_order_to_stop_is_sent_once_however_often_the_source_wants_it(root: str) -> None:
    class Insists(TrialSource):
        def observe_reports(self, reports: Sequence[Any], ended: bool = False) -> list[Trial]:
            return [trial for trial, _, _ in reports]

    prepared = prepare(request_of(1), packed(), InMemoryCluster())
    opened = open_run(root, description_of(prepared), "error")
    opened.owner.release()
    trial = opened.run.trials[0]
    messages = TrialMessages(Insists(), opened.journal, is_gang=False)
    for step in range(2):
        line = json.dumps({"step": step, "metrics": {"value": 0.1}})
        storage.append(TrialPaths(trial.path).metrics, line.encode() + b"\n")
        messages.read([trial])
        assert messages.is_stopped(trial)
    assert storage.read(TrialPaths(trial.path).orders).splitlines() == [b'{"stop": "pruned"}']
    assert len(events(opened.run, "stop")) == 1
    assert messages.steps == {0: 1}
    messages.trial_ended(trial)
    assert not messages.is_stopped(trial)
    assert messages.steps == {}


# ---- objectives that ask


ASKING = SearchSettings(space=None, algorithm="random", num_trials=1)


def test_objective_gets_the_values_that_it_asks_for(root: str) -> None:
    cluster = InMemoryCluster()
    asked = distribution_to_json(FloatDistribution(0.0, 1.0))
    with background(new_loop(root, cluster, request_of(search=ASKING))) as loop:
        attempt = cluster.attempt(0)
        assert attempt.task.trial.params == {}
        answer = attempt.ask(1, suggest="x", distribution=asked)
        again = attempt.ask(2, suggest="x", distribution=asked)
        attempt.end(returned(1.0))
    assert 0.0 <= answer["value"] <= 1.0
    assert again["value"] == answer["value"]
    assert loop.run.trials[0].params == {"x": answer["value"]}
    suggested = events(loop.run, "suggested")
    assert [(e["name"], e["value"]) for e in suggested] == [("x", answer["value"])]
    assert load(loop.run.path).trials[0].params == {"x": answer["value"]}


def test_objective_that_asks_for_a_credential_gets_an_error(root: str) -> None:
    cluster = InMemoryCluster()
    asked = distribution_to_json(CategoricalDistribution(["a", "b"]))
    with background(new_loop(root, cluster, request_of(search=ASKING))) as loop:
        attempt = cluster.attempt(0)
        answer = attempt.ask(1, suggest="api_key", distribution=asked)
        attempt.end(returned(1.0))
    assert "look like credentials" in answer["error"]
    assert loop.run.trials[0].params == {}


def test_questions_of_a_lost_attempt_are_not_answered(root: str) -> None:
    cluster = InMemoryCluster()
    asked = distribution_to_json(FloatDistribution(0.0, 1.0))
    with background(new_loop(root, cluster, request_of(search=ASKING))):
        cluster.attempt(0).end(lost())
        second = cluster.attempt(0, 1)
        line = json.dumps({"id": 7, "attempt": 0, "suggest": "y", "distribution": asked})
        storage.append(second.paths.asks, line.encode() + b"\n")
        second.ask(1, suggest="x", distribution=asked)
        second.end(returned(1.0))
    assert [order["id"] for order in second.orders()] == [1]


def test_objective_that_asks_is_pruned_when_it_asks(root: str) -> None:
    search = SearchSettings(
        space=None,
        algorithm="random",
        pruner=optuna.pruners.ThresholdPruner(lower=0.5),
        num_trials=1,
    )
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(search=search))) as loop:
        attempt = cluster.attempt(0)
        attempt.report(0, value=0.9)
        assert attempt.ask(1, should_prune=True)["value"] is False
        attempt.report(1, value=0.1)
        assert attempt.ask(2, should_prune=True)["value"] is True
        attempt.end(pruned())
    assert loop.run.trials[0].state == "PRUNED"
    assert [event["number"] for event in events(loop.run, "stop")] == [0]


def test_objective_that_is_lost_after_the_verdict_hears_it_again(root: str) -> None:
    """A pruner that compares trials at rungs answers only once at each rung."""
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for value, verdicts in ((0.9, [False]), (0.1, [True, False])):
        trial = study.ask()
        trial.report(value, 1)
        assert [trial.should_prune() for _ in verdicts] == verdicts
    search = SearchSettings(space=None, algorithm="random", pruner=pruner, num_trials=2)
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(search=search))) as loop:
        for number, attempt_number, value, end in (
            (0, 0, 0.9, returned(0.9)),
            (1, 0, 0.1, lost()),
            (1, 1, 0.1, pruned()),
        ):
            attempt = cluster.attempt(number, attempt_number)
            attempt.report(1, value=value)
            verdict = attempt.ask(1, should_prune=True)["value"]
            assert verdict is (number == 1), (number, attempt_number)
            attempt.end(end)
    assert [str(trial.state) for trial in loop.run.trials] == ["COMPLETE", "PRUNED"]


def test_verdict_waits_for_reports_that_arrive_after_the_question(root: str) -> None:
    pruner = optuna.pruners.ThresholdPruner(lower=0.5)
    search = SearchSettings(space=None, algorithm="random", pruner=pruner, num_trials=1)
    asked = distribution_to_json(FloatDistribution(0.0, 1.0))
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(search=search))):
        attempt = cluster.attempt(0)
        attempt.send_request(1, num_reports=1, should_prune=True)
        attempt.ask(2, suggest="x", distribution=asked)
        assert [order["id"] for order in attempt.orders()] == [2]
        attempt.report(0, value=0.1)
        assert attempt.await_answer(1)["value"] is True
        attempt.end(pruned())
