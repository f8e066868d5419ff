"""Runs on the driver. The verbs about runs that are kept: read them, list them, go on with them."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

from sparkdl import config, storage
from sparkdl.cluster.spark import SparkCluster
from sparkdl.options import Options
from sparkdl.runner.resume import continue_search
from sparkdl.runs import Run
from sparkdl.runs import history as _history

__all__ = ["history", "load", "resume"]


def load(run_or_path: Run | str | os.PathLike[str]) -> Run:
    """Read a run from its directory: its trials, their values, errors and metrics.

    Args:
        run_or_path: the directory of a run, or a run to read anew.

    Raises:
        RunNotFoundError: there is no run there.

    Example:
        >>> from sparkdl import experiment
        >>> run = experiment.launch(lambda: 1.0, progress=False)
        >>> load(run.path).state == "COMPLETE"
        True
    """
    path = run_or_path.path if isinstance(run_or_path, Run) else run_or_path
    return _history.load(os.fspath(path))


def history(root: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """The runs below a root, newest first, a row each.

    Args:
        root: where runs are kept; by default where `launch` puts them.

    Example:
        >>> from sparkdl import experiment
        >>> run = experiment.launch(lambda: 1.0, name="one", progress=False)
        >>> run.id in set(history()["run"])
        True
    """
    if root is None and (active := SparkSession.getActiveSession()):
        root = SparkCluster(active).root()
    return _history.history(storage.absolute(config.resolve("root", root) or "runs"))


def resume(
    run_or_path: Run | str | os.PathLike[str],
    *,
    train: Callable[..., Any] | None = None,
    num_trials: int | None = None,
    stop: Mapping[str, float] | None = None,
    patience: int | None = None,
    max_slot_hours: float | None = None,
    retry_failed: bool = False,
    space: Mapping[str, Any] | Callable[[Any], dict[str, Any]] | None = None,
    algorithm: Any = None,
    pruner: Any = None,
    data: Any = None,
    **options: Any,
) -> Run:
    """Finish what a run has not finished, whatever ended it.

    What has finished is never run again. A trial that was running begins again, from its own
    checkpoint. The function is the one that the run directory keeps: resume only a run whose
    directory you trust, as you would a program.

    Args:
        run_or_path: the directory of a run, or the run.
        train: a corrected function; the journal keeps how it differs.
        num_trials: of a search, how many configurations to try in all.
        stop, patience, max_slot_hours: other rules of when a search ends.
        retry_failed: run trials that have FAILED again too.
        space: of a search whose space is a function, that function. Any other must be what it was.
        algorithm, pruner: of a search that was given an object, one like it.
        data: what the run was given as `data=`, if it was.
        **options: those of `sparkdl.options.Options` that are to differ, such as `parallelism`;
            `env` must be given again, as its values are not kept.

    Returns:
        The run, with all its trials.

    Raises:
        RunNotFoundError: there is no run there.
        RunExistsError: its driver still lives, or the space differs. Nothing was changed.
        ConfigError: something is missing that was not kept. Nothing was changed.

    Example:
        >>> from sparkdl import experiment
        >>> run = experiment.search(lambda x: x, {"x": [1, 2, 3]}, algorithm="grid",
        ...                         num_trials=2, progress=False)
        >>> len(resume(run.path, num_trials=3, progress=False).trials)
        3
    """
    path = run_or_path.path if isinstance(run_or_path, Run) else os.fspath(run_or_path)
    changes = {
        "num_trials": num_trials,
        "stop": stop,
        "patience": patience,
        "max_slot_hours": max_slot_hours,
        "space": space,
        "algorithm": algorithm,
        "pruner": pruner,
    }
    Options.parse(options, resume)
    given = {name: value for name, value in changes.items() if value is not None}
    return continue_search(storage.absolute(path), train, given, retry_failed, data, options)
