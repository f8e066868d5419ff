"""The run directory: what a run did, kept as files (runs on the driver).

Example:
    >>> from sparkdl.runs import RunState, TrialState
    >>> TrialState.COMPLETE == "COMPLETE"
    True
"""

from sparkdl.runs.run import Run
from sparkdl.runs.states import RunState, TrialState
from sparkdl.runs.trial import Trial, Usage

__all__ = ["Run", "RunState", "Trial", "TrialState", "Usage"]
