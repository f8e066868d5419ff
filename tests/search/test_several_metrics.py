"""Trials that report several metrics, and stop, pause and go on by their fronts."""

import json
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from sparkdl.files.layout import TrialPaths
from sparkdl.runs import Trial, TrialState
from sparkdl.runs.events import ReportsReceived, TrialChanged, event_from_dict
from sparkdl.runs.opening import OpenRun, RunDescription, continue_run, open_run
from sparkdl.search.promoting_source import PromotingSource
from sparkdl.search.promotion import promotion_of
from sparkdl.search.pruners import NamedPruner
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from sparkdl.search.stopping import StoppingRule, stopping_rule_of
from sparkdl.search.study import Study
from sparkdl.search.study_source import StudySource
from sparkdl.search.trial_records import read_records
from sparkdl.search.whole_reports import WholeReports
from sparkdl.training.reporter import Rungs

SPACE = Space.of({"x": Float(0.0, 1.0)})
BOTH = {"accuracy": "max", "latency": "min"}


def rule_of(pruner: Any, objectives: dict[str, str] = BOTH, name: str = "s") -> StoppingRule:
    return stopping_rule_of(NamedPruner.of(pruner), objectives, name)


# ---- the rules that stop trials


@pytest.mark.parametrize("direction", ["max", "min"])
@pytest.mark.parametrize(
    "pruner",
    [
        "asha",
        {"asha": {"grace": 2, "reduction": 2}},
        {"hyperband": {"max_reports": 27}},
        {"hyperband": {"max_reports": 20, "grace": 2, "reduction": 2}},
    ],
)
def test_rules_with_one_metric_decide_as_the_pruners_of_optuna(pruner: Any, direction: str) -> None:
    """Two metrics that are equal are one: the rule for several against Optuna's for one."""
    study = optuna.create_study(
        study_name="s", direction=f"{direction}imize", pruner=NamedPruner.of(pruner).build()
    )
    rule = rule_of(pruner, {"a": direction, "b": direction})
    draw = random.Random(3)
    trials = {number: study.ask() for number in range(60)}
    counts = dict.fromkeys(trials, 0)
    num_stopped = 0
    while counts:
        number = draw.choice(sorted(counts))
        value = draw.randrange(30) / 10
        trials[number].report(value, counts[number])
        rule.report(number, counts[number], [value, value])
        is_stopped = trials[number].should_prune()
        assert (rule.why(number) is not None) == is_stopped
        counts[number] += 1
        num_stopped += is_stopped
        if is_stopped or counts[number] == 27:
            del counts[number]
    assert num_stopped > 20


def test_median_with_equal_metrics_decides_as_that_of_optuna() -> None:
    pruner = {"median": {"grace": 2, "startup": 3}}
    study = optuna.create_study(pruner=NamedPruner.of(pruner).build())
    rule = rule_of(pruner, {"a": "min", "b": "min"})
    draw = random.Random(5)
    verdicts = []
    for number in range(40):
        trial = study.ask()
        is_stopped = False
        for report in range(6):
            value = draw.random()
            trial.report(value, report)
            rule.report(number, report, [value, value])
            num_complete = len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]))
            is_stopped = trial.should_prune()
            if num_complete % 2:  # Of an even number, the median lies between two trials.
                verdicts.append(is_stopped)
                assert (rule.why(number) is not None) == is_stopped
            is_stopped = rule.why(number) is not None
            if is_stopped:
                break
        state = TrialState.PRUNED if is_stopped else TrialState.COMPLETE
        rule.end(number, state)
        study.tell(trial, None if is_stopped else value, getattr(optuna.trial.TrialState, state))
    assert {*verdicts} == {True, False}


