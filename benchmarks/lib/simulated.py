"""Simulate a search on a number of slots, with a clock that jumps from event to event.

The study, the pruners and the rule for the number of submitted trials (`Concurrency`) are those of
the package. The loop around them is not: the loop of the package reads real files and waits on real
clocks, and a comparison needs some hundred searches with thousands of reports each. A trial that
is stopped continues until its next report, or for as long as the package waits for that report.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lib.hartmann import EPOCHS, NAMES, curve
from sparkdl.cluster.slots import Slots
from sparkdl.runner.concurrency import Concurrency
from sparkdl.runner.loop.trial_loop import LOCAL_POLL_S
from sparkdl.runner.loop.trial_messages import STOP_GRACE_S
from sparkdl.runs.states import TrialState
from sparkdl.search.promotion import promotion_of
from sparkdl.search.pruners import NamedPruner
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from sparkdl.search.study import Study

__all__ = [
    "ETA",
    "SPACE",
    "Found",
    "Setting",
    "configurations",
    "in_stages",
    "in_turns",
    "simulate",
    "simulate_promoting",
]

ETA = 4
SPACE = Space.of({name: Float(0.0, 1.0) for name in NAMES})


@dataclass(frozen=True)
class Setting:
    """The setting of a simulation.

    Attributes:
        slots: trials at once.
        trials: how many configurations.
        epoch_s, spread: seconds of an epoch, see `hartmann.curve`.
        seed: of the sampler.
        budget_s: slot seconds after which the search ends.
    """

    slots: int
    trials: int
    epoch_s: float
    spread: float
    seed: int = 0
    budget_s: float = math.inf

    @property
    def space(self) -> Space:
        """The space of the search."""
        return SPACE

    @property
    def objectives(self) -> Mapping[str, str]:
        """The direction of each metric."""
        return {"value": "max"}

    def values(self, made: Any, step: int) -> tuple[float, ...]:
        """Return what a configuration reports at a step, a value of each metric."""
        return (made.scores[step],)

    def curve(self, params: Mapping[str, Any]) -> Any:
        """Return the values that a configuration would report."""
        return curve(params, self.epoch_s, self.spread)


@dataclass
class Found:
    """The result of a search: wall seconds, best score of a complete trial, and cost.

    `slot_s` are the seconds of all slots in which trials ran, and `complete` the values of the
    complete trials. `reports` are the time and the first value of each report that was the best so
    far.
    """

    wall_s: float = 0.0
    slot_s: float = 0.0
    epochs: int = 0
    complete: list[tuple[float, ...]] = field(default_factory=list)
    reports: list[tuple[float, float]] = field(default_factory=list)
    staged: float = 0.0

    @property
    def best(self) -> float:
        """The best first value of a complete trial."""
        return max((values[0] for values in self.complete), default=self.staged)

    def advance(self, now: float, running: int) -> None:
        """Set the time, and count the slot seconds of the trials that ran until then."""
        self.slot_s += running * (now - self.wall_s)
        self.wall_s = now

    def reported(self, now: float, score: float) -> None:
        """Count a report."""
        self.epochs += 1
        if not self.reports or score > self.reports[-1][1]:
            self.reports.append((now, score))

    def time_to(self, score: float) -> float:
        """Seconds until a trial has reported so much."""
        return next((at for at, found in self.reports if found >= score), math.inf)


class Simulation:
    """Drives a `Study` as a run does.

    Args:
        search: what is searched.
        setting: on which slots.
        target: end when a trial has reported this.
    """

    def __init__(self, search: SearchSettings, setting: Setting, target: float) -> None:
        self._search, self._setting, self._target = search, setting, target
        self._study = Study(search, setting.objectives, setting.seed)
        self._study.queue_initial()
        slots = Slots(setting.slots, setting.slots, "simulated")
        self._concurrency = Concurrency(lambda: slots)
        self._curves: list[Any] = []
        self._ready: deque[int] = deque()
        self._running = self._started = 0
        self._events: list[tuple[float, int, int, int | None]] = []
        self._order = itertools.count()
        self.found = Found()

    def run(self) -> Found:
        """To the end of the last trial."""
        self._fill(0.0)
        while self._events and self.found.time_to(self._target) == math.inf:
            now, _, trial, step = heapq.heappop(self._events)
            self.found.advance(now, self._running)
            if self.found.slot_s >= self._setting.budget_s:
                break
            if step is None:
                self._end(trial, TrialState.PRUNED, now)
            else:
                self._report(trial, step, now)
        return self.found

    def _fill(self, now: float) -> None:
        """Submit trials as `TrialLoop` does; those without a slot wait inside Spark."""
        while True:
            most = self._concurrency.max_submitted(self._started, self._running)
            room = most - self._running - len(self._ready)
            if room > 0 and len(self._curves) < self._setting.trials:
                trial = len(self._curves)
                self._curves.append(self._setting.curve(self._study.ask(trial)))
                self._ready.append(trial)
            elif self._ready and self._running < self._setting.slots:
                trial = self._ready.popleft()
                self._running, self._started = self._running + 1, self._started + 1
                self._at(now + self._curves[trial].epoch_s, trial, 0)
            else:
                return

    def _at(self, when: float, trial: int, step: int | None) -> None:
        heapq.heappush(self._events, (when, next(self._order), trial, step))

    def _report(self, trial: int, step: int, now: float) -> None:
        values = self._setting.values(self._curves[trial], step)
        epoch_s = self._curves[trial].epoch_s
        self.found.reported(now, values[0])
        self._study.report(trial, step, *values)
        stop = self._study.should_prune(trial)
        if step + 1 == EPOCHS:
            self.found.complete.append(values)
            self._end(trial, TrialState.COMPLETE, now, values)
        elif stop:
            # It hears of it at its next report, and is ended if that takes too long.
            self._at(now + min(epoch_s, STOP_GRACE_S), trial, None)
        else:
            self._at(now + epoch_s, trial, step + 1)

    def _end(
        self, trial: int, state: TrialState, now: float, values: tuple[float, ...] = ()
    ) -> None:
        self._study.tell(trial, state, values or None)
        self._running -= 1
        self._fill(now)


def simulate(algorithm: str, pruner: Any, setting: Setting, target: float = math.inf) -> Found:
    """One search, to the end of its last trial, or until one has reported the target."""
    search = SearchSettings(
        space=setting.space, algorithm=algorithm, pruner=pruner, num_trials=setting.trials
    )
    return Simulation(search, setting, target).run()


class PromotingSimulation:
    """Drives the study and the rule of a pruner that promotes trials.

    A trial waits at a rung until the driver has looked, and leaves its slot if it pauses.

    Args:
        algorithm: the sampler.
        pruner: the pruner, with `promote`.
        setting: on which slots.
    """

    def __init__(self, algorithm: str, pruner: Mapping[str, Any], setting: Setting) -> None:
        self._setting = setting
        search = SearchSettings(space=setting.space, algorithm=algorithm, pruner=pruner)
        self._study = Study(search, setting.objectives, setting.seed)
        self._rule = promotion_of(NamedPruner.of(pruner), *setting.objectives.values())
        slots = Slots(setting.slots, setting.slots, "simulated")
        self._concurrency = Concurrency(lambda: slots)
        self._params: list[dict[str, Any]] = []
        self._curves: list[Any] = []
        self._steps: list[int] = []
        self._ready: deque[int] = deque()
        self._running = self._started = 0
        self._events: list[tuple[float, int, int]] = []
        self._order = itertools.count()
        self.found = Found()

    def run(self) -> Found:
        """To the end of the last trial."""
        self._fill(0.0)
        while self._events:
            now, _, trial = heapq.heappop(self._events)
            self.found.advance(now, self._running)
            if self.found.slot_s >= self._setting.budget_s:
                break
            self._report(trial, now)
        return self.found

    def _next(self) -> int | None:
        """Return the trial that the package would submit now."""
        if promotable := self._rule.promotable():
            self._rule.promote(promotable[0])
            return promotable[0]
        trial = len(self._params)
        if trial == self._setting.trials:
            self._rule.close()
            return None
        self._params.append(self._study.ask(trial))
        self._curves.append(self._setting.curve(self._params[trial]))
        self._steps.append(0)
        self._rule.add(trial)
        return trial

    def _fill(self, now: float) -> None:
        while True:
            most = self._concurrency.max_submitted(self._started, self._running)
            room = most - self._running - len(self._ready)
            if room > 0 and (trial := self._next()) is not None:
                self._ready.append(trial)
            elif self._ready and self._running < self._setting.slots:
                trial = self._ready.popleft()
                self._running, self._started = self._running + 1, self._started + 1
                self._at(now + self._curves[trial].epoch_s, trial)
            else:
                return

    def _at(self, when: float, trial: int) -> None:
        heapq.heappush(self._events, (when, next(self._order), trial))

    def _report(self, trial: int, now: float) -> None:
        values = self._setting.values(self._curves[trial], self._steps[trial])
        epoch_s = self._curves[trial].epoch_s
        self.found.reported(now, values[0])
        self._steps[trial] += 1
        rungs = self._rule.rungs(trial)
        if self._steps[trial] == EPOCHS:
            self.found.complete.append(values)
            self._rule.end(trial)
            self._study.tell(trial, TrialState.COMPLETE, values)
        elif not rungs or self._steps[trial] != rungs[0]:
            self._at(now + epoch_s, trial)
            return
        else:
            self._study.reach(self._params[trial], rungs[0], *values)
            if self._rule.reach(trial, *values):
                self._at(now + LOCAL_POLL_S + epoch_s, trial)
                return
        self._running -= 1
        self._fill(now + LOCAL_POLL_S)


def simulate_promoting(algorithm: str, pruner: Mapping[str, Any], setting: Setting) -> Found:
    """One search whose trials pause and go on, to its end."""
    return PromotingSimulation(algorithm, pruner, setting).run()


def configurations(setting: Setting) -> list[dict[str, Any]]:
    """The same that `simulate("random", ...)` tries."""
    study = Study(SearchSettings(space=SPACE, algorithm="random"), {"value": "max"}, setting.seed)
    return [study.ask(number) for number in range(setting.trials)]


def in_turns(lasting_s: Iterable[float], slots: int) -> list[float]:
    """When each of some tasks begins, if a free slot takes the next one at once."""
    free, begins = [0.0] * slots, []
    for one_s in lasting_s:
        begins.append(heapq.heappop(free))
        heapq.heappush(free, begins[-1] + one_s)
    return begins


def in_stages(setting: Setting, rungs: tuple[int, ...], size: int) -> Found:
    """Rung by rung, and within a rung `size` configurations after the other `size`.

    Args:
        setting: what is simulated.
        rungs: after how many epochs the best quarter goes on; the last is the end.
        size: of a wave that ends before the next one starts.
    """
    left = [setting.curve(params) for params in configurations(setting)]
    found, reports, before = Found(), [], 0
    for end in rungs:
        for first in range(0, len(left), size):
            wave, since = left[first : first + size], found.wall_s
            lasting_s = [(end - before) * one.epoch_s for one in wave]
            begins = in_turns(lasting_s, setting.slots)
            for one, begin_s, one_s in zip(wave, begins, lasting_s, strict=True):
                for step in range(before, end):
                    at = since + begin_s + (step + 1 - before) * one.epoch_s
                    reports.append((at, one.scores[step]))
                found.wall_s = max(found.wall_s, since + begin_s + one_s)
        left.sort(key=lambda one: -one.scores[end - 1])
        found.staged, before = left[0].scores[end - 1], end
        left = left[: max(1, len(left) // ETA)]
    for when, score in sorted(reports):
        found.reported(when, score)
    return found
