"""The driver's loop without Spark: order, concurrency, outcomes, cancellation, the journal."""

import errno
import json
import signal
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from sparkdl.cluster.plan import Resources, Role
from sparkdl.cluster.preflight import REPORT_SCHEMA
from sparkdl.cluster.spark_errors import job_failed
from sparkdl.errors import (
    AllTrialsFailedError,
    ConfigError,
    NoCompleteTrialError,
    PreflightError,
    RunStoppedError,
    TrainingFailedError,
)
from sparkdl.files import storage
from sparkdl.files.jsonl import LogTail
from sparkdl.files.layout import RunPaths
from sparkdl.runner.control.loaded_run import LoadedRunHandle
from sparkdl.runner.control.run_handle import RunHandle
from sparkdl.runner.loop.submitted import SubmittedTrials
from sparkdl.runner.loop.trial_loop import TrialLoop
from sparkdl.runner.pipeline import preflight
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runs import RunState, Trial
from sparkdl.runs.events import RunStarted
from sparkdl.runs.history import load
from sparkdl.runs.journal import Journal, read_journal, scan_journal
from sparkdl.runs.opening import continue_run
from sparkdl.runs.owner import Owner, living_owner, newest_claim
from sparkdl.runs.states import Failure
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Space
from sparkdl.search.trial_source import TrialSource
from tests.helpers.in_memory_cluster import (
    Attempt,
    InMemoryCluster,
    Outcome,
    killed,
    lost,
    not_importable,
    pruned,
    raised,
    returned,
    unusable,
)
from tests.helpers.loops import (
    background,
    continued_loop,
    events,
    journal_states,
    new_loop,
    request_of,
    run_trials,
)
from tests.helpers.processes import eventually

pytestmark = pytest.mark.usefixtures("quick_polls")


def same(attempt: Attempt) -> Outcome:
    """The training function returns its parameter."""
    return returned(attempt.task.trial.params["x"])


def test_a_result_whose_files_were_not_copied_is_complete_and_says_so(root: str) -> None:
    note = "files of the trial could not be copied"
    cluster = InMemoryCluster(lambda attempt: replace(same(attempt), note=note))
    run = run_trials(root, cluster, 1)
    assert (run.trials[0].state, run.trials[0].note) == ("COMPLETE", note)
    assert load(run.path).trials[0].note == note


# ---- order and number


@pytest.mark.parametrize("num_slots", [1, 3, 8])
def test_loop_runs_each_trial_once_in_order(root: str, num_slots: int) -> None:
    cluster = InMemoryCluster(same, num_slots)
    run = run_trials(root, cluster, 7)
    assert run.state == "COMPLETE"
    assert [trial.value for trial in run.trials] == [float(i) for i in range(7)]
    assert sorted(cluster.submitted) == list(range(7))
    assert sorted(cluster.started) == [(i, 0) for i in range(7)]
    assert cluster.max_running <= num_slots


def test_loop_with_one_slot_starts_trials_in_order(root: str) -> None:
    cluster = InMemoryCluster(same, 1)
    run_trials(root, cluster, 6)
    assert [number for number, _ in cluster.started] == list(range(6))


def test_task_gets_the_parameters_seed_and_cores_of_its_trial(root: str) -> None:
    cluster = InMemoryCluster(num_slots=4)
    with background(new_loop(root, cluster, request_of(2, seed=1, metric="score"))) as loop:
        attempts = [cluster.attempt(number) for number in range(2)]
        for attempt in attempts:
            attempt.end(returned(1.0))
    assert [a.task.trial.params for a in attempts] == [{"x": 0.0}, {"x": 1.0}]
    assert [a.task.trial.seed for a in attempts] == [trial.seed for trial in loop.run.trials]
    assert len({a.task.trial.seed for a in attempts}) == 2
    assert [a.task.cores for a in attempts] == [2, 2]  # Two trials share four cores.
    assert {a.task.trial.metrics for a in attempts} == {("score",)}


# ---- concurrency


def test_loop_runs_as_many_trials_as_there_are_slots(root: str) -> None:
    cluster = InMemoryCluster(num_slots=3)
    with background(new_loop(root, cluster, request_of(5))):
        for number in range(3):
            cluster.attempt(number)
        assert cluster.num_running == 3
        for number in range(5):
            cluster.attempt(number).end(returned(1.0))
    assert cluster.max_running == 3


