"""Runs anywhere. The exceptions of maggy."""

from typing import Any

from sparkdl.errors import TrialPruned, named_type

__all__ = [
    "BadArgumentsError",
    "BroadcastMetricTypeError",
    "BroadcastStepTypeError",
    "BroadcastStepValueError",
    "EarlyStopException",
    "MetricTypeError",
    "NotSupportedError",
    "ReturnTypeError",
]

# Raised by the next report of a trial that is stopped early. It is no failure of the trial.
EarlyStopException = TrialPruned


class NotSupportedError(Exception):
    """Something is not supported."""

    def __init__(self, category: str, value: Any, suggestion: str = "") -> None:
        super().__init__(f"({category}: {value}) is not supported. {suggestion}")


class BadArgumentsError(Exception):
    """A function was called with arguments that do not go together."""

    def __init__(self, callable: Any, suggestion: str = "") -> None:  # noqa: A002
        super().__init__(f"{callable} was called using incompatible arguments. {suggestion}")


class ReturnTypeError(TypeError):
    """The training function has returned what is no result."""

    def __init__(self, optimization_key: str, return_type: Any) -> None:
        super().__init__(
            f"the training function returned {return_type!r}, {named_type(return_type)}. "
            f"Return a number, or a dict with {optimization_key!r} and a number."
        )


class MetricTypeError(TypeError):
    """The metric that the training function has returned is no number."""

    def __init__(self, optimization_key: str, return_type: Any) -> None:
        super().__init__(
            f"the training function returned {optimization_key}={return_type!r}, a "
            f"{type(return_type).__name__}. Return a number."
        )


class BroadcastMetricTypeError(TypeError):
    """A metric that was reported is no number."""

    def __init__(self, return_type: Any) -> None:
        super().__init__(
            f"reporter.broadcast got metric={return_type!r}, {named_type(return_type)}. "
            "Expected a number of Python or NumPy; of a tensor, pass metric.item()."
        )


class BroadcastStepTypeError(TypeError):
    """The step of a report is no number."""

    def __init__(self, value: Any, step: Any) -> None:
        super().__init__(
            f"reporter.broadcast({value!r}) got step={step!r}, {named_type(step)}. Expected a "
            "number."
        )


class BroadcastStepValueError(ValueError):
    """The step of a report is smaller than the last one."""

    def __init__(self, value: Any, step: Any, prev_step: Any) -> None:
        super().__init__(
            f"reporter.broadcast({value!r}) got step={step!r} after step {prev_step!r}. Expected "
            "steps that do not decrease, or no step."
        )
