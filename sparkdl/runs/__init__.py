"""Runs on the driver. The run directory: a run and its trials, stored as files.

The classes are imported when they are first used: a Spark task needs only the layout.

Example:
    >>> from sparkdl.runs import RunState, TrialState
    >>> TrialState.COMPLETE == "COMPLETE"
    True
"""

from typing import TYPE_CHECKING

from sparkdl.host.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparkdl.runs.run import Run
    from sparkdl.runs.states import RunState, TrialState
    from sparkdl.runs.trial import Trial, Usage

__all__ = ["Run", "RunState", "Trial", "TrialState", "Usage"]

__getattr__ = lazy_names(
    "sparkdl.runs",
    {
        "sparkdl.runs.run": "Run",
        "sparkdl.runs.states": "RunState TrialState",
        "sparkdl.runs.trial": "Trial Usage",
    },
    __all__,
)
