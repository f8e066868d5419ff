"""Populations that train on a clock of events: the rule of the product, without Spark."""

import heapq
import random
from statistics import median
from typing import Any

from lib.descent import MEMBERS, SPEEDS, begin, descend
from sparkdl.runs import Trial, TrialState
from sparkdl.search import Float
from sparkdl.search.population import Population
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Space

__all__ = ["simulated"]

INTERVALS = 20
# An interval with a larger learning rate fails at once, where failures are simulated.
LARGEST = 1e-2

Row = dict[str, Any]


def _population(seed: int, speed: str, slots: int, intervals: int, failing: bool) -> Row:
    """Train a population; return what its members have done."""
    num_trials = MEMBERS * intervals
    rates = (1e-5, 1.0) if failing else (1e-4, 0.1)
    space = Space.of({"rate": Float(*rates, log=True)})
    search = SearchSettings(space=space, algorithm="pbt", num_trials=num_trials)
    population = Population(search, "min", seed)
    chance = random.Random(seed)
    trials: list[Trial] = []
    weights: dict[int, Any] = {}
    running: list[tuple[float, int]] = []
    now = 0.0
    while True:
        while len(running) < slots and len(trials) < num_trials:
            interval = population.next(trials, num_trials)
            if interval is None:
                break
            trial = Trial(len(trials), interval.params, "", state=TrialState.RUNNING)
            trial.member, trial.parent = interval.member, interval.parent
            trials.append(trial)
            rate = trial.params["rate"]
            seconds = SPEEDS[speed](interval.member, rate, chance.random())
            if failing and rate > LARGEST:
                seconds = 0.03
            heapq.heappush(running, (now + seconds, trial.number))
        if not running:
            return _summary(trials, now)
        now, number = heapq.heappop(running)
        trial = trials[number]
        if failing and trial.params["rate"] > LARGEST:
            trial.state = TrialState.FAILED
            continue
        before = begin() if trial.parent is None else weights[trial.parent]
        weights[number], trial.value = descend(before, trial.params["rate"], seed * 1000 + number)
        trial.state = TrialState.COMPLETE


def _summary(trials: list[Trial], seconds: float) -> Row:
    last: dict[int | None, float] = {}
    before: dict[int | None, Trial] = {}
    clones = continued = 0
    failures = {"another member": 0, "its own": 0, "none": 0}
    for trial in trials:
        earlier = before.get(trial.member)
        is_other = trial.parent is not None and trials[trial.parent].member != trial.member
        if earlier is not None and earlier.state == TrialState.FAILED:
            own = "none" if trial.parent is None else "its own"
            failures["another member" if is_other else own] += 1
        elif earlier is not None:
            continued += 1
            clones += is_other
        before[trial.member] = trial
        if trial.value is not None:
            last[trial.member] = trial.value
    counts = [sum(t.member == m and t.value is not None for t in trials) for m in range(MEMBERS)]
    return {
        "clones": clones,
        "continued": continued,
        "intervals": [min(counts), max(counts)],
        "failed": sum(trial.state == TrialState.FAILED for trial in trials),
        "failures_continue_from": failures,
        "best": min(last.values()),
        "median": median(last.values()),
        "seconds": seconds,
    }


def _row(name: str, slots: int, rows: list[Row]) -> Row:
    failures = [row["failures_continue_from"] for row in rows]
    return {
        "members": name,
        "slots": slots,
        "clones_per_continuation": sum(row["clones"] for row in rows)
        / max(1, sum(row["continued"] for row in rows)),
        "intervals_per_member": [
            min(row["intervals"][0] for row in rows),
            max(row["intervals"][1] for row in rows),
        ],
        "failed": sum(row["failed"] for row in rows),
        "failures_continue_from": {key: sum(f[key] for f in failures) for key in failures[0]},
        "best_loss": median(row["best"] for row in rows),
        "median_loss": median(row["median"] for row in rows),
        "seconds": median(row["seconds"] for row in rows),
    }


def simulated(num_seeds: int) -> list[Row]:
    """Return a row for each kind of members: the medians over the seeds, and sums."""
    kinds = [(name, slots) for name in SPEEDS for slots in (MEMBERS,)]
    kinds.append((next(iter(SPEEDS)), 1))
    rows = [
        _row(
            name,
            slots,
            [_population(seed, name, slots, INTERVALS, False) for seed in range(num_seeds)],
        )
        for name, slots in kinds
    ]
    name = next(iter(SPEEDS))
    failing = [_population(seed, name, MEMBERS, 8, True) for seed in range(num_seeds)]
    return [*rows, _row(f"rates above {LARGEST:g} fail at once", MEMBERS, failing)]