def test_parallelism_limits_trials_that_are_submitted(root: str) -> None:
    cluster = InMemoryCluster(num_slots=4)
    with background(new_loop(root, cluster, request_of(5, parallelism=2))):
        for number in range(5):
            attempt = cluster.attempt(number)
            cluster.attempt(min(number + 1, 4))  # The next one runs beside it.
            assert len(cluster.submitted) <= number + 2
            attempt.end(returned(1.0))
    assert cluster.max_running == 2


def test_loop_submits_some_trials_ahead_after_the_first_have_started(root: str) -> None:
    cluster = InMemoryCluster(num_slots=4)
    with background(new_loop(root, cluster, request_of(9))):
        cluster.await_submitted(5)  # Four run, and a quarter of them waits.
        assert cluster.num_running == 4
        for number in range(9):
            cluster.attempt(number).end(returned(1.0))


# ---- what comes out


@pytest.mark.parametrize(
    ("outcome", "state", "error"),
    [
        (returned(0.5), "COMPLETE", None),
        (raised("ValueError: no"), "FAILED", "ValueError: no"),
        (raised("killed by SIGSEGV", Failure.SIGNAL), "FAILED", "killed by SIGSEGV"),
        (pruned(), "PRUNED", None),
        (unusable("too large"), "INVALID", "InvalidTrial: too large"),
        (returned(float("nan")), "INVALID", "metric 'value' is nan; expected a finite number"),
    ],
)
def test_outcome_of_a_task_is_the_state_of_its_trial(
    root: str, outcome: Outcome, state: str, error: str | None
) -> None:
    cluster = InMemoryCluster(lambda a: outcome if a.number == 0 else returned(1.0))
    run = run_trials(root, cluster, 2)
    assert run.trials[0].state == state
    assert (run.trials[0].error or "").split("\n")[0] == (error or "")
    assert run.trials[1].state == "COMPLETE"
    assert run.state == "COMPLETE"  # One complete trial is enough.


@pytest.mark.parametrize(("direction", "best"), [("max", 3), ("min", 1)])
def test_best_trial_follows_the_direction(root: str, direction: str, best: int) -> None:
    values = [0.5, 0.1, 0.3, 0.9]
    cluster = InMemoryCluster(lambda a: returned(score=values[a.number], other=a.number))
    run = run_trials(root, cluster, 4, metric="score", direction=direction)
    assert run.best.number == best
    assert [t.value for t in run.trials] == values
    assert load(run.path).best.number == best


def test_several_metrics_have_no_best_trial_but_a_front(root: str) -> None:
    points = [(1.0, 4.0), (2.0, 5.0), (1.5, 9.5)]
    cluster = InMemoryCluster(lambda a: returned(score=points[a.number][0], ms=points[a.number][1]))
    objectives = {"score": "max", "ms": "min"}
    run = run_trials(root, cluster, 3, objectives=objectives, metric="score")
    assert [trial.number for trial in run.pareto] == [0, 1]
    with pytest.raises(NoCompleteTrialError, match="no single trial is the best"):
        _ = run.best
    assert [t.metrics["ms"] for t in run.trials] == [4.0, 5.0, 9.5]
    missing = InMemoryCluster(lambda a: returned(score=1.0))
    run = run_trials(root, missing, 1, objectives=objectives, metric="score", run_id="two")
    assert run.trials[0].state == "INVALID"
    assert "'ms'" in (run.trials[0].error or "")


def test_metric_that_was_reported_counts_where_none_was_returned(root: str) -> None:
    def reports(attempt: Attempt) -> Outcome:
        attempt.report(0, score=1.0)
        attempt.report(1, score=2.0)
        return returned()

    run = run_trials(root, InMemoryCluster(reports), 1, metric="score")
    assert run.trials[0].value == 2.0
    assert run.trials[0].metrics == {"score": 2.0}


