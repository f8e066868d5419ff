"""A search whose driver is killed at any event ends as one that was not interrupted."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparkdl.runner.loop.trial_loop import TrialLoop
from sparkdl.runs import Run
from sparkdl.search.settings import ALGORITHMS, SearchSettings
from sparkdl.search.space.spaces import Float, Int, Space
from sparkdl.search.study import Study
from tests.helpers.in_memory_cluster import (
    WAIT_S,
    Attempt,
    InMemoryCluster,
    Outcome,
    pruned,
    raised,
    returned,
)
from tests.helpers.loops import background, continued_loop, new_loop, request_of
from tests.helpers.runs import segments
from tests.helpers.schedules import Training, loop_of, resumed, search_of

pytestmark = pytest.mark.usefixtures("quick_polls")

SPACE = Space.of({"x": Float(0.0, 1.0)})
FIRST_LINES = 3  # The session, the start and the trials of a launch.


def killed(run: Run, target: Path, num_lines: int) -> str:
    """Copy a run as it is after its driver was killed at a line of the journal."""
    path = shutil.copytree(run.path, target / str(num_lines) / run.id)
    shutil.rmtree(path / "owner")
    (path / "summary.json").unlink()
    (segment,) = segments(path)
    lines = segment.read_bytes().splitlines(keepends=True)[:num_lines]
    segment.write_bytes(b"".join(lines))
    known = {str(t["number"]) for line in lines for t in json.loads(line).get("trials", ())}
    for folder in (path / "trials").iterdir():
        if folder.name not in known:  # It began after the driver was killed.
            shutil.rmtree(folder)
    return str(path)


def num_lines_of(run: Run) -> int:
    (segment,) = segments(run.path)
    return len(segment.read_bytes().splitlines())


def lines_until_end(run: Run, number: int) -> int:
    """The number of lines of a journal until the end of a trial."""
    (segment,) = segments(run.path)
    lines = [json.loads(line) for line in segment.read_bytes().splitlines()]
    return max(i for i, line in enumerate(lines, 1) if line.get("number") == number)


def result(run: Run) -> tuple[Any, ...]:
    """The state, the reason and the trials of a run."""
    return run.state, run.reason, [(t.number, str(t.state), t.value) for t in run.trials]


class Ordered:
    """Lets the trials of a loop end in a given order, on any number of slots."""

    def __init__(self, order: Sequence[int], train: Callable[[Attempt], Outcome]) -> None:
        self._order = list(order)
        self._train = train
        self.loop: TrialLoop | None = None

    def __call__(self, attempt: Attempt) -> Outcome:
        before = self._order[: self._order.index(attempt.number)]
        deadline = time.monotonic() + WAIT_S
        while attempt._end.empty() and not self._have_ended(before):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return self._train(attempt) if attempt._end.empty() else attempt.wait()

    def _have_ended(self, numbers: Sequence[int]) -> bool:
        trials = self.loop.run.trials if self.loop else []
        return all(n < len(trials) and trials[n].state.is_final for n in numbers)

    def run(self, loop: TrialLoop) -> Run:
        self.loop = loop
        with background(loop):
            pass
        return loop.run


BAD = raised("ValueError: no")
# The rules, what comes out of each trial, and after how many ends the run ends.
RULES: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[int], Outcome], int]] = {
    "patience": ({"patience": 3}, {}, lambda i: returned(i / 10 if i else 1), 9),
    "stop": ({"stop": {"value": 0.6}}, {"metric": "value"}, lambda i: returned(i / 10), 7),
    "max_failed_trials": ({}, {"max_failed_trials": 2}, lambda i: BAD if i % 2 else returned(i), 5),
    "fail_fast_identical": ({}, {"fail_fast_identical": 4}, lambda i: BAD, 4),
    "metric": ({}, {"metric": "score"}, lambda i: returned(loss=0.5, epochs=3), 3),
}


@pytest.mark.parametrize("name", RULES)
def test_search_that_is_killed_at_any_event_ends_by_the_same_rule(
    root: str, tmp_path: Path, name: str
) -> None:
    """Trial 0 is slow: it has the best value, and ends as the sixth."""
    rules, options, outcome_of, num_ends = RULES[name]
    order = [1, 2, 3, 4, 5, 0, *range(6, 12)]
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=12, **rules)
    request = request_of(search=search, parallelism=2, seed=1, **options)

    def ends(run: Run) -> tuple[Any, ...]:
        # Another trial may end at the moment at which the run does.
        trials = [run.trials[number] for number in order[:num_ends]]
        return run.state, run.reason, [(t.number, str(t.state), t.value) for t in trials]

    ordered = Ordered(order, lambda attempt: outcome_of(attempt.number))
    whole = ordered.run(new_loop(root, InMemoryCluster(ordered), request))
    assert whole.reason
    num_lines_left = lines_until_end(whole, order[num_ends - 1])
    for num_lines in range(FIRST_LINES, num_lines_left + 1):
        path = killed(whole, tmp_path, num_lines)
        ordered = Ordered(order, lambda attempt: outcome_of(attempt.number))
        again = ordered.run(continued_loop(path, InMemoryCluster(ordered), request))
        assert ends(again) == ends(whole), num_lines
        assert len([t for t in again.trials if t.state != "CANCELLED"]) <= num_ends + 1


PRUNERS: dict[str, Any] = {
    "median": {"median": {"startup": 3}},
    "asha": {"asha": {"reduction": 2}},
    "hyperband": {"hyperband": {"max_reports": 4, "reduction": 2}},
}


@pytest.mark.parametrize("name", PRUNERS)
def test_pruner_whose_driver_is_killed_prunes_the_same_trials(
    root: str, tmp_path: Path, name: str
) -> None:
    def train(attempt: Attempt) -> Outcome:
        """Ask after each report, so that the driver decides at the same moments in every run."""
        score = attempt.number * 7 % 10 / 10
        for epoch in range(4):
            attempt.report(epoch, score=score)
            if attempt.ask(epoch, should_prune=True)["value"]:
                return pruned()
        return returned(score=score)

    search = SearchSettings(space=None, algorithm="random", num_trials=10, pruner=PRUNERS[name])
    request = request_of(search=search, metric="score", parallelism=1, seed=1)

    def run(loop: TrialLoop) -> Run:
        with background(loop):
            pass
        return loop.run

    whole = run(new_loop(root, InMemoryCluster(train, num_slots=1), request))
    assert "PRUNED" in whole.counts()
    for num_lines in range(FIRST_LINES, num_lines_of(whole), 3):
        path = killed(whole, tmp_path, num_lines)
        again = run(continued_loop(path, InMemoryCluster(train, num_slots=1), request))
        assert result(again) == result(whole), num_lines


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in ("gp", "cmaes")])
def test_sampler_whose_driver_is_killed_tries_each_point_of_a_space_once(
    root: str, tmp_path: Path, algorithm: str
) -> None:
    space = Space.of({"a": Int(0, 3), "kind": ["x", "y"]})
    search = SearchSettings(space=space, algorithm=algorithm, num_trials=50)
    request = request_of(search=search, seed=1)

    def train(attempt: Attempt) -> Outcome:
        params = attempt.task.trial.params
        return returned(params["a"] + 10.0 * (params["kind"] == "x"))

    def run(loop: TrialLoop) -> Run:
        with background(loop):
            pass
        return loop.run

    def points(run: Run) -> list[Any]:
        return sorted((t.params["a"], t.params["kind"], t.value) for t in run.trials)

    whole = run(new_loop(root, InMemoryCluster(train), request))
    assert len(points(whole)) == 8
    for num_lines in range(FIRST_LINES, num_lines_of(whole), 3):
        path = killed(whole, tmp_path, num_lines)
        again = run(continued_loop(path, InMemoryCluster(train), request))
        assert points(again) == points(whole)
        assert (again.state, again.reason) == (whole.state, whole.reason)


@pytest.mark.parametrize("name", ["asha", "hyperband", "bohb"])
def test_sampler_learns_from_rungs_in_the_order_in_which_they_were_reached(
    root: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[int, float]] = []
    reach = Study.reach

    def noted(study: Study, params: Any, rung: int, value: float) -> None:
        heard.append((rung, value))
        reach(study, params, rung, value)

    monkeypatch.setattr(Study, "reach", noted)
    loop = loop_of(root, InMemoryCluster(Training(), num_slots=1), name, parallelism=1)
    with background(loop):
        pass
    live = list(heard)
    assert live != sorted(live)
    path = killed(loop.run, tmp_path, num_lines_of(loop.run) - 1)
    heard.clear()
    resumed(path, InMemoryCluster(Training(), num_slots=1), name, reopen=True)
    assert heard == live
    assert search_of(name).num_trials == len(loop.run.trials)
