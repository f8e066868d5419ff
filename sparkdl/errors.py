"""Runs anywhere. Every exception that sparkdl raises.

```
SparkDLError
├── ConfigError (ValueError)             an argument or a setting is wrong; nothing was started
├── FunctionError (TypeError)            the training function cannot be called or shipped so
├── PreflightError (RuntimeError)        the cluster cannot run this plan; no trial was started
│   └── SlotsError                       it asks for more than Spark has
├── RunExistsError (FileExistsError)     a run of that id is there already, or still lives
├── RunNotFoundError (FileNotFoundError) no run at that path
├── NoCompleteTrialError (LookupError)   `run.best` was asked for, and no trial is COMPLETE
├── TrialFailedError (RuntimeError)      `run.raise_for_failures()` found failures
│   ├── AllTrialsFailedError             no trial completed; its cause is the first trial's error
│   └── TrainingFailedError              a distributed run failed; its cause is a rank's own error
├── PeerLostError (ConnectionError)      another rank of a gang is gone, or hangs
├── RemoteTraceback                      the cause of a person's exception: where it was raised
├── InvalidTrial                         raised by a training function: this trial cannot be judged
└── TrialPruned                          raised by `context.report()`: the search stopped this trial
```
"""

import difflib
from collections.abc import Iterable

__all__ = [
    "AllTrialsFailedError",
    "ConfigError",
    "FunctionError",
    "InvalidTrial",
    "NoCompleteTrialError",
    "PeerLostError",
    "PreflightError",
    "RemoteTraceback",
    "RunExistsError",
    "RunNotFoundError",
    "SlotsError",
    "SparkDLError",
    "TrainingFailedError",
    "TrialFailedError",
    "TrialPruned",
    "suggest",
]


class SparkDLError(Exception):
    """The root of every exception of sparkdl."""


class ConfigError(SparkDLError, ValueError):
    """An argument or a setting is wrong. Nothing was started."""


class FunctionError(SparkDLError, TypeError):
    """The training function cannot be called with these arguments, or cannot be shipped."""


class PreflightError(SparkDLError, RuntimeError):
    """The cluster cannot run this plan. No trial was started."""


class PeerLostError(SparkDLError, ConnectionError):
    """Another rank of this gang is gone, or has been silent for too long."""


class SlotsError(PreflightError):
    """The plan asks for more processes, cores or GPUs than Spark has."""


class RunExistsError(SparkDLError, FileExistsError):
    """A run with this id exists already, or its driver is still alive."""


class RunNotFoundError(SparkDLError, FileNotFoundError):
    """There is no run at this path."""


class NoCompleteTrialError(SparkDLError, LookupError):
    """The best trial was asked for and none is COMPLETE."""


class TrialFailedError(SparkDLError, RuntimeError):
    """At least one trial failed. Raised by `Run.raise_for_failures()`."""


class AllTrialsFailedError(TrialFailedError):
    """No trial completed. `__cause__` is the first failing trial's own exception."""


class TrainingFailedError(TrialFailedError):
    """A distributed run failed. `__cause__` is the first failing rank's own exception."""


class RemoteTraceback(SparkDLError):
    """Shows the traceback of the training process below a person's exception on the driver."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class InvalidTrial(SparkDLError):
    """Raise this in a training function to mark the trial INVALID: ended, never the best.

    Example:
        >>> from sparkdl.errors import InvalidTrial
        >>> def train(hidden, layers):
        ...     if hidden * layers > 4096:
        ...         raise InvalidTrial(f"{hidden} x {layers} does not fit the device")
    """


class TrialPruned(SparkDLError):
    """The search has stopped this trial. Let it pass, after whatever must be put in order."""


def suggest(name: str, known: Iterable[str]) -> str:
    """A hint at the name that was probably meant, empty if none is near.

    Example:
        >>> suggest("learnin_rate", ["learning_rate", "dropout"])
        " Did you mean 'learning_rate'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