def test_job_that_is_cancelled_outside_the_run_starts_again_once(root: str) -> None:
    def fails(attempt: Attempt) -> Outcome:
        if attempt.number == 0 or (attempt.number == 1 and attempt.attempt == 0):
            raise killed()
        return returned(1.0)

    cluster = InMemoryCluster(fails)
    loop = new_loop(root, cluster, request_of(3))
    with pytest.raises(RunStoppedError, match="1 trial was cancelled outside this run") as caught:
        loop.execute()
    run = caught.value.run
    assert run is loop.run
    assert [str(trial.state) for trial in run.trials] == ["CANCELLED", "COMPLETE", "COMPLETE"]
    assert [trial.attempts for trial in run.trials] == [2, 2, 1]
    assert run.trials[0].error == "its Spark job was cancelled outside this run"
    assert (load(run.path).state, run.state) == ("CANCELLED", "CANCELLED")
    again = InMemoryCluster(same)
    continued_loop(run.path, again, request_of(3)).execute()
    assert again.submitted == [0]


@pytest.mark.parametrize(
    "end",
    [
        job_failed(RuntimeError("Job 5 cancelled because SparkContext was shut down")),
        job_failed(Py4JNetworkError("Answer from Java side is empty")),
        AttributeError("'NoneType' object has no attribute 'addJobTag'"),
        ConnectionRefusedError(111, "Connection refused"),
    ],
)
def test_spark_that_ends_is_no_failure_of_a_trial(root: str, end: Exception) -> None:
    cluster = InMemoryCluster(num_slots=3)
    loop = new_loop(root, cluster, request_of(4, parallelism=2))
    handle = RunHandle(loop)
    handle.start()
    cluster.attempt(0).end(returned(0.0))
    attempts = [cluster.attempt(1), cluster.attempt(2)]
    cluster.cancel = raising(end)  # type: ignore[method-assign]
    cluster.slots = raising(end)  # type: ignore[method-assign]
    for attempt in attempts:
        attempt.end(end)
    with pytest.raises(RunStoppedError, match="Spark has ended"):
        handle.wait()
    assert loop.run.counts() == {"COMPLETE": 1, "CANCELLED": 3}
    assert loop.run.state == "CANCELLED"
    assert loop.run.failed == []
    again = InMemoryCluster(same)
    resumed = continued_loop(loop.run.path, again, request_of(4))
    resumed.execute()
    assert sorted(again.submitted) == [1, 2, 3]
    assert resumed.run.counts() == {"COMPLETE": 4}


def raising(exc: BaseException) -> Any:
    def raises(*args: Any) -> Any:
        raise exc

    return raises


def test_max_losses_also_ends_what_spark_repeats_by_itself(root: str) -> None:
    cluster = InMemoryCluster(num_slots=2)
    with background(new_loop(root, cluster, request_of(2, max_losses=0))) as loop:
        cluster.attempt(1).end(returned(1.0))
        cluster.attempt(0).repeat()
    lost_trial = loop.run.trials[0]
    assert (str(lost_trial.state), lost_trial.failure) == ("FAILED", "lost executor")
    assert "max_losses=0" in (lost_trial.error or "")
    assert "sparkdl:run:0" in cluster.cancelled


def test_run_without_a_complete_trial_raises_the_first_failure(root: str) -> None:
    cluster = InMemoryCluster(lambda a: raised(f"ValueError: {a.number}"))
    loop = new_loop(root, cluster, request_of(2))
    with pytest.raises(AllTrialsFailedError, match=r"no trial of run run completed.*ValueError"):
        loop.execute()
    assert loop.run.state == "FAILED"
    assert newest_claim(RunPaths(loop.run.path)).process is None


# ---- cancellation


def test_cancel_of_one_trial_leaves_the_others(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(3))) as loop:
        cluster.attempt(0), cluster.attempt(1)
        loop.cancel(0)
        for number in (1, 2):
            cluster.attempt(number).end(returned(1.0))
    assert [str(t.state) for t in loop.run.trials] == ["CANCELLED", "COMPLETE", "COMPLETE"]
    assert loop.run.trials[0].error == "cancelled"
    assert loop.run.state == "COMPLETE"


def test_cancel_of_a_trial_that_waits_never_submits_it(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(3, parallelism=1))) as loop:
        first = cluster.attempt(0)
        loop.cancel(1)
        first.end(returned(1.0))
        cluster.attempt(2).end(returned(1.0))
    assert cluster.submitted == [0, 2]
    assert loop.run.trials[1].state == "CANCELLED"
    assert loop.run.trials[1].attempts == 0


