"""Runs in the training process. The reporter that maggy passes to a training function."""

from numbers import Real
from typing import Any

from sparkdl import context
from sparkdl.maggy.core.exceptions import (
    BroadcastMetricTypeError,
    BroadcastStepTypeError,
    BroadcastStepValueError,
)
from sparkdl.training.reporter import as_step

__all__ = ["Reporter"]


class Reporter:
    """Reports the metric of a trial to the driver.

    Args:
        metric_name: the name of the metric.

    Attributes:
        metric: the number that was reported last; None before.
        step: the step of the last report; -1 before.
        trial_id: the number of the trial, as text.

    Example:
        >>> reporter = Reporter("metric")
        >>> reporter.broadcast(0.5)
        step 0: metric=0.5
        >>> reporter.log("half of it is right")
        half of it is right
    """

    def __init__(self, metric_name: str = "metric") -> None:
        self._metric_name = metric_name
        self.metric: Any = None
        self.step: Any = -1
        self.trial_id = str(context.current().trial)

    def broadcast(self, metric: Any, step: Any = None) -> None:
        """Report the metric.

        Args:
            metric: the number.
            step: the number of the batch or of the epoch; by default the next one.

        Raises:
            TypeError: if the metric or the step is no number.
            ValueError: if the step is smaller than that of the last report.
            TrialPruned: if the trial is stopped early. It is no failure; do not catch it.
        """
        if step is None:
            step = self.step + 1
        if not _is_number(metric):
            raise BroadcastMetricTypeError(metric)
        if not _is_number(step):
            raise BroadcastStepTypeError(metric, step)
        if step < self.step:
            raise BroadcastStepValueError(metric, step, self.step)
        self.step, self.metric = step, metric
        # As `context.report`, for a trial that reports after each batch; a forked process has a
        # reporter of its own.
        context.this_reporter().report({self._metric_name: float(metric)}, as_step(step))

    def log(self, log_msg: Any, jupyter: bool = False) -> None:
        """Print a message, which is in the log of the trial.

        Args:
            log_msg: the message.
            jupyter: has no effect; the driver shows the output of up to 20 trials.
        """
        print(log_msg, flush=True)

    def get_data(self) -> tuple[Any, Any, str]:
        """Return the metric and the step of the last report, and an empty text."""
        return self.metric, self.step, ""

    def get_trial_id(self) -> str:
        """Return the number of the trial, as text."""
        return self.trial_id


def _is_number(value: Any) -> bool:
    # The test of an abstract class takes as long as all the rest, if a batch was trained between.
    return type(value) in (float, int) or isinstance(value, Real)