@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (-1, -1)])
def test_halving_keeps_the_first_fronts_of_optuna_in_either_direction(
    signs: tuple[int, int],
) -> None:
    multi = pytest.importorskip("optuna.study._multi_objective")
    ways = ["min" if sign > 0 else "max" for sign in signs]
    rule = rule_of({"asha": {"reduction": 3}}, {"a": ways[0], "b": ways[1]})
    points = np.random.default_rng(0).random((50, 2))
    decided = 0
    for number, point in enumerate(points):
        rule.report(number, 1, (point * signs).tolist())
        ranks = multi._fast_non_domination_rank(points[: number + 1])
        count = max(1, (number + 1) // 3)
        if (ranks < ranks[-1]).sum() >= count:
            assert rule.why(number), number
            decided += 1
        elif (ranks <= ranks[-1]).sum() <= count:
            assert not rule.why(number), number
            decided += 1
    assert decided > 35


def test_values_that_are_not_finite_stop_a_trial_even_within_the_grace() -> None:
    rule = rule_of({"asha": {"grace": 5}})
    rule.report(0, 0, [float("nan"), 1.0])
    rule.report(1, 0, [0.5, float("inf")])
    assert rule.why(0) == "stopped at report 1: accuracy is nan"
    assert rule.why(1) == "stopped at report 1: latency is inf"


def test_failed_trials_leave_their_places_and_those_that_begin_again_are_forgotten() -> None:
    rule = rule_of("asha")
    for number, values in enumerate([[0.9, 1.0], [0.8, 2.0], [0.7, 3.0]]):
        rule.report(number, 1, values)
    assert [bool(rule.why(number)) for number in range(3)] == [False, True, True]
    rule.end(0, TrialState.FAILED)
    rule.restart(1)
    assert rule.why(1) is None
    rule.report(1, 1, [0.75, 2.0])
    assert rule.why(1) is None  # The best of those that have not failed.


def test_reasons_name_fronts_and_hypervolume() -> None:
    rule = rule_of("asha")
    rule.report(0, 1, [0.5, 5.0])
    rule.report(1, 1, [0.4, 6.0])
    rule.report(2, 1, [0.9, 9.0])
    start = "stopped at report 2: 1 of "
    assert rule.why(1) == start + "2 trials goes on, and it is on front 2"
    assert rule.why(2) == start + (
        "3 trials goes on, and it adds less hypervolume than others on front 1"
    )
    median = rule_of({"median": {"startup": 3}})
    for number in range(4):
        for report in range(2):
            median.report(number, report, [0.9 - 0.1 * number, 1.0 + number])
        median.end(number, TrialState.COMPLETE if number < 3 else TrialState.PRUNED)
    assert [median.why(number) for number in range(3)] == [None] * 3
    assert median.why(3) == (
        "stopped at report 2: 2 of 3 complete trials are ahead, and it is on front 4"
    )


# ---- trials that pause


@pytest.mark.parametrize("name", ["asha", "hyperband"])
def test_promotion_by_two_equal_metrics_is_that_by_one(name: str) -> None:
    pruner = NamedPruner.of({name: {"promote": True, "max_reports": 27}})
    one, two = promotion_of(pruner, "max"), promotion_of(pruner, "min", "max")
    draw, running = random.Random(1), []
    for _ in range(400):
        assert sorted(one.promotable()) == sorted(two.promotable())
        if (promotable := one.promotable()) and len(running) < 5:
            running.append(promotable[0])
            one.promote(running[-1])
            two.promote(running[-1])
        elif len(running) < 5:
            running.append(len(one._climbers))
            one.add(running[-1])
            two.add(running[-1])
        number = running.pop(draw.randrange(len(running)))
        if not one.rungs(number):
            one.end(number)
            two.end(number)
            continue
        value = draw.random()
        if one.reach(number, value):
            running.append(number)
        assert two.reach(number, -value, value) == (number in running)


def test_one_more_trial_of_the_front_goes_on_with_more_trials() -> None:
    rule = promotion_of(NamedPruner.of({"asha": {"promote": True, "reduction": 2}}), "min", "max")
    for number in range(6):
        rule.add(number)
    line = [(0.0, 0.0), (0.4, 0.6), (0.5, 0.8), (1.0, 1.0), (2.0, 0.1), (3.0, 0.1)]
    for number, values in enumerate(line):
        if rule.reach(number, *values):
            rule.promote(number)
    chosen = [number for number in range(6) if not rule.is_paused(number)]
    assert len({*chosen, *rule.promotable()} & {0, 1, 2, 3}) >= 3
    assert not {4, 5} & {*chosen, *rule.promotable()}
    assert (rule.why(4) or "").startswith("paused at report 1: 3 of 6 trials go on, and it is on")


def test_samplers_learn_from_the_fronts_of_a_rung() -> None:
    pruner = {"asha": {"promote": True}}
    search = SearchSettings(space=SPACE, algorithm="tpe", pruner=pruner, num_trials=99)
    study = Study(search, BOTH, seed=1)
    draw = random.Random(0)
    for _ in range(40):
        x = draw.random()
        study.reach({"x": x}, 1, -abs(x - 0.8), abs(x - 0.9))  # The front is from 0.8 to 0.9.
    proposed = sorted(study.ask(number)["x"] for number in range(20))
    assert 0.7 < proposed[10] < 1.0


# ---- reports


def test_a_report_counts_when_all_metrics_of_its_step_are_there() -> None:
    whole = WholeReports([*BOTH])
    assert whole.add(0, 1, {"accuracy": 0.5}) is None
    assert whole.add(1, 1, {"latency": 2.0}) is None
    assert whole.add(0, 2, {"latency": 3.0}) is None  # Of another step.
    assert whole.add(0, 2, {"value": 0.7, "loss": 9.0}) == (0.7, 3.0)
    rungs = Rungs([1], (0, -1), [*BOTH])
    calls: list[tuple[dict[str, float], int]] = [
        ({"accuracy": 0.5}, 1),
        ({"latency": 3.0}, 2),
        ({"value": 0.7}, 2),
        ({"accuracy": 0.7}, 2),
    ]
    asked = [rungs.is_due(metrics, step, has_checkpoint=True) for metrics, step in calls]
    assert asked == [False, False, True, False]


def test_events_keep_all_values_and_reasons() -> None:
    event = ReportsReceived(
        reports=[(0, 7, 0.5), (1, 7, 0.6)], numbers=[1, 1], others=[[2.0], [3.0]], stops=[(1, "no")]
    )
    records = read_records([event_from_dict(json.loads(json.dumps(event.to_dict())))])
    assert records[0].reports == {1: (0.5, 2.0)}
    assert records[1].reports == {1: (0.6, 3.0)}
    assert (records[0].stops, records[1].stops) == ([], ["no"])


# ---- whole searches, and the same ones with drivers that are killed


def values_at(number: int, report: int) -> tuple[float, float]:
    """Curves that cross; one trial has a NaN."""
    draw = np.random.default_rng(number)
    end, speed = draw.random(2), 0.2 + draw.random(2)
    accuracy, latency = end * (1 - np.exp(-speed * (report + 1)))
    return (float("nan") if (number, report) == (5, 3) else float(accuracy)), float(1 - latency)


class Search:
    """A search whose driver is killed after some reports that it has not heard.

    Args:
        root: the folder of the run.
        pruner: the pruner.
        kills: the numbers of the reports, among all reports, at which the driver is killed.
    """

    NUM_TRIALS, NUM_REPORTS, AT_ONCE = 24, 18, 4

    def __init__(self, root: str, pruner: Any, kills: Collection[int]) -> None:
        self._pruner, self._kills = pruner, kills
        self._running: list[int] = []
        self._counts: dict[int, int] = {}
        self._draw = random.Random(0)
        description = RunDescription(
            id="run",
            name="run",
            kind="search",
            description=None,
            metric="accuracy",
            direction="max",
            params=None,
            seed=1,
            secrets=(),
            facts={"request": {"search": {}}, "objectives": BOTH},
        )
        self._opened = open_run(root, description, "error")
        self._source = self._source_of(self._opened)

    def _source_of(self, opened: OpenRun) -> StudySource:
        search = SearchSettings(
            space=SPACE, algorithm="random", pruner=self._pruner, num_trials=self.NUM_TRIALS
        )
        search.check([*BOTH], None)
        kind = PromotingSource if search.promotes else StudySource
        return kind.create(opened, search, (), lambda line: None)

    def _trial(self, number: int) -> Trial:
        return self._opened.run.trials[number]

    def run(self) -> list[tuple[str, str | None, int]]:
        """Return the state, the note and the number of reports of each trial."""
        num_reports = 0
        while self._fill():
            number = self._draw.choice(self._running)
            lines = self._report(number)
            num_reports += 1
            if num_reports in self._kills:
                self._kill()
                lines = lines[-1:]  # From its checkpoint, a trial may report the last part again.
            if number in self._running:
                self._hear(number, lines)
        self._opened.owner.release()
        return [(str(t.state), t.note, self._counts[t.number]) for t in self._opened.run.trials]

    def _fill(self) -> bool:
        while len(self._running) < self.AT_ONCE and self._source.num_left:
            trial = self._source.next()
            self._counts.setdefault(trial.number, 0)
            self._running.append(trial.number)
            self._start(trial)
        for trial in self._source.take_dropped():
            self._end(trial, TrialState.PRUNED)
        if not self._running:
            for trial in self._opened.run.trials:
                if trial.state == TrialState.PAUSED:
                    self._end(trial, TrialState.PRUNED)
        return bool(self._running)

    def _start(self, trial: Trial) -> None:
        event = TrialChanged(number=trial.number, state=TrialState.RUNNING, attempt=trial.attempts)
        self._opened.record(event)

    def _report(self, number: int) -> list[tuple[int, dict[str, float]]]:
        """Write a report in one part or in two, as the process of a trial does."""
        count = self._counts[number]
        self._counts[number] += 1
        metrics = dict(zip(BOTH, values_at(number, count), strict=True))
        parts = [metrics] if count % 2 else [{name: value} for name, value in metrics.items()]
        lines = [(10 * count, part) for part in parts]
        path = Path(TrialPaths(self._trial(number).path).metrics)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            for step, part in lines:
                text = {k: v if v == v else {"$float": "nan"} for k, v in part.items()}
                file.write(json.dumps({"step": step, "metrics": text}) + "\n")
        return lines

    def _hear(self, number: int, lines: list[tuple[int, dict[str, float]]]) -> None:
        trial = self._trial(number)
        stopped = self._source.observe_reports([(trial, *line) for line in lines])
        is_paused = False
        if self._counts[number] == 4 and number == 7:
            self._end(trial, TrialState.FAILED)
            return
        if isinstance(self._source, PromotingSource):
            rungs, (count, _) = self._source.rungs_of(trial)
            if count in rungs:
                is_paused = not self._source.answer(trial, {})
        if is_paused:
            self._running.remove(number)
            self._opened.record(TrialChanged(number=number, state=TrialState.PAUSED))
        elif trial in stopped:
            self._end(trial, TrialState.PRUNED)
        elif self._counts[number] == self.NUM_REPORTS:
            self._end(trial, TrialState.COMPLETE)

    def _end(self, trial: Trial, state: TrialState) -> None:
        why = self._source.why_stopped(trial) if state == TrialState.PRUNED else None
        metrics = dict(zip(BOTH, values_at(trial.number, self.NUM_REPORTS), strict=True))
        value = metrics["accuracy"] if state == TrialState.COMPLETE else None
        self._opened.record(
            TrialChanged(number=trial.number, state=state, value=value, metrics=metrics, note=why)
        )
        self._source.observe_end(trial)
        if trial.number in self._running:
            self._running.remove(trial.number)

    def _kill(self) -> None:
        """Go on with another driver, which reads the files of the first one."""
        path = self._opened.run.path
        self._opened.owner.release()
        self._opened = continue_run(path, reopen=True)
        self._source = self._source_of(self._opened)
        for trial in self._opened.run.trials:
            if trial.state == TrialState.PAUSED and trial.number in self._running:
                self._running.remove(trial.number)  # It has reached its rung in the file.
        for number in self._source.stopped:
            self._end(self._trial(number), TrialState.PRUNED)
        for number in self._running:
            self._start(self._trial(number))


PRUNERS: dict[str, Any] = {
    "asha": {"asha": {"reduction": 2}},
    "median": {"median": {"startup": 3}},
    "hyperband": {"hyperband": {"max_reports": 18, "reduction": 2}},
    "promoting asha": {"asha": {"promote": True, "reduction": 2, "max_reports": 18}},
    "promoting hyperband": {"hyperband": {"promote": True, "max_reports": 18}},
}


@pytest.mark.parametrize("name", PRUNERS)
def test_killed_drivers_change_no_decision(root: str, name: str) -> None:
    whole = Search(f"{root}/whole", PRUNERS[name], ()).run()
    states = [state for state, _, _ in whole]
    assert states.count("COMPLETE") >= 1
    assert states.count("PRUNED") >= 8
    assert states[7] == "FAILED" or whole[7][2] < 4
    assert all(note for state, note, _ in whole if state == "PRUNED")
    for first in (5, 9):
        kills = range(first, 400, 17 + first)
        assert Search(f"{root}/killed-{first}", PRUNERS[name], kills).run() == whole