def test_cancel_of_the_run_ends_all_trials(root: str) -> None:
    cluster = InMemoryCluster(num_slots=2)
    with background(new_loop(root, cluster, request_of(5))) as loop:
        cluster.attempt(0).end(returned(1.0))
        cluster.attempt(1), cluster.attempt(2)
        loop.cancel(None)
    states = [str(trial.state) for trial in loop.run.trials]
    assert states == ["COMPLETE"] + ["CANCELLED"] * 4
    assert (loop.run.state, loop.run.reason) == ("CANCELLED", "cancelled")
    assert loop.run.trials[4].error == "the run was stopped: cancelled"
    assert "sparkdl:run" in cluster.cancelled
    assert cluster.num_running == 0


def test_trial_that_completes_while_its_run_is_cancelled_stays_complete(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(1))) as loop:
        attempt = cluster.attempt(0)
        attempt.end(returned(1.0))
        loop.cancel(None)
    assert loop.run.trials[0].state == "COMPLETE"


# ---- what ends the run


class Broken:
    """An observer that always raises."""

    def trial_started(self, trial: Trial, attempt: int) -> None:
        raise OSError("the terminal is gone")

    def trial_ended(self, trial: Trial) -> None:
        raise ValueError("no figure")

    def run_ended(self) -> None:
        raise RuntimeError("no report")


def test_exception_of_an_observer_does_not_end_the_run(root: str) -> None:
    loop = new_loop(root, InMemoryCluster(same), request_of(4), [Broken()])
    loop.execute()
    assert loop.run.counts() == {"COMPLETE": 4}


def test_display_that_cannot_read_or_write_does_not_end_the_run(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: Any) -> Any:
        raise OSError(errno.EIO, "the disk of the logs is gone")

    monkeypatch.setattr(LogTail, "lines", fails)
    monkeypatch.setattr("sparkdl.runner.display.progress.tqdm.write", fails)
    run = execute(request_of(8, root=root, progress=True), InMemoryCluster(same))
    assert run.counts() == {"COMPLETE": 8}
    # One warning for each kind of failure, although the display fails at each look.
    warnings = [r.message for r in caplog.records if "the display of the run failed" in r.message]
    assert 1 <= len(warnings) <= 4


