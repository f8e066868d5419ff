"""Runs on the driver. Run a run again, or one trial in this process."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl.files import storage
from sparkdl.files.resources import check_exists, distinct_names
from sparkdl.options import Options
from sparkdl.runner.again.one_trial import try_function
from sparkdl.runner.again.replay import replay_trial
from sparkdl.runner.again.reproduce import reproduce_run
from sparkdl.runs import Run, Trial
from sparkdl.training import preloaded


def reproduce(
    run_or_path: Run | str | os.PathLike[str],
    *,
    train: Callable[..., Any] | None = None,
    data: Any = None,
    algorithm: Any = None,
    pruner: Any = None,
    space: Callable[[Any], dict[str, Any]] | None = None,
    **options: Any,
) -> Run:
    """Run what a run has run as a new run, and print what differs before anything starts.

    The new run has the kept function, the arguments, the seed, the resources and the options of
    the earlier one. On a CPU, its metrics are equal. A search tries the configurations of the
    earlier search in their order. The training function is loaded from the run directory, so
    reproduce only runs whose directory you trust as you would trust a program.

    `run.reproduces` is the id of the earlier run. `run.differences` has what differs: packages and
    Python on the driver and the executors, hardware, the git commit, code on disk that is not the
    kept code, options, originals of resources, the files that were read, and the data.

    Args:
        run_or_path: the directory of a run, or the run.
        train: the training function, if the run has not kept it.
        data: the same data, if the run had `data=`.
        algorithm, pruner, space: an equivalent object, if the search used one that was not kept.
        **options: the fields of `sparkdl.options.Options` that differ, such as `root`, by default
            the folder that contains the earlier run. `env` and `secrets` are required if the run
            had them, because their values are not stored.

    Returns:
        The new run.

    Raises:
        RunNotFoundError: if the directory does not contain a run.
        ConfigError: if an argument is missing that was not kept. Nothing was started.
        RunStoppedError, AllTrialsFailedError, TrainingFailedError: if the new run is not COMPLETE
            in the end; the attribute `run` of the error is the run.

    Example:
        >>> from sparkdl import experiment
        >>> run = experiment.launch(lambda x: x / 3, {"x": [1, 2]}, progress=False)
        >>> again = reproduce(run, progress=False)
        >>> again.reproduces == run.id, [t.value for t in again.trials] == [
        ...     t.value for t in run.trials]
        (True, True)
    """
    path = run_or_path.path if isinstance(run_or_path, Run) else os.fspath(run_or_path)
    Options.parse(options, reproduce)
    objects = {"algorithm": algorithm, "pruner": pruner, "space": space}
    changes = {name: value for name, value in objects.items() if value is not None}
    return reproduce_run(storage.absolute(path), train, changes, data, options)


def replay(
    trial: Trial | str | os.PathLike[str],
    *,
    train: Callable[..., Any] | None = None,
    data: Any = None,
    **options: Any,
) -> Run:
    """Train again as a trial of a search with `algorithm="pbt"` was trained, as a new run.

    The trials of the new run are the intervals that led to the trial, each with the parameters and
    the seed that it had, and each from the checkpoint of the one before: a schedule that a single
    process could follow. On a CPU, the last one has the metrics of the trial. The training function
    is loaded from the run directory, so replay only trials of runs whose directory you trust as you
    would trust a program.

    Args:
        trial: the trial, such as `run.best`, or its folder.
        train: the training function, if the run has not kept it.
        data: the same data, if the run had `data=`.
        **options: as of `reproduce`.

    Returns:
        The new run.

    Raises:
        ConfigError: if the trial belongs to no population, or an argument is missing that was not
            kept. Nothing was started.
        RunStoppedError, AllTrialsFailedError: if the new run is not COMPLETE in the end; the
            attribute `run` of the error is the run.

    Example:
        >>> from pathlib import Path
        >>> from sparkdl import context, experiment, search
        >>> def train(rate):
        ...     before = context.get_checkpoint()
        ...     x = float(Path(before, "x").read_text()) if before else 1.0
        ...     Path("state").mkdir()
        ...     _ = Path("state", "x").write_text(str(x - rate * x))
        ...     context.report({"loss": x - rate * x}, checkpoint="state")
        >>> run = experiment.search(train, {"rate": search.Float(0.1, 0.9)}, num_trials=8,
        ...                         algorithm={"pbt": {"population": 4}}, metric="loss",
        ...                         direction="min", progress=False)
        >>> again = experiment.replay(run.best, progress=False)
        >>> again.trials[-1].value == run.best.value
        True
    """
    path = trial.path if isinstance(trial, Trial) else os.fspath(trial)
    Options.parse(options, replay)
    return replay_trial(storage.absolute(path), train, data, options)


def try_one(
    train: Callable[..., Any],
    params: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    versioned_resources: Sequence[str] = (),
    preload: Callable[[], Any] | None = None,
) -> Any:
    """Call a training function once, in this process, with a context as in a trial.

    Breakpoints work, an exception is the function's own, and no Spark is needed. `context.report`
    prints. Rows of a DataFrame: `with data.local(df): experiment.try_one(train, params)`.

    Args:
        train: the training function.
        params: its parameters by name.
        seed: the seed of `random`, NumPy and the framework.
        folder: the folder of the trial, for its reports, checkpoints and TensorBoard events; by
            default a new temporary folder, which is removed if the function writes nothing.
        versioned_resources: see `sparkdl.options.Options`.
        preload: a function whose result is `context.preloaded`, see `sparkdl.options.Options`.

    Returns:
        What the function returns.

    Raises:
        FunctionError: if the function does not take the parameters.
        ConfigError: if this process is part of a run, or a resource does not exist.

    Example:
        >>> from sparkdl import context
        >>> def train(units):
        ...     return {"units": units, "seed": context.seed}
        >>> try_one(train, {"units": 8}, seed=3)
        {'units': 8, 'seed': 3}
    """
    for path in versioned_resources:
        check_exists(Path(path))
    names = distinct_names(os.path.abspath(path) for path in versioned_resources)
    kept = {name: Path(path) for name, path in names.items()}
    with preloaded.holding(None if preload is None else preload()):
        return try_function(train, dict(params or {}), seed, folder, kept)
