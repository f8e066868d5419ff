"""Runs on the driver (pure). Decide which paused trials go on, and with which number of reports.

With several metrics, the best trials are those of the first fronts, see `Rung`.

`Asha` is the rule of Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2018),
arXiv:1810.05934, and `Hyperband` that of Li et al., "Hyperband: A Novel Bandit-Based Approach to
Hyperparameter Optimization" (2017), arXiv:1603.06560.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkdl.search.fronts import Point
from sparkdl.search.pruners import NamedPruner
from sparkdl.search.rungs import Rung, losses_of

# A trial never reports so often; the rungs of a trial without a known end are below.
MOST_REPORTS = 2**31


@dataclass
class Climber:
    """The way of a trial from rung to rung.

    Attributes:
        bracket: the bracket of the trial.
        points: the losses at each rung that the trial has reached; smaller ones are better.
        is_paused: the trial waits at its last rung.
        is_out: the trial has ended.
    """

    bracket: "Bracket"
    points: list[Point] = field(default_factory=list)
    is_paused: bool = False
    is_out: bool = False


class Bracket:
    """The rungs of some trials, and the values that were reached there.

    Args:
        rungs: the numbers of reports at which a trial pauses, ascending.
        size: the number of trials that begin; infinite for trials that do not wait for each other.
    """

    def __init__(self, rungs: Sequence[int], size: float = math.inf) -> None:
        self.rungs = tuple(rungs)
        self.size = size
        self.members: list[int] = []
        self.reached = [Rung() for _ in self.rungs]


class Promotion:
    """The base of the rules: the trials, and the rungs that they have reached.

    Args:
        *directions: `max` or `min`, for each metric.
    """

    def __init__(self, *directions: str) -> None:
        self._directions = directions
        self._climbers: dict[int, Climber] = {}

    def add(self, number: int) -> None:
        """Add a new trial."""
        bracket = self._bracket_of_next()
        bracket.members.append(number)
        self._climbers[number] = Climber(bracket)

    def rungs(self, number: int) -> tuple[int, ...]:
        """Return the numbers of reports after which a trial pauses, without those it has passed."""
        climber = self._climbers[number]
        return climber.bracket.rungs[len(climber.points) :]

    def last_rung(self, number: int) -> int | None:
        """Return the number of reports of the last rung that a trial has reached, if any."""
        climber = self._climbers[number]
        return climber.bracket.rungs[len(climber.points) - 1] if climber.points else None

    def reach(self, number: int, *values: float) -> bool:
        """Let a trial reach its next rung; return True if it goes on at once.

        Args:
            number: the number of the trial.
            *values: the values that it has reported there, one of each metric.
        """
        climber = self._climbers[number]
        level = len(climber.points)
        climber.points.append(losses_of(values, self._directions))
        climber.bracket.reached[level].add(number, climber.points[level])
        climber.is_paused = True
        if number in self._promotable_from(climber.bracket, level):
            climber.is_paused = False
        return not climber.is_paused

    def pause(self, number: int) -> None:
        """Let a trial wait at its last rung, as an earlier driver has left it there."""
        self._climbers[number].is_paused = True

    def is_paused(self, number: int) -> bool:
        """Return True if a trial waits at a rung."""
        return number in self._climbers and self._climbers[number].is_paused

    def promote(self, number: int) -> None:
        """Let a paused trial go on."""
        self._climbers[number].is_paused = False

    def why(self, number: int) -> str | None:
        """Return why a trial that has paused does not go on; None for one that never paused."""
        climber = self._climbers[number]
        level = len(climber.points) - 1
        if level < 0:
            return None
        chosen = self._promotable_from(climber.bracket, level)
        why = climber.bracket.reached[level].standing(number, len(chosen))
        if number in chosen:
            why = "the search ended before it could go on"
        return f"paused at report {climber.bracket.rungs[level]}: {why}"

    def end(self, number: int, has_failed: bool = False) -> None:
        """Take note that a trial has ended, so that it never goes on.

        Args:
            number: the number of the trial.
            has_failed: it has no result, and leaves its places at the rungs to others.
        """
        climber = self._climbers[number]
        climber.is_paused = False
        climber.is_out = True
        if has_failed:
            for rung in climber.bracket.reached[: len(climber.points)]:
                rung.fail(number)

    def close(self) -> None:
        """Take note that no trial is added any more."""

    def promotable(self) -> list[int]:
        """Return the paused trials that may go on now, those of the highest rungs first."""
        raise NotImplementedError

    def trials_to_drop(self) -> list[int]:
        """Return the paused trials that can never go on."""
        return []

    def _bracket_of_next(self) -> Bracket:
        raise NotImplementedError

    def _promotable_from(self, bracket: Bracket, level: int) -> list[int]:
        """Return the trials that may go on from a rung, best first."""
        raise NotImplementedError

    def _waiting_trials(self, bracket: Bracket, level: int) -> list[int]:
        """Return the paused trials among those that may go on from a rung, best first."""
        return [
            number
            for number in self._promotable_from(bracket, level)
            if self._climbers[number].is_paused and len(self._climbers[number].points) == level + 1
        ]


class Asha(Promotion):
    """Asynchronous successive halving: a trial goes on once it is among the best of its rung.

    Args:
        pruner: the arguments.
        *directions: `max` or `min`, for each metric.

    Example:
        >>> asha = Asha(NamedPruner.of({"asha": {"promote": True, "reduction": 2}}), "max")
        >>> for number in range(3):
        ...     asha.add(number)
        >>> asha.reach(0, 0.7), asha.reach(1, 0.9), asha.promotable()
        (False, True, [])
        >>> asha.reach(2, 0.5), asha.promotable()
        (False, [])
    """

    def __init__(self, pruner: NamedPruner, *directions: str) -> None:
        super().__init__(*directions)
        self._reduction = pruner.arguments["reduction"] or 2
        most = pruner.arguments["max_reports"] or MOST_REPORTS
        rungs = [pruner.arguments["grace"] or 1]
        while rungs[-1] * self._reduction < most:
            rungs.append(rungs[-1] * self._reduction)
        self._bracket = Bracket([rung for rung in rungs if rung < most])
        self._is_closed = False

    def _bracket_of_next(self) -> Bracket:
        self._is_closed = False
        return self._bracket

    def close(self) -> None:
        """Take note that no trial is added any more: the best of each rung goes on in any case."""
        self._is_closed = True

    def _promotable_from(self, bracket: Bracket, level: int) -> list[int]:
        count = len(bracket.reached[level]) // self._reduction
        return bracket.reached[level].best(max(count, int(self._is_closed)))

    def promotable(self) -> list[int]:
        """Return the paused trials that may go on now, those of the highest rungs first."""
        levels = range(len(self._bracket.rungs) - 1, -1, -1)
        return [number for level in levels for number in self._waiting_trials(self._bracket, level)]


class Hyperband(Promotion):
    """Successive halving in brackets: the best of a rung go on when all its trials have come.

    The brackets begin with many trials of few reports, and end with few trials that are not
    interrupted; then they begin again. Trials of a bracket do not wait for those of another.

    Args:
        pruner: the arguments.
        *directions: `max` or `min`, for each metric.

    Example:
        >>> pruner = NamedPruner.of({"hyperband": {"promote": True, "max_reports": 9}})
        >>> Hyperband(pruner, "max").plan
        [(9, (1, 3)), (5, (3,)), (3, ())]
    """

    def __init__(self, pruner: NamedPruner, *directions: str) -> None:
        super().__init__(*directions)
        self._reduction = pruner.arguments["reduction"] or 2
        most, grace = pruner.arguments["max_reports"] or 1, pruner.arguments["grace"] or 1
        num_rungs = 0
        while grace * self._reduction ** (num_rungs + 1) <= most:
            num_rungs += 1
        self.plan = [
            (
                -(-(num_rungs + 1) * self._reduction**count // (count + 1)),
                tuple(most // self._reduction ** (count - level) for level in range(count)),
            )
            for count in range(num_rungs, -1, -1)
        ][: pruner.arguments["brackets"]]
        self._brackets: list[Bracket] = []

    def _bracket_of_next(self) -> Bracket:
        if not self._brackets or len(self._brackets[-1].members) >= self._brackets[-1].size:
            size, rungs = self.plan[len(self._brackets) % len(self.plan)]
            self._brackets.append(Bracket(rungs, size))
        return self._brackets[-1]

    def close(self) -> None:
        """Take note that no trial is added any more, so that the last bracket stays small."""
        if self._brackets:
            self._brackets[-1].size = len(self._brackets[-1].members)

    def _promotable_from(self, bracket: Bracket, level: int) -> list[int]:
        if not self._is_whole(bracket, level):
            return []
        size = max(1, len(bracket.members) // self._reduction ** (level + 1))
        return bracket.reached[level].best(size)

    def _is_whole(self, bracket: Bracket, level: int) -> bool:
        """Return True if all trials that can reach a rung have reached it."""
        if len(bracket.members) < bracket.size:
            return False
        expected = self._promotable_from(bracket, level - 1) if level else bracket.members
        if level and not expected and not self._is_whole(bracket, level - 1):
            return False
        climbers = [self._climbers[number] for number in expected]
        return all(len(climber.points) > level or climber.is_out for climber in climbers)

    def promotable(self) -> list[int]:
        """Return the paused trials that may go on now, those of the earliest brackets first."""
        return [
            number
            for bracket in self._brackets
            for level in range(len(bracket.rungs) - 1, -1, -1)
            for number in self._waiting_trials(bracket, level)
        ]

    def trials_to_drop(self) -> list[int]:
        """Return the paused trials of whole rungs whose places others have taken."""
        dropped = []
        for bracket in self._brackets:
            for level in range(len(bracket.rungs)):
                if not self._is_whole(bracket, level):
                    break
                chosen = self._promotable_from(bracket, level)
                dropped += [
                    number
                    for number in bracket.reached[level].numbers()
                    if number not in chosen
                    and self._climbers[number].is_paused
                    and len(self._climbers[number].points) == level + 1
                ]
        return dropped


def promotion_of(pruner: NamedPruner, *directions: str) -> Promotion:
    """Return the rule of a pruner by name that promotes trials.

    Args:
        pruner: the arguments.
        *directions: `max` or `min`, for each metric.
    """
    rules = {"asha": Asha, "hyperband": Hyperband}
    return rules[pruner.name](pruner, *directions)