def test_store_that_fails_for_a_moment_does_not_end_the_run(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver cannot read what tasks write; their results come through Spark."""
    read_new, num_calls = storage.read_new, 0

    def fails_often(offsets: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 3:
            raise OSError(errno.ESTALE, "stale file handle")
        return read_new(offsets)

    monkeypatch.setattr(storage, "read_new", fails_often)
    search = SearchSettings(space=Space.of({"x": [*range(9)]}), algorithm="random", num_trials=9)
    run = run_trials(root, InMemoryCluster(same), search=search)
    assert run.counts() == {"COMPLETE": 9}
    assert num_calls > 9


def test_exception_of_the_source_ends_the_run_and_its_trials(root: str) -> None:
    class BrokenSource(TrialSource):
        def observe_end(self, trial: Trial) -> None:
            raise OSError("disk full\nat the second line")

    cluster = InMemoryCluster(num_slots=2)
    loop = new_loop(root, cluster, request_of(4))
    loop.ends.source = BrokenSource()
    handle = RunHandle(loop)
    handle.start()
    cluster.attempt(1)
    cluster.attempt(0).end(returned(1.0))
    with pytest.raises(OSError, match="disk full") as caught:
        handle.wait()
    assert caught.value.run is loop.run  # type: ignore[attr-defined]
    assert (loop.run.state, loop.run.reason) == ("FAILED", "disk full")
    states = [str(trial.state) for trial in load(loop.run.path).trials]
    assert states == ["COMPLETE", "CANCELLED", "CANCELLED", "CANCELLED"]
    finals = [journal_states(loop.run, number)[-1:] for number in range(4)]
    assert finals == [["COMPLETE"], ["CANCELLED"], ["CANCELLED"], ["CANCELLED"]]
    assert journal_states(loop.run, 0).count("COMPLETE") == 1
    assert living_owner(RunPaths(loop.run.path)) is None


def test_run_whose_journal_cannot_be_written_cancels_its_jobs_and_is_released(root: str) -> None:
    cluster = InMemoryCluster(num_slots=2)
    loop = new_loop(root, cluster, request_of(4))
    handle = RunHandle(loop)
    handle.start()
    cluster.attempt(1)
    record = loop.opened.record

    def fails(*events: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    object.__setattr__(loop.opened, "record", fails)
    cluster.attempt(0).end(returned(1.0))
    with pytest.raises(OSError, match="no space left"):
        handle.wait()
    assert "sparkdl:run" in cluster.cancelled
    assert cluster.num_running == 0
    assert loop.run.state == "FAILED"
    assert living_owner(RunPaths(loop.run.path)) is None
    object.__setattr__(loop.opened, "record", record)
    again = InMemoryCluster(same)
    resumed = continued_loop(loop.run.path, again, request_of(4))
    resumed.execute()
    assert resumed.run.counts() == {"COMPLETE": 4}


def test_driver_whose_run_another_driver_has_taken_over_stops(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl.runs.owner.BEAT_S", 0.02)
    cluster = InMemoryCluster(num_slots=2)
    with background(new_loop(root, cluster, request_of(4))) as loop:
        cluster.attempt(0).end(returned(1.0))
        cluster.attempt(2)
        states = [["RUNNING", "COMPLETE"], ["RUNNING"], ["RUNNING"]]
        assert eventually(lambda: [journal_states(loop.run, n) for n in range(3)] == states)
        paths = RunPaths(loop.run.path)
        read = scan_journal(paths.journal)
        other = Owner(paths)
        other.claim(2)
        journal = Journal(paths.journal, 2, read.last)
        journal.write([RunStarted()])
    assert (loop.run.state, loop.run.reason) == (
        RunState.FAILED,
        "another driver has taken over this run",
    )
    assert loop.run.counts() == {"COMPLETE": 1, "CANCELLED": 3}
    assert cluster.num_running == 0
    assert read_journal(paths.journal)[:-1] == read.events  # The old driver wrote nothing more.
    assert not storage.exists(paths.summary)
    assert living_owner(paths)
    other.release()


def test_run_goes_on_while_its_directory_cannot_be_written(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sparkdl.runs.journal.pause_s", lambda failures: 0.01)
    cluster = InMemoryCluster(num_slots=1)
    append, is_full = storage.append, threading.Event()

    def append_unless_full(url: str, data: bytes) -> None:
        if is_full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device", url)
        append(url, data)

    monkeypatch.setattr(storage, "append", append_unless_full)
    with background(new_loop(root, cluster, request_of(3))) as loop:
        cluster.attempt(0).end(returned(0.0))
        first = cluster.attempt(1)
        is_full.set()
        first.end(returned(1.0))
        last = cluster.attempt(2)
        is_full.clear()
        last.end(returned(2.0))
    assert loop.run.counts() == load(loop.run.path).counts() == {"COMPLETE": 3}
    assert load(loop.run.path).trials == loop.run.trials
    assert caplog.text.count("the run directory cannot be written") <= 1


def test_run_whose_directory_is_never_written_again_ends_its_jobs_and_releases_it(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl.runs.journal.RETRY_S", 0.1)
    cluster = InMemoryCluster(num_slots=2)
    loop = new_loop(root, cluster, request_of(3))
    append = storage.append

    def fail(url: str, data: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system", url)

    with background(loop):
        cluster.attempt(0), cluster.attempt(1)
        monkeypatch.setattr(storage, "append", fail)
        loop.cancel(None)
    assert (str(loop.run.state), cluster.num_running) == ("CANCELLED", 0)
    assert living_owner(RunPaths(loop.run.path)) is None
    monkeypatch.setattr(storage, "append", append)
    opened = continue_run(loop.run.path)
    assert len(opened.run.trials) == 3
    opened.owner.release()


def test_interrupt_of_the_user_cancels_the_run(root: str) -> None:
    class Interrupts(TrialSource):
        """Ctrl-C arrives while the loop asks its source."""

        num_left = 1.0

        def next(self) -> Trial:
            raise KeyboardInterrupt

    loop = new_loop(root, InMemoryCluster(same), request_of(1))
    loop.ends.source = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        loop.execute()
    assert (loop.run.state, loop.run.reason) == ("CANCELLED", "interrupted")


def test_interrupted_verb_leaves_its_run_and_a_short_traceback(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = InMemoryCluster()
    ended, num_calls = SubmittedTrials.wait_for_ended, 0

    def interrupted(self: SubmittedTrials, timeout_s: float) -> Any:
        nonlocal num_calls
        # Not of a run in the background that another test left.
        num_calls += threading.current_thread() is threading.main_thread()
        if num_calls == 3:
            raise KeyboardInterrupt
        return ended(self, timeout_s)

    monkeypatch.setattr(SubmittedTrials, "wait_for_ended", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        execute(request_of(2, root=root), cluster)
    run = caught.value.run  # type: ignore[attr-defined]
    assert (run.state, run.reason) == ("CANCELLED", "interrupted")
    assert cluster.num_running == 0
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 4
    assert caught.value.__suppress_context__


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_a_finalizer_is_not_lost(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ignores what the handler of a signal raises there; py4j has many finalizers."""

    class Released:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    objects = [Released()]
    ended = SubmittedTrials.wait_for_ended

    def release(self: SubmittedTrials, timeout_s: float) -> Any:
        if threading.current_thread() is threading.main_thread():
            objects.clear()
        return ended(self, timeout_s)

    monkeypatch.setattr(SubmittedTrials, "wait_for_ended", release)
    before = signal.getsignal(signal.SIGINT)
    cluster = InMemoryCluster()
    with pytest.raises(KeyboardInterrupt) as caught:
        execute(request_of(2, root=root), cluster)
    run = caught.value.run  # type: ignore[attr-defined]
    assert (run.state, run.reason) == ("CANCELLED", "interrupted")
    assert cluster.num_running == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_run_in_the_background_that_was_cancelled_says_so_to_who_waits(root: str) -> None:
    cluster = InMemoryCluster()
    run = execute(request_of(2, root=root, wait=False), cluster)
    cluster.attempt(0).end(returned(1.0))
    run.cancel()
    with pytest.raises(
        RunStoppedError, match=r"launch run ended CANCELLED \(cancelled\)"
    ) as caught:
        run.wait()
    assert caught.value.run is run
    assert f"To finish it: experiment.resume({run.path!r})" in str(caught.value)
    with pytest.raises(ConfigError, match="has no trial 99; it has the trials 0 to 1"):
        run.cancel(99)


def test_executor_that_cannot_run_the_program_ends_the_run(root: str) -> None:
    cluster = InMemoryCluster(lambda a: not_importable("executor on host h lacks numpy"))
    loop = new_loop(root, cluster, request_of(3, parallelism=1))
    with pytest.raises(PreflightError, match="trial 0: executor on host h lacks numpy"):
        loop.execute()
    assert loop.run.state == "FAILED"
    assert {str(t.state) for t in loop.run.trials} == {"CANCELLED"}
    assert cluster.started == [(0, 0)]


def test_preflight_problem_is_raised_before_any_trial(root: str) -> None:
    cluster = InMemoryCluster(same)
    cluster.problems = [None, "executor on host h lacks numpy"]
    with pytest.raises(PreflightError, match="lacks numpy"):
        execute(request_of(2, root=root), cluster)
    assert cluster.submitted == []
    run = load(f"{root}/run")
    assert run.state == "FAILED"
    assert {str(t.state) for t in run.trials} == {"CANCELLED"}


class BusyCluster(InMemoryCluster):
    """All slots are taken by another run until the preflight is cancelled."""

    def __init__(self) -> None:
        super().__init__(same)
        self.waits, self.is_cancelled = threading.Event(), threading.Event()

    def submit(self, task: Any, schema: str, **kwargs: Any) -> Any:
        if schema != REPORT_SCHEMA:
            return super().submit(task, schema, **kwargs)
        self.waits.set()
        assert self.is_cancelled.wait(120)
        raise killed()

    def cancel(self, tag: str) -> None:
        if tag == "sparkdl:run:preflight":
            self.is_cancelled.set()


def test_preflight_that_waits_for_a_slot_is_left_to_the_trials(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "WAIT_S", 0.1)
    cluster = BusyCluster()
    run = execute(request_of(2, root=root), cluster)
    assert cluster.is_cancelled.is_set()
    assert run.counts() == {"COMPLETE": 2}


def test_commands_are_carried_out_while_the_preflight_waits(root: str) -> None:
    cluster = BusyCluster()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(execute, request_of(2, root=root), cluster)
        assert cluster.waits.wait(120)
        run = load(f"{root}/run")
        run.attach(LoadedRunHandle(run))
        run.cancel(0)
        assert not cluster.is_cancelled.is_set()
        run.cancel()
        with pytest.raises(RunStoppedError, match="cancelled"):
            ended.result(120)
    assert cluster.submitted == []
    assert load(run.path).counts() == {"CANCELLED": 2}


def test_run_that_is_cancelled_before_its_preflight_submits_nothing(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrialLoop, "look", lambda loop: loop.cancel(None))
    cluster = BusyCluster()
    with pytest.raises(RunStoppedError, match="cancelled"):
        execute(request_of(2, root=root), cluster)
    assert not cluster.waits.is_set()


def test_preflight_is_cancelled_again_until_its_job_ends(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(BusyCluster):
        """The job does not exist yet at the first order, and Spark fails at the second."""

        num_orders = 0

        def cancel(self, tag: str) -> None:
            self.num_orders += 1
            if self.num_orders == 2:
                raise ConnectionError("Spark does not answer")
            if self.num_orders > 2:
                super().cancel(tag)

    monkeypatch.setattr(preflight, "WAIT_S", 0.1)
    assert execute(request_of(2, root=root), Late()).counts() == {"COMPLETE": 2}


def test_spark_that_ends_during_the_preflight_is_no_failure(root: str) -> None:
    class Ended(InMemoryCluster):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            raise job_failed(ConnectionRefusedError(111, "Connection refused"))

    with pytest.raises(RunStoppedError, match=r"Spark has ended: .*Connection refused"):
        execute(request_of(2, root=root), Ended())
    assert load(f"{root}/run").state == "CANCELLED"


def test_spark_that_ends_before_the_first_trial_is_no_failure(root: str) -> None:
    class Ends(InMemoryCluster):
        num_asked = 0

        @property
        def application(self) -> str:
            self.num_asked += 1
            if self.num_asked > 1:  # The first time is before the preflight.
                raise ConnectionRefusedError(111, "Connection refused")
            return "memory-1"

    loop = new_loop(root, Ends(), request_of(3))
    with pytest.raises(RunStoppedError, match=r"Spark has ended: .*Connection refused"):
        loop.execute()
    assert (loop.run.state, loop.run.counts()) == ("CANCELLED", {"CANCELLED": 3})
    assert load(loop.run.path).counts() == {"CANCELLED": 3}


def test_execute_keeps_the_program_and_returns_the_run(root: str) -> None:
    run = execute(request_of(3, root=root, metric="score"), InMemoryCluster(score))
    assert run.best.number == 2
    assert storage.exists(RunPaths(run.path).program)
    description = json.loads(storage.read(RunPaths(run.path).run))
    assert description["spark"] == {
        "master": "memory",
        "application": "memory-1",
        "version": "4.3.0",
    }
    # A finished run is returned as it is.
    idle = InMemoryCluster(score)
    again = execute(request_of(3, root=root, metric="score", if_exists="resume"), idle)
    assert again.best.number == 2
    assert idle.submitted == []


def score(attempt: Attempt) -> Outcome:
    return returned(score=attempt.task.trial.params["x"])


def test_background_run_returns_at_once(root: str) -> None:
    cluster = InMemoryCluster()
    run = execute(request_of(1, root=root, wait=False), cluster)
    assert run.state == "RUNNING"
    cluster.attempt(0).end(returned(1.0))
    assert run.wait().state == "COMPLETE"


# ---- gangs


def gang(root: str, cluster: InMemoryCluster, **options: Any) -> Any:
    roles = (Role(name="worker", count=2),)
    return new_loop(root, cluster, request_of(1, kind="allreduce", roles=roles, **options))


def test_gang_returns_what_its_chief_returned(root: str) -> None:
    cluster = InMemoryCluster(lambda a: [returned(1.0), returned(2.0)])
    loop = gang(root, cluster)
    loop.execute()
    assert loop.run.result == 1.0
    assert not storage.exists(loop.run.trials[0].path + "/ranks")


def test_gang_whose_rank_fails_is_failed_with_the_name_of_the_rank(root: str) -> None:
    cluster = InMemoryCluster(lambda a: [returned(1.0), raised("ValueError: mine")])
    loop = gang(root, cluster)
    with pytest.raises(TrainingFailedError, match=r"worker 1 \(rank 1\).*ValueError: mine"):
        loop.execute()
    error = Path(loop.run.trials[0].path, "error.txt").read_text()
    assert error.startswith("worker 1 (rank 1) on host localhost: ValueError: mine")


def test_gang_whose_port_was_taken_starts_again(root: str) -> None:
    def taken_twice(attempt: Attempt) -> Outcome:
        if attempt.attempt < 2:
            return raised("OSError: Address already in use", Failure.PORT)
        return returned(1.0)

    cluster = InMemoryCluster(taken_twice)
    loop = gang(root, cluster)
    loop.execute()
    assert loop.run.trials[0].attempts == 3


def test_gang_that_loses_its_slots_waits_and_then_fails(root: str) -> None:
    conf = {"spark.sparkdl.startTimeoutS": "0.05"}
    cluster = InMemoryCluster(num_slots=2, conf=conf)
    loop = gang(root, cluster)
    loop.prepared.concurrency.recount = lambda: None  # The loss is seen at once.
    loop.prepared.concurrency.slots = cluster.slots(Resources(), 1)
    with pytest.raises(TrainingFailedError, match=r"start deadline: 2 slots are needed"):
        loop.execute()
    trial = loop.run.trials[0]
    assert trial.failure == Failure.DEADLINE
    assert trial.error.endswith("Before: it had not started")
    assert cluster.submitted == []


# ---- the journal


def test_journal_has_every_state_in_order(root: str) -> None:
    def twice(attempt: Attempt) -> Outcome:
        if attempt.attempt == 0:
            raise lost()
        return returned(2.0)

    run = run_trials(root, InMemoryCluster(twice), 1)
    kinds = [event["event"] for event in events(run)]
    assert kinds == ["start", "trials", "trial", "trial", "trial", "trial", "trial", "end"]
    states = ["RUNNING", "LOST", "WAITING", "RUNNING", "COMPLETE"]
    assert journal_states(run, 0) == states
    end = events(run, "end")[0]
    assert end["state"] == "COMPLETE"
    assert "reason" not in end
    final = events(run, "trial")[-1]
    assert (final["attempt"], final["value"], final["outputs"]) == (1, 2.0, {"value": 2.0})


def test_journal_read_back_is_the_run(root: str) -> None:
    outcomes = [returned(1.0), raised("ValueError: no"), pruned(), unusable("a set")]
    run = run_trials(root, InMemoryCluster(lambda a: outcomes[a.number]), 4)
    again = load(run.path)
    assert again.trials == run.trials
    assert (again.state, again.reason, again.duration_s) == (
        RunState.COMPLETE,
        None,
        run.duration_s,
    )


def test_observers_follow_the_run(root: str) -> None:
    calls: list[tuple[Any, ...]] = []

    class Notes:
        def trial_started(self, trial: Trial, attempt: int) -> None:
            calls.append(("started", trial.number, attempt, str(trial.state)))

        def trial_ended(self, trial: Trial) -> None:
            calls.append(("ended", trial.number, str(trial.state)))

        def run_ended(self) -> None:
            calls.append(("run ended", str(loop.run.state)))

    cluster = InMemoryCluster(same)
    loop = new_loop(root, cluster, request_of(2, parallelism=1), [Notes()])
    loop.execute()
    assert calls == [
        ("started", 0, 0, "RUNNING"),
        ("ended", 0, "COMPLETE"),
        ("started", 1, 0, "RUNNING"),
        ("ended", 1, "COMPLETE"),
        ("run ended", "COMPLETE"),
    ]
