"""Runs on the driver. Call a training function in this process, as a trial would be called."""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from sparkdl import checkpoints, context
from sparkdl.cluster.process.seeds import seeded
from sparkdl.cluster.program.local_modules import importing
from sparkdl.cluster.program.needed_packages import needed_packages
from sparkdl.cluster.program.packaging import Program
from sparkdl.errors import ConfigError
from sparkdl.files import resources, storage
from sparkdl.files.layout import RunPaths
from sparkdl.host.supported_versions import check_versions
from sparkdl.host.variables import set_variables
from sparkdl.runner.pipeline.kept_code import changed_code
from sparkdl.runner.pipeline.preview import IN_PROCESS, end_preview
from sparkdl.runner.signatures import check_call
from sparkdl.runs import Trial, provenance
from sparkdl.runs.history import read_description, read_run
from sparkdl.secrets.masks import MASK


def try_function(
    train: Callable[..., Any],
    params: Mapping[str, Any],
    seed: int,
    folder: str | os.PathLike[str] | None,
    resource_files: Mapping[str, Path],
) -> Any:
    """Call a function in this process with a context as in a trial, and return what it returns.

    Args:
        train: the function.
        params: its arguments.
        seed: the seed of `random`, NumPy and the framework.
        folder: the folder of the trial; None for a new temporary folder.
        resource_files: the files and folders for `context.resource`, by name.

    Raises:
        ConfigError: if this process is part of a run, or a version is too old.
        FunctionError: if the function does not take the parameters.
    """
    check_call(train, params)
    frameworks = needed_packages(train).keys() & {"tensorflow", "keras"}
    check_versions("python", *sorted(frameworks and {"tensorflow", "keras"}))
    with _acting(params, seed, folder) as me:
        resources.keep(str(me.folder), resource_files, {})
        with context.acting_as(dataclasses.replace(me, run_path=me.folder)), seeded(seed):
            return train(**params)


@contextlib.contextmanager
def _acting(
    params: Mapping[str, Any], seed: int, folder: str | os.PathLike[str] | None
) -> Iterator[context.Context]:
    """Return a context of this process for a call outside a run, and say where its files are."""
    end_preview(IN_PROCESS)
    me = context.current()
    if me.run is not None:
        raise ConfigError(
            f"this process is part of run {me.run}: call the function itself, or call "
            "experiment.try_one and trial.debug in a plain Python session."
        )
    own = tempfile.mkdtemp(prefix="sparkdl-trial-") if folder is None else os.path.abspath(folder)
    Path(own).mkdir(parents=True, exist_ok=True)
    try:
        yield dataclasses.replace(
            me,
            folder=own,
            url=own,
            params=dict(params),
            seed=seed,
            data_seed=seed,
            prints=True,
        )
    finally:
        if folder is None and not any(path.is_file() for path in Path(own).rglob("*")):
            storage.remove(own)
        else:
            print(f"Its files are in {own}", flush=True)


def debug_trial(
    trial: Trial,
    env: Mapping[str, str],
    from_start: bool,
    folder: str | os.PathLike[str] | None,
) -> Any:
    """Call the function of a trial in this process; its run stays as it is.

    Args:
        trial: the trial, of a run directory.
        env: values of the variables that the run had with `env=`.
        from_start: begin without the checkpoint that the trial has committed, as an interval of a
            population always does.
        folder: the folder for what the call writes; None for a new temporary folder.

    Raises:
        ConfigError: if the function, a parameter or a variable is not known.
    """
    path = trial.path.rpartition("/trials/")[0]
    paths, description = RunPaths(path), read_description(path)
    _check(trial, description, env)
    program = Program.from_dict(provenance.read_program(paths.program))
    for difference in changed_code(path, description, program, ()):
        print(f"Note: {difference}", flush=True)
    with (
        _acting(trial.params, trial.seed, folder) as me,
        set_variables(env),
        importing(program.modules),
    ):
        me = dataclasses.replace(
            me,
            trial=trial.number,
            run_path=path,
            checkpoint=_checkpoint(trial, paths, from_start, str(me.folder)),
            metric=description["metric"],
            direction=description["direction"],
        )
        with context.acting_as(me), seeded(trial.seed):
            function = cloudpickle.loads(program.function)
            if (description["request"]["search"] or {}).get("style") == "objective":
                return _call_objective(function, trial.params)
            return function(**trial.params)


def _check(trial: Trial, description: Mapping[str, Any], env: Mapping[str, str]) -> None:
    if MASK in str(trial.params):
        raise ConfigError(
            f"trial {trial.number} has parameters that look like credentials, which were not kept: "
            f"{trial.params}. Call experiment.try_one(train, params) with the values."
        )
    if missing := set(description["env"]) - {*env, *os.environ}:
        raise ConfigError(
            f"the run had env={{{', '.join(sorted(missing))}}}, whose values are never kept. Pass "
            "env= with these values."
        )


def _checkpoint(trial: Trial, paths: RunPaths, from_start: bool, folder: str) -> str | None:
    """Return a copy of the checkpoint that the trial begins with or would go on from, or None."""
    source = paths.initial
    checkpoint = checkpoints.newest(paths.initial)
    if trial.parent is not None:
        parent = read_run(paths.folder).trials[trial.parent]
        source = parent.path
        checkpoint = parent.checkpoint_of_value()
    # An interval of a population is a whole: to go on from its end would be another interval.
    if trial.member is None and not from_start and (newest := checkpoints.newest(trial.path)):
        source = trial.path
        checkpoint = newest
    if checkpoint is None:
        return None
    local = Path(checkpoints.fetch(source, checkpoint.number, folder))
    copy = Path(folder, "begins-with", local.name)
    storage.copy(local, str(copy))
    return str(copy)


def _call_objective(function: Any, params: Mapping[str, Any]) -> Any:
    """Call an objective in Optuna's style with the parameters that it got."""
    import optuna

    objective = function.args[0]  # See `Request.target`.
    return objective(optuna.trial.FixedTrial(dict(params)))
