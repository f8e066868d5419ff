"""Runs on the driver (pure). Stop trials that report several metrics.

The pruners of Optuna compare one metric. These rules are theirs for several: a trial is judged at
the same reports, and its place among the others is that of `best_points`.
"""

import binascii
import math
from collections.abc import Mapping, Sequence

from sparkdl.runs.states import TrialState
from sparkdl.search.fronts import Point, best_points, is_finite
from sparkdl.search.pruners import NamedPruner
from sparkdl.search.rungs import Rung, losses_of, place_of


class StoppingRule:
    """The base of the rules: it judges a trial at its reports.

    A trial that was stopped stays stopped. What the rule knows follows from the reports in their
    order and from how trials have ended, so that a resumed run restores it.

    Args:
        pruner: the arguments.
        objectives: the direction of each metric, by name.
    """

    def __init__(self, pruner: NamedPruner, objectives: Mapping[str, str]) -> None:
        self._objectives = dict(objectives)
        self._grace = pruner.arguments["grace"] or 1
        self._reasons: dict[int, str] = {}

    def report(self, number: int, report: int, values: Sequence[float]) -> None:
        """Judge a trial at a report.

        Args:
            number: the number of the trial.
            report: the number of the report, from 0.
            values: a value of each metric.
        """
        point = losses_of(values, [*self._objectives.values()])
        self._add(number, report, point)
        if number in self._reasons:
            return
        reason = self._judge(number, report)
        for name, value in zip(self._objectives, values, strict=True):
            if not math.isfinite(value):
                reason = f"{name} is {value}"
        if reason:
            self._reasons[number] = f"stopped at report {report + 1}: {reason}"

    def why(self, number: int) -> str | None:
        """Return the reason for which a trial is stopped; None if it goes on."""
        return self._reasons.get(number)

    def restore(
        self, number: int, reports: Mapping[int, Sequence[float]], reason: str = ""
    ) -> None:
        """Add the reports of a trial that an earlier driver has judged.

        Args:
            number: the number of the trial.
            reports: the values of each metric, by the number of the report.
            reason: the reason for which the earlier driver has stopped it; empty if it has not.
        """
        for report, values in reports.items():
            self._add(number, report, losses_of(values, [*self._objectives.values()]))
        if reason:
            self._reasons[number] = reason

    def restart(self, number: int) -> None:
        """Forget the reports of a trial that begins again."""
        self._reasons.pop(number, None)

    def end(self, number: int, state: TrialState) -> None:
        """Take note of the final state of a trial."""

    def _add(self, number: int, report: int, point: Point) -> None:
        raise NotImplementedError

    def _judge(self, number: int, report: int) -> str | None:
        """Return the reason for which a trial is stopped at its last report."""
        raise NotImplementedError


class HalvingRule(StoppingRule):
    """Asynchronous successive halving without pauses, in one bracket or in those of hyperband.

    Args:
        pruner, objectives: see `StoppingRule`.
        name: the name of the study, from which the brackets of hyperband follow, as in Optuna.

    Example:
        >>> rule = HalvingRule(NamedPruner.of("asha"), {"accuracy": "max", "latency": "min"}, "")
        >>> rule.report(0, 1, [0.9, 10.0])
        >>> rule.report(1, 1, [0.8, 12.0])
        >>> rule.why(0), rule.why(1)
        (None, 'stopped at report 2: 1 of 2 trials goes on, and it is on front 2')
    """

    def __init__(self, pruner: NamedPruner, objectives: Mapping[str, str], name: str) -> None:
        super().__init__(pruner, objectives)
        self._name = name
        self._reduction = pruner.arguments["reduction"] or 2
        most, num_brackets = pruner.arguments.get("max_reports"), 1
        while most and self._grace * self._reduction**num_brackets <= most:
            num_brackets += 1
        # The share of the trials in each bracket, and the rungs by bracket and report.
        self._shares = [
            -(-num_brackets * self._reduction**power // (power + 1))
            for power in range(num_brackets - 1, -1, -1)
        ]
        self._rungs: dict[tuple[int, int], Rung] = {}

    def bracket_of(self, number: int) -> int:
        """Return the bracket of a trial; the trials of a later one are judged later."""
        place = binascii.crc32(f"{self._name}_{number}".encode()) % sum(self._shares)
        bracket = 0
        while place >= self._shares[bracket]:
            place -= self._shares[bracket]
            bracket += 1
        return bracket

    def _rung_of(self, number: int, report: int) -> Rung | None:
        bracket = self.bracket_of(number)
        first = self._grace * self._reduction**bracket
        while first < report:
            first *= self._reduction
        return self._rungs.setdefault((bracket, report), Rung()) if first == report else None

    def _add(self, number: int, report: int, point: Point) -> None:
        if (rung := self._rung_of(number, report)) is not None:
            rung.add(number, point)

    def _judge(self, number: int, report: int) -> str | None:
        rung = self._rung_of(number, report)
        if rung is None:
            return None
        count = max(1, len(rung) // self._reduction)
        return None if rung.is_among(number, count) else rung.standing(number, count)

    def restart(self, number: int) -> None:
        """Forget the reports of a trial that begins again."""
        super().restart(number)
        for rung in self._rungs.values():
            rung.remove(number)

    def end(self, number: int, state: TrialState) -> None:
        """Take note of the final state of a trial; one without a result leaves its places."""
        if state not in (TrialState.COMPLETE, TrialState.PRUNED):
            for rung in self._rungs.values():
                rung.fail(number)


class MedianRule(StoppingRule):
    """Stop a trial if more than half of the complete trials were ahead at the same report.

    The trial has the best value of each metric so far.

    Args:
        pruner, objectives: see `StoppingRule`.
    """

    def __init__(self, pruner: NamedPruner, objectives: Mapping[str, str]) -> None:
        super().__init__(pruner, objectives)
        self._startup = pruner.arguments["startup"] or 0
        self._points: dict[int, dict[int, Point]] = {}
        self._complete: set[int] = set()

    def _add(self, number: int, report: int, point: Point) -> None:
        self._points.setdefault(number, {})[report] = point

    def _judge(self, number: int, report: int) -> str | None:
        if report < self._grace or len(self._complete) < self._startup:
            return None
        points = {
            other: self._points[other][report]
            for other in sorted(self._complete)
            if is_finite(self._points.get(other, {}).get(report, (math.nan,)))
        }
        own = [point for point in self._points[number].values() if is_finite(point)]
        if not points or not own:
            return None
        half = len(points) // 2 + 1
        points[number] = tuple(map(min, zip(*own, strict=True)))
        best = best_points(points, half)
        if any(points[number] == points[other] for other in best):
            return None
        ahead = f"{half} of {len(points) - 1} complete trials are ahead"
        return f"{ahead}, and it {place_of(number, points, best)}"

    def restart(self, number: int) -> None:
        """Forget the reports of a trial that begins again."""
        super().restart(number)
        self._points.pop(number, None)

    def end(self, number: int, state: TrialState) -> None:
        """Take note of the final state of a trial; others are compared with the complete ones."""
        if state == TrialState.COMPLETE:
            self._complete.add(number)
        else:
            self._points.pop(number, None)


def stopping_rule_of(pruner: NamedPruner, objectives: Mapping[str, str], name: str) -> StoppingRule:
    """Return the rule of a pruner by name for several metrics.

    Args:
        pruner: the arguments.
        objectives: the direction of each metric, by name.
        name: the name of the study.
    """
    if pruner.name == "median":
        return MedianRule(pruner, objectives)
    return HalvingRule(pruner, objectives, name)
