"""Runs on the driver. Read, list and resume the runs that are stored in run directories."""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl.cluster.root import resolve_root
from sparkdl.errors import ConfigError, RunNotFoundError, suggest
from sparkdl.experiment.newest import newest_run
from sparkdl.files import storage
from sparkdl.files.layout import RUN
from sparkdl.options import Options
from sparkdl.runner.control.loaded_run import LoadedRunHandle
from sparkdl.runs import Run
from sparkdl.runs import history as _history
from sparkdl.runs.filters import Since, Where, meets, rows_meeting
from sparkdl.runs.retry_choice import parse_retry
from sparkdl.runs.views.comparison import Comparison

if TYPE_CHECKING:
    import pandas as pd


def load(id_or_path: Run | str | os.PathLike[str] | None = None) -> Run:
    """Read a run from its directory: its trials, their values, errors and metrics.

    `wait()` of the run waits for its end, also if another process runs the run, and `cancel()`,
    `set()`, `enqueue()`, `pause()` and `unpause()` reach that process through the run directory.

    Args:
        id_or_path: the id of a run below the root that `launch` uses, the directory of a run, or a
            run to read again; by default the newest run below the root.

    Raises:
        RunNotFoundError: if there is no such run.

    Example:
        >>> from sparkdl import experiment
        >>> run = experiment.launch(lambda: 1.0, progress=False)
        >>> load(run.path).state == "COMPLETE"
        True
        >>> load(run.id).path == load().path == run.path
        True
    """
    path = path_of(id_or_path)
    try:
        run = _history.load(path)
    except RunNotFoundError as exc:
        raise RunNotFoundError(f"{exc}{_hint_at_run(path)}") from None
    run.attach(LoadedRunHandle(run))
    return run


def _hint_at_run(path: str) -> str:
    """Return a hint at the newest run whose id starts with the given name, or at a similar id."""
    folder, _, name = storage.absolute(path).rstrip("/").rpartition("/")
    with contextlib.suppress(OSError):
        names = sorted(other for other in storage.list_names(folder) if other != name)
        alike = [other for other in names if name and other.startswith(f"{name}-")]
        return f" Did you mean {alike[-1]!r}?" if alike else suggest(name, names)
    return ""


def path_of(id_or_path: Run | str | os.PathLike[str] | None) -> str:
    """Return the directory of a run, see `load`."""
    if isinstance(id_or_path, Run):
        return id_or_path.path
    if id_or_path is None:
        return newest_run(resolve_root())
    is_id = isinstance(id_or_path, str) and "/" not in id_or_path
    if is_id and not Path(id_or_path, RUN).exists():
        return storage.join(resolve_root(), os.fspath(id_or_path))
    return os.fspath(id_or_path)


def history(
    root: str | os.PathLike[str] | None = None,
    where: Where | None = None,
    *,
    user: str | Iterable[str] | None = None,
    since: Since | None = None,
    tags: str | Iterable[str] | None = None,
) -> "pd.DataFrame":
    """Return a table of the runs below a root, newest first, with one row per run.

    The columns `param.<name>` and `metric.<name>` are those of the best trial; of several trials
    without a best one, only parameters that all trials share. A run that goes on has the values
    so far. Folders that cannot be read are left out, counted in a warning, and named in
    `history().attrs["unreadable"]`.

    Args:
        root: the directory or URL that holds the runs; by default the one that `launch` uses.
        where: a condition that runs meet. A text is an expression of `pandas.DataFrame.eval` over
            the columns, such as `"state == 'COMPLETE' and best > 0.9 and learning_rate < 0.01"`: a
            parameter or metric needs no prefix unless another column has its name, and a name
            with a dot stands in backticks. Use only text that you would run as a program. A
            function is called with each row, such as `lambda row: row["best"] > 0.9`.
        user: the name of the user who started the run, or several names.
        since: the runs that started at this time or later: a datetime, a text such as
            `"2026-11-01"`, or a duration before now such as `"7d"`, `"12h"` or a timedelta.
        tags: a tag that the run has, or several, all of which it has; see `Run.tag`.

    Raises:
        ConfigError: if a condition cannot be evaluated.

    Example:
        >>> from sparkdl import experiment
        >>> run = experiment.launch(lambda: 1.0, name="one", progress=False)
        >>> run.tag("baseline")
        >>> history(where="best >= 1", tags="baseline")["run"][0] == run.id
        True
    """
    rows, unreadable = _history.newest_rows(resolve_root(root))
    frame = _history.frame_of(rows, unreadable).iloc[rows_meeting(rows, user, since, tags)]
    if where is not None and len(frame):
        frame = frame[meets(frame, where)]
    return frame.reset_index(drop=True)


