"""Callbacks follow a run, and neither slow it down nor fail it."""

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sparkdl.callbacks import Callback
from sparkdl.errors import AllTrialsFailedError, ConfigError, PreflightError, RunStoppedError
from sparkdl.runner.again.resume import resume_run
from sparkdl.runner.loop import callbacks
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runs import Run, Trial
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import request_of
from tests.helpers.processes import eventually

pytestmark = pytest.mark.usefixtures("quick_polls")


def same(attempt: Attempt) -> Outcome:
    return returned(attempt.task.trial.params["x"])


def run_with(root: str, *given: Callback, num_trials: int = 3, **options: Any) -> Run:
    """Run trials one after the other, which return 0, 1, 2 ..."""
    outcome = options.pop("outcome", same)
    request = request_of(num_trials, root=root, callbacks=list(given), **options)
    return execute(request, InMemoryCluster(outcome, num_slots=1))


class Recorder(Callback):
    """Remembers all calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[str] = set()

    def _add(self, method: str, *facts: Any) -> None:
        self.calls.append((method, *facts))
        self.threads.add(threading.current_thread().name)

    def on_trial_start(self, run: Run, trial: Trial) -> None:
        self._add("start", trial.number, str(trial.state), trial.attempts)

    def on_trial_end(self, run: Run, trial: Trial) -> None:
        self._add("end", trial.number, str(trial.state), trial.value)

    def on_best(self, run: Run, trial: Trial) -> None:
        self._add("best", trial.number)

    def on_run_end(self, run: Run) -> None:
        self._add("run", str(run.state))


def _pairs(recorder: Recorder) -> list[tuple[Any, Any]]:
    """The start and the end of each trial."""
    calls = [[c for c in recorder.calls if c[0] == name] for name in ("start", "end")]
    return [*zip(*calls, strict=True)]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_callbacks_get_the_events_in_their_order(root: str) -> None:
    one, two = Recorder(), Recorder()
    values = [1.0, 0.5, 2.0]

    def outcome(attempt: Attempt) -> Outcome:
        return returned(values[attempt.number])

    run = run_with(root, one, two, outcome=outcome)
    assert run.state == "COMPLETE"
    # The next trial may start a moment before the end of one is recorded.
    starts = [call for call in one.calls if call[0] == "start"]
    assert starts == [("start", number, "RUNNING", 1) for number in range(3)]
    assert [call for call in one.calls if call[0] != "start"] == [
        ("end", 0, "COMPLETE", 1.0),
        ("best", 0),
        ("end", 1, "COMPLETE", 0.5),
        ("end", 2, "COMPLETE", 2.0),
        ("best", 2),
        ("run", "COMPLETE"),
    ]
    assert all(one.calls.index(start) < one.calls.index(end) for start, end in _pairs(one))
    assert two.calls == one.calls
    assert one.threads == two.threads == {"sparkdl-callback-Recorder"}


def test_failures_and_restarts_are_told_too(root: str) -> None:
    recorder = Recorder()

    def outcome(attempt: Attempt) -> Outcome:
        return raised("ValueError: no") if attempt.attempt == 0 else returned(1.0)

    with pytest.raises(AllTrialsFailedError):
        run_with(root, recorder, num_trials=1, outcome=lambda attempt: raised("ValueError: no"))
    assert recorder.calls[1:] == [("end", 0, "FAILED", None), ("run", "FAILED")]
    again = Recorder()
    run_with(root, again, num_trials=1, outcome=outcome, max_restarts=1, run_id="two")
    starts = [call for call in again.calls if call[0] == "start"]
    assert starts == [("start", 0, "RUNNING", 1), ("start", 0, "RUNNING", 2)]
    assert [call for call in again.calls if call[0] == "end"] == [("end", 0, "COMPLETE", 1.0)]


def test_end_is_told_of_a_run_that_cannot_start(root: str) -> None:
    recorder = Recorder()
    cluster = InMemoryCluster()
    cluster.problems = ["no module named 'x'"]
    with pytest.raises(PreflightError):
        execute(request_of(2, root=root, callbacks=[recorder]), cluster)
    assert recorder.calls == [("run", "FAILED")]


class Failing(Callback):
    def on_trial_start(self, run: Run, trial: Trial) -> None:
        raise ValueError("the password is hunter22")

    def on_trial_end(self, run: Run, trial: Trial) -> None:
        raise OSError("no route") if trial.number else SystemExit("stop")

    def on_run_end(self, run: Run) -> None:
        raise ValueError("again")

    def remedy(self, run: Run) -> str:
        return f"Look at {run.id}."


def test_callback_that_raises_costs_one_warning_for_each_type(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    run = run_with(root, Failing(), recorder, num_trials=5, secrets=["hunter22"])
    assert run.counts() == {"COMPLETE": 5}
    assert len(recorder.calls) == 16
    texts = warnings_of(caplog)
    assert [text.split(": ")[1] for text in texts] == ["ValueError", "SystemExit", "OSError"]
    assert texts[0].endswith("The run goes on. Look at run.")
    assert "hunter22" not in caplog.text


class Blocked(Callback):
    """Processes nothing before the test allows it."""

    end_timeout_s = 0.05

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.calls: list[int] = []
        self.has_ended = False

    def on_trial_end(self, run: Run, trial: Trial) -> None:
        self.may_go_on.wait(120.0)
        self.calls.append(trial.number)

    def on_run_end(self, run: Run) -> None:
        self.has_ended = True


def test_slow_callback_does_not_hold_the_run(root: str, caplog: pytest.LogCaptureFixture) -> None:
    blocked, recorder = Blocked(), Recorder()
    run = run_with(root, blocked, recorder, num_trials=10)
    assert run.counts() == {"COMPLETE": 10}
    assert recorder.calls[-1] == ("run", "COMPLETE")
    assert not blocked.calls
    late = "the callback Blocked did not end its call within 0.05 s after the run"
    assert len([text for text in warnings_of(caplog) if late in text]) == 1
    blocked.may_go_on.set()  # What is late is not lost as long as the program lives.
    assert eventually(lambda: blocked.has_ended)
    assert blocked.calls == list(range(10))


def test_events_that_wait_are_bounded(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "MAX_WAITING", 3)
    blocked = Blocked()
    run_with(root, blocked, num_trials=20)
    blocked.may_go_on.set()
    assert eventually(lambda: blocked.has_ended)
    assert 3 <= len(blocked.calls) <= 4
    assert sum("3 calls wait, so that further ones are left out" in t for t in warnings_of(caplog))


class Looking(Callback):
    interval_s = 0.01

    def __init__(self) -> None:
        self.states: list[str] = []
        self.seen = threading.Event()

    def on_interval(self, run: Run) -> None:
        self.states.append(str(run.trials[0].state))
        if self.states.count("RUNNING") > 2:
            self.seen.set()


def test_callback_looks_at_the_run_now_and_then(root: str) -> None:
    looking = Looking()

    def outcome(attempt: Attempt) -> Outcome:
        assert looking.seen.wait(120.0)
        return returned(1.0)

    run_with(root, looking, num_trials=1, outcome=outcome)
    num = len(looking.states)
    time.sleep(0.05)
    assert len(looking.states) == num


class GoodEnough(Callback):
    def on_best(self, run: Run, trial: Trial) -> None:
        if trial.number == 1:
            run.cancel()


def test_callback_may_control_its_run(root: str) -> None:
    def outcome(attempt: Attempt) -> Any:
        return same(attempt) if attempt.number < 2 else attempt.wait()

    with pytest.raises(RunStoppedError) as caught:
        run_with(root, GoodEnough(), num_trials=4, outcome=outcome)
    assert caught.value.run.counts() == {"COMPLETE": 2, "CANCELLED": 2}


class Choosing(Callback):
    """Cancels two trials that have not started."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []

    def on_trial_start(self, run: Run, trial: Trial) -> None:
        if trial.number == 0:
            run.cancel(1)
            run.cancel(2)
            self.trials = run.trials[1:3]


