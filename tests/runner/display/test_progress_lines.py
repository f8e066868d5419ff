"""Lines that show, in a log, that a run goes on."""

import io
import math
import re
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from sparkdl.runner.display import progress, progress_lines, waiting
from sparkdl.runner.display.waiting import waiting_for_executors
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runs import Trial, TrialState
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import request_of
from tests.helpers.processes import eventually

pytestmark = pytest.mark.usefixtures("quick_polls")


# The line while the first two trials run, and one after the first of them has ended.
BEGUN = r"0 of 6 trials complete, 2 running, after \d+ s; trial [01] reported score=0.25 at step 3"
LATER = r"complete, .*best score .* left"


def until_shown(attempt: Attempt) -> Outcome:
    """Each trial goes on until the line of its time was shown."""
    attempt.report(3, score=0.25)
    line = BEGUN if attempt.number < 2 else LATER
    assert eventually(lambda: re.search(line, sys.stdout.getvalue()))  # type: ignore[attr-defined]
    return returned(score=attempt.task.trial.params["x"])


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_lines, "FIRST_S", 0.05)
    monkeypatch.setattr(progress_lines, "NUM_FIRST", math.inf)
    monkeypatch.setattr(progress, "LINE_S", 0.0)


@pytest.mark.usefixtures("quick_beats")
def test_log_without_a_terminal_has_a_line_now_and_then(root: str, capsys: Any) -> None:
    options = {"root": root, "metric": "score", "progress": True}
    execute(request_of(6, **options), InMemoryCluster(until_shown))
    lines = capsys.readouterr().out.splitlines()
    first, later = ([bool(re.search(p, line)) for line in lines] for p in (BEGUN, LATER))
    assert first.index(True) < later.index(True)


def test_lines_are_written_whole(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is one write, so that output of other threads cannot split it."""

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    writes: list[str] = []
    monkeypatch.setattr(sys, "stdout", Stream())
    options = {"root": root, "metric": "score", "progress": True, "logs": "all"}
    execute(request_of(3, **options), InMemoryCluster(lambda attempt: returned(score=1.0)))
    written = [text for text in writes if text]
    assert len(written) > 3
    assert [text for text in written if not text.endswith("\n")] == []


def test_lines_come_each_minute_at_first_and_later_one_in_five_minutes() -> None:
    times = progress_lines.LineTimes(1000.0)
    shown_s = [second for second in range(1000, 3100) if times.is_due(second)]
    assert shown_s == [*range(1060, 1601, 60), 1900, 2200, 2500, 2800]


def ended(seconds: float) -> Trial:
    return Trial(0, {}, "", state=TrialState.COMPLETE, spans=[(0.0, seconds)])


def running(since_s: float) -> Trial:
    return Trial(0, {}, "", state=TrialState.RUNNING, spans=[(since_s, None)])


@pytest.mark.parametrize(
    ("trials", "total", "at_once", "left_s"),
    [
        ([], 4, 2, None),
        ([ended(60)], math.inf, 2, None),
        ([running(0)], 4, 2, None),
        ([ended(60)], 5, 1, 240.0),
        ([ended(60), ended(120)], 4, 2, 90.0),
        ([ended(60), running(80)], 3, 1, 40.0 + 60.0),
        ([ended(60), running(10)], 3, 1, 0.0 + 60.0),  # It takes longer than the others did.
        ([ended(60), running(80), running(95)], 3, 2, 55.0),  # The last one begun ends last.
        ([ended(60)], 1, 2, 0.0),
    ],
)
def test_time_left_is_that_of_trials_as_long_as_those_that_have_ended(
    trials: list[Trial], total: float, at_once: int, left_s: float | None
) -> None:
    assert progress_lines.estimate_left_s(trials, total, at_once, now_s=100.0) == left_s


def test_durations_have_the_unit_in_which_they_are_short() -> None:
    seconds = (0, 89, 90, 5370, 5400, 86400)
    texts = [progress_lines.duration_text(each) for each in seconds]
    assert texts == ["0 s", "89 s", "2 min", "90 min", "1.5 h", "24.0 h"]


def test_failures_of_a_large_run_are_shown_and_others_counted(root: str, capsys: Any) -> None:
    def some(attempt: Attempt) -> Outcome:
        failed = replace(raised("ValueError: no"), host="gpu-4")
        return {30: raised("ValueError: no"), 31: failed}.get(attempt.number, returned(1.0))

    run = execute(request_of(60, root=root, progress=True), InMemoryCluster(some))
    assert run.counts() == {"COMPLETE": 58, "FAILED": 2}
    out = capsys.readouterr().out
    assert "trial 30 x=30 FAILED (ValueError: no)" in out
    assert "trial 31 x=31 FAILED on gpu-4 (ValueError: no)" in out
    assert "more have ended)" in out


@pytest.mark.parametrize(
    ("logs", "shown"), [("all", {0, 1, 2, 3}), ("best", {0, 2}), ("none", set())]
)
def test_logs_are_those_of_all_trials_or_of_the_best(
    root: str, logs: str, shown: set[int], capsys: Any
) -> None:
    scores = [0.5, 0.1, 0.9, 0.3]

    def prints(attempt: Attempt) -> Outcome:
        with open(attempt.paths.log, "w") as log:
            log.write(f"output {attempt.number}\n")
        return returned(score=scores[attempt.number])

    options = {"root": root, "metric": "score", "progress": True, "logs": logs, "parallelism": 1}
    execute(request_of(4, **options), InMemoryCluster(prints))
    out = capsys.readouterr().out
    assert {n for n in range(4) if f"[trial {n}] output {n}" in out} == shown


def test_wait_for_executors_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_S", 0.01)
    monkeypatch.setattr(waiting, "LATER_S", 0.01)
    cluster, said = InMemoryCluster(), []
    cluster.executors = lambda: (len(said), 4)  # type: ignore[method-assign]
    with waiting_for_executors(cluster, said.append):
        assert eventually(lambda: len(said) >= 4)
        time.sleep(0.1)
    assert re.fullmatch(r"Waiting for Spark: 0 of 4 executors \(\d+ s\)", said[0])
    assert len(said) == 4  # All executors are there.