def compare(runs: Sequence[Run | str | os.PathLike[str]]) -> Comparison:
    """Compare runs: what differs in their results, parameters, durations and environments.

    Args:
        runs: two or more runs, their directories, or their ids below the root.

    Returns:
        A comparison: `print` it, or let a notebook show it; `to_pandas()` is the table, and
        `figure()` draws the runs over one another.

    Raises:
        ConfigError: if there are fewer than two runs.
        RunNotFoundError: if there is no such run.

    Example:
        >>> from sparkdl import experiment
        >>> def train(x):
        ...     return x * x
        >>> runs = [experiment.launch(train, {"x": [x]}, progress=False) for x in (1, 2)]
        >>> compare(runs).to_pandas().loc[("parameters", "x")].tolist()
        [1, 2]
    """
    if isinstance(runs, str | Run) or len(runs) < 2:
        raise ConfigError("compare expects two or more runs, such as [run, 'id-of-run'].")
    return Comparison([run if isinstance(run, Run) else load(run) for run in runs])


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
    constraints: Sequence[str] | None = None,
    data: Any = None,
    **options: Any,
) -> Run:
    """Finish a run that has ended early.

    Finished trials are not repeated, and failed trials only with `retry`. A trial that was running
    is restarted from its own checkpoint. The training function is loaded from the run directory, so
    resume only runs whose directory you trust as you would trust a program. A space that is a
    function is loaded too.

    Args:
        run_or_path: the directory of a run, or the run.
        train: a corrected training function; the journal stores its difference from the original.
        num_trials: total number of configurations that a search tries.
        stop, patience, max_slot_hours: new stopping rules of a search.
        retry_failed: the same as `retry="failed"`.
        space: the function, if the space of the search is a function that was not kept. A space
            that is a dict may be passed too, but cannot be changed.
        algorithm, pruner: an equivalent object, if the search used an object of Optuna.
        constraints: the constraints of a search from now on, in place of those before; an empty
            list for none.
        data: the same data, if the run was started with `data=`.
        **options: the fields of `sparkdl.options.Options` to change, such as `parallelism`, and
            `retry`. `env` and `secrets` are required if the run had them, because their values are
            not stored.

    Returns:
        The run, with all its trials.

    Raises:
        RunNotFoundError: if the directory does not contain a run.
        RunExistsError: if the driver of the run is still alive, or the space differs. Nothing was
            changed.
        ConfigError: if an argument is missing that is not stored, or `retry` names a trial that
            cannot run again. Nothing was changed.
        RunStoppedError, AllTrialsFailedError, TrainingFailedError: if the run is not COMPLETE in
            the end; the attribute `run` of the error is the run.

    Example:
        >>> from sparkdl import experiment
        >>> run = experiment.search(lambda x: x, {"x": [1, 2, 3]}, algorithm="grid",
        ...                         num_trials=2, progress=False)
        >>> len(resume(run.path, num_trials=3, progress=False).trials)
        3
    """
    from sparkdl.runner.again.resume import resume_run

    path = run_or_path.path if isinstance(run_or_path, Run) else os.fspath(run_or_path)
    changes = {
        "num_trials": num_trials,
        "stop": stop,
        "patience": patience,
        "max_slot_hours": max_slot_hours,
        "space": space,
        "algorithm": algorithm,
        "pruner": pruner,
        "constraints": constraints,
    }
    Options.parse(options, resume)
    retry = parse_retry(options.get("retry")) | ({"failed"} if retry_failed else frozenset())
    changes = {name: value for name, value in changes.items() if value is not None}
    return resume_run(storage.absolute(path), train, changes, retry, data, options)
