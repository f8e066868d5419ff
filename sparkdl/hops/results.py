"""Runs on the driver. Return the results of a run in the form of hops-util-py."""

from typing import Any

from sparkdl.errors import NotKeptError
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths, log_of
from sparkdl.hops.project import root
from sparkdl.runs import Run, Trial

__all__ = ["BestResult", "Result", "best_of", "result_of", "values_of"]

Result = tuple[str, dict[str, Any] | None]
BestResult = tuple[str, dict[str, Any], dict[str, Any]]


def values_of(trial: Trial) -> dict[str, Any]:
    """Return the values that a training function returned, and the path of its log.

    A single number is named `metric`. The paths of files are relative to the project, so that
    `hdfs.project_path() + path` is a full path.

    Args:
        trial: the trial.
    """
    try:
        result = trial.result
    except NotKeptError:
        result = trial.outputs
    values = result if isinstance(result, dict) else {"metric": result}
    returned = {name: _relative(trial, value) for name, value in values.items()}
    return {**returned, "log": _from_root(_log_of(trial))}


def result_of(run: Run) -> Result:
    """Return the folder of a run, and the values of its trial if it has only one."""
    return run.path, values_of(run.trials[0]) if len(run.trials) == 1 else None


def best_of(run: Run) -> BestResult:
    """Return the folder, the parameters and the values of the best trial."""
    best = run.best
    return best.path, best.params, values_of(best)


def _relative(trial: Trial, value: Any) -> Any:
    """Return the path of a file of the trial relative to the project, and other values as is.

    Files that were returned are in folders of the trial; a mere text may be the name of one.
    """
    is_path = isinstance(value, str) and "/" in value
    is_file = is_path and storage.exists(storage.join(trial.path, value))
    return _from_root(storage.join(trial.path, value)) if is_file else value


def _log_of(trial: Trial) -> str:
    """Return the log of the trial, of several processes that of the chief."""
    names = storage.list_names(trial.path)
    chiefs = [name for name in (log_of("chief", 0), log_of("worker", 0)) if name in names]
    return storage.join(trial.path, chiefs[0]) if chiefs else TrialPaths(trial.path).log


def _from_root(path: str) -> str:
    return path.removeprefix(f"{root()}/")
