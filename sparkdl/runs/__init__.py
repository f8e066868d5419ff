"""Runs on the driver. The run directory: a run and its trials, stored as files.

The classes are imported when they are first used: a Spark task needs only the layout.

Example:
    >>> from sparkdl.runs import RunState, TrialState
    >>> TrialState.COMPLETE == "COMPLETE"
    True
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.runs.run import Run
    from sparkdl.runs.states import RunState, TrialState
    from sparkdl.runs.trial import Trial, Usage

__all__ = ["Run", "RunState", "Trial", "TrialState", "Usage"]

_MODULES = {
    "Run": "sparkdl.runs.run",
    "RunState": "sparkdl.runs.states",
    "Trial": "sparkdl.runs.trial",
    "TrialState": "sparkdl.runs.states",
    "Usage": "sparkdl.runs.trial",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(
        f"module 'sparkdl.runs' has no attribute {name!r}. Expected one of {', '.join(__all__)}."
    )
