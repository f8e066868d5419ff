"""Runs on the driver (pure). Collect the values of all metrics that a trial reports at a step."""

from collections import Counter
from collections.abc import Mapping, Sequence

from sparkdl.runs.trial import Trial

# Largest number of reports of a trial that one call passes to the study. A trial may report after
# every batch, and the study is slow; all reports are in the trial's own file.
MAX_REPORTS = 20

# A trial, a step, and the value of each metric.
Values = tuple[Trial, int, tuple[float, ...]]


class WholeReports:
    """The reports that have a value of each metric, be it from one call or from several.

    A number without a name is a value of the first metric.

    Args:
        metrics: the names of the metrics.

    Example:
        >>> whole = WholeReports(["accuracy", "latency"])
        >>> whole.add(0, 7, {"accuracy": 0.9}), whole.add(0, 7, {"latency": 12.0})
        (None, (0.9, 12.0))
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = list(metrics)
        # The last step of each trial, and what was reported there.
        self._parts: dict[int, tuple[int, dict[str, float]]] = {}

    def add(self, number: int, step: int, metrics: Mapping[str, float]) -> tuple[float, ...] | None:
        """Return the values of the metrics at a step; None as long as one is missing.

        Args:
            number: the number of the trial.
            step: the step.
            metrics: the reported numbers by name.
        """
        first = self._metrics[0]
        if len(self._metrics) > 1:
            last_step, before = self._parts.get(number, (None, {}))
            named = {first: metrics["value"], **metrics} if "value" in metrics else metrics
            metrics = {**(before if step == last_step else {}), **named}
            self._parts[number] = step, metrics
        values = [metrics.get(first, metrics.get("value")), *map(metrics.get, self._metrics[1:])]
        known = tuple(value for value in values if value is not None)
        return known if len(known) == len(values) else None

    def forget(self, number: int) -> None:
        """Drop what is known of a trial that has ended."""
        self._parts.pop(number, None)


def newest(values: Sequence[Values]) -> list[Values]:
    """Return the last `MAX_REPORTS` values of each trial, in their order."""
    counts: Counter[int] = Counter()
    kept = []
    for value in reversed(values):
        number = value[0].number
        counts[number] += 1
        if counts[number] <= MAX_REPORTS:
            kept.append(value)
    return kept[::-1]
