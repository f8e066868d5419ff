"""Runs on the driver. The run directory: a run and its trials, stored as files.

Example:
    >>> from sparkdl.runs import RunState, TrialState
    >>> TrialState.COMPLETE == "COMPLETE"
    True
"""

from sparkdl.runs.run import Run
from sparkdl.runs.states import RunState, TrialState
from sparkdl.runs.trial import Trial, Usage

__all__ = ["Run", "RunState", "Trial", "TrialState", "Usage"]
