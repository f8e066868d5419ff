"""Runs anywhere. The exceptions that sparkdl raises.

```
SparkDLError
├── ConfigError (ValueError)             an argument or a setting is wrong; nothing was started
│   └── MissingPackageError (ModuleNotFoundError) an optional package is not installed
├── FunctionError (TypeError)            the training function cannot be called or shipped
├── PreflightError (RuntimeError)        the cluster cannot run this plan; no trial was started
│   └── SlotsError                       the plan needs more than Spark has
├── RunExistsError (FileExistsError)     a run with this id exists already, or is still running
├── RunNotFoundError (FileNotFoundError) there is no run at this path
├── RunDamagedError (ValueError)         the files of a run cannot be read
├── ModelNotFoundError (FileNotFoundError) there is no such model, version or alias
├── ModelDamagedError (ValueError)       the description of a version of a model cannot be read
├── NoCompleteTrialError (LookupError)   `run.best` needs a COMPLETE trial, and there is none
├── TrialFailedError (RuntimeError)      `run.raise_for_failures()` found failures
│   ├── AllTrialsFailedError             no trial completed; the cause is the first trial's error
│   └── TrainingFailedError              a distributed run failed; the cause is a rank's error
├── NotKeptError (TypeError)             a returned object was not kept, and cannot be read
├── RunStoppedError (RuntimeError)       a run ended before it was complete
├── ControlError (RuntimeError)          a driver refused a command, or no driver answers
├── CollectiveError                      a collective of a gang has failed
│   └── PeerLostError (ConnectionError)  another rank is lost, or hangs
├── RemoteTraceback                      the cause of a user's exception, with its remote traceback
├── InvalidTrial                         raised by a training function: the trial has no valid value
└── TrialPruned                          raised by `context.report()`: the search stopped the trial
```
"""

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = [
    "AllTrialsFailedError",
    "CollectiveError",
    "ConfigError",
    "ControlError",
    "DriftError",
    "FunctionError",
    "InvalidTrial",
    "MissingPackageError",
    "ModelDamagedError",
    "ModelNotFoundError",
    "NoCompleteTrialError",
    "NotKeptError",
    "PeerLostError",
    "PreflightError",
    "RemoteTraceback",
    "RunDamagedError",
    "RunExistsError",
    "RunNotFoundError",
    "RunStoppedError",
    "SlotsError",
    "SparkDLError",
    "TrainingFailedError",
    "TrialFailedError",
    "TrialPruned",
    "suggest",
]


class SparkDLError(Exception):
    """The base class of all exceptions of sparkdl."""


class ConfigError(SparkDLError, ValueError):
    """An argument or a setting is wrong. Nothing was started."""


class MissingPackageError(ConfigError, ModuleNotFoundError):
    """A feature needs an optional package that is not installed. The message names its extra."""


class FunctionError(SparkDLError, TypeError):
    """The training function cannot be called with these arguments, or cannot be shipped."""


class PreflightError(SparkDLError, RuntimeError):
    """The cluster cannot run this plan. No trial was started."""


class CollectiveError(SparkDLError):
    """A collective of a gang has failed."""


class PeerLostError(CollectiveError, ConnectionError):
    """Another rank of this gang is lost, or has been silent for too long."""


class SlotsError(PreflightError):
    """The plan needs more processes, cores or GPUs than Spark has."""


class DriftError(SparkDLError, ValueError):
    """The data of a run is not as expected. No trial was started.

    Attributes:
        drift: the comparison, see `sparkdl.monitoring.Drift`.
    """

    def __init__(self, message: str, drift: Any = None) -> None:
        super().__init__(message)
        self.drift = drift


class RunExistsError(SparkDLError, FileExistsError):
    """A run with this id exists already, or its driver is still alive."""


class RunNotFoundError(SparkDLError, FileNotFoundError):
    """There is no run at this path."""


class RunDamagedError(SparkDLError, ValueError):
    """The files of a run cannot be read, or were written by another version of sparkdl."""


class ModelNotFoundError(SparkDLError, FileNotFoundError):
    """There is no such model, version or alias in the model registry."""


class ModelDamagedError(SparkDLError, ValueError):
    """The description of a version of a model cannot be read, or has another format."""


class NoCompleteTrialError(SparkDLError, LookupError):
    """The best trial was requested, but no trial is COMPLETE."""


class NotKeptError(SparkDLError, TypeError):
    """The result is read, but a part of what the training function returned could not be kept."""


class RunStoppedError(SparkDLError, RuntimeError):
    """A run ended before it was complete: it was cancelled, or a limit or its cluster ended it.

    Attributes:
        run: the run, with the trials that have completed.
    """

    def __init__(self, message: str, run: Any = None) -> None:
        super().__init__(message)
        self.run = run


class ControlError(SparkDLError, RuntimeError):
    """A command to a run was refused, or no driver of the run answers. Nothing was changed.

    Attributes:
        run: the run, if it is known.
    """

    def __init__(self, message: str, run: Any = None) -> None:
        super().__init__(message)
        self.run = run


class TrialFailedError(SparkDLError, RuntimeError):
    """At least one trial failed. Raised by `Run.raise_for_failures()`.

    Attributes:
        run: the run, with all its trials.
    """

    def __init__(self, message: str, run: Any = None) -> None:
        super().__init__(message)
        self.run = run


class AllTrialsFailedError(TrialFailedError):
    """No trial completed. `__cause__` is the exception of the first failed trial."""


class TrainingFailedError(TrialFailedError):
    """A distributed run failed. `__cause__` is the exception of the first failed rank."""


class RemoteTraceback(SparkDLError):
    """The traceback of the training process, as the cause of the user's exception on the driver."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class InvalidTrial(SparkDLError):
    """Raise this in a training function to mark the trial INVALID: it ends and is never the best.

    Example:
        >>> from sparkdl.errors import InvalidTrial
        >>> def train(hidden, layers):
        ...     if hidden * layers > 4096:
        ...         raise InvalidTrial(f"{hidden} x {layers} does not fit the device")
    """


class TrialPruned(SparkDLError):
    """Raised when the search stops this trial. Clean up if needed, and raise it again."""


def named_type(value: object) -> str:
    """Return the name of the type of a value with its article, for messages.

    Example:
        >>> named_type(3), named_type([3])
        ('an int', 'a list')
    """
    name = type(value).__name__
    return f"{'an' if name[:1] in tuple('AEIOaeio') else 'a'} {name}"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the name that was probably meant; empty if no known name is similar.

    Example:
        >>> suggest("learnin_rate", ["learning_rate", "dropout"])
        " Did you mean 'learning_rate'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