def test_trial_that_was_cancelled_before_its_start_is_not_told(root: str) -> None:
    recorder, choosing = Recorder(), Choosing()

    def outcome(attempt: Attempt) -> Outcome:
        assert eventually(lambda: [str(t.state) for t in choosing.trials] == ["CANCELLED"] * 2)
        return same(attempt)

    run = run_with(root, choosing, recorder, num_trials=4, outcome=outcome)
    assert [trial.attempts for trial in run.trials] == [1, 0, 0, 1]
    told = [call[:2] for call in recorder.calls if call[0] in ("start", "end")]
    assert sorted(told) == [("end", 0), ("end", 3), ("start", 0), ("start", 3)]


class Described(Callback):
    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "to": "https://ann:pa55word@host/x", "api_key": "abc123"}


def test_run_json_names_the_callbacks_without_credentials(root: str) -> None:
    run = run_with(root, Described(), Recorder(), num_trials=1)
    text = Path(run.path, "run.json").read_text()
    assert json.loads(text)["callbacks"] == [
        {"callback": "Described", "to": "https://***@host/x", "api_key": "***"},
        {"callback": "Recorder"},
    ]
    assert "pa55word" not in text and "abc123" not in text


def test_resumed_run_has_the_callbacks_of_its_call(root: str) -> None:
    first, second = Recorder(), Recorder()

    def outcome(attempt: Attempt) -> Outcome:
        return raised("ValueError: no") if attempt.number == 1 else same(attempt)

    run = run_with(root, first, outcome=outcome)
    options = {"callbacks": [second], "progress": False, "max_failed_trials": None}
    cluster = InMemoryCluster(same)
    resume_run(run.path, None, {}, frozenset({"failed"}), None, options, cluster)
    assert first.calls[-1] == ("run", "COMPLETE")
    # Trial 2 is the best already.
    assert second.calls == [
        ("start", 1, "RUNNING", 2),
        ("end", 1, "COMPLETE", 1.0),
        ("run", "COMPLETE"),
    ]


class Misspelt(Callback):
    def on_trial_ended(self, run: Run, trial: Trial) -> None:
        """Never called."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Recorder(), r"callbacks is a Recorder; expected a list"),
        ([Recorder], r"the class Recorder: create an object, Recorder\(\.\.\.\)"),
        ([print], r"callbacks contains a builtin_function_or_method\. Expected objects"),
        ([Misspelt()], r"on_trial_ended, which is never called\. Did you mean 'on_trial_end'\?"),
    ],
)
def test_wrong_callbacks_are_refused_before_anything_starts(
    root: str, given: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        execute(request_of(1, root=root, callbacks=given), InMemoryCluster(same))
    assert not list(Path(root).iterdir())
