"""Runs on the driver. Train again as a trial of a population was trained, as a new run."""

from collections.abc import Callable, Mapping
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files.layout import TRIALS
from sparkdl.runner.again.reproduce import reproduce_run
from sparkdl.runs import Run, Trial
from sparkdl.runs.history import read_run
from sparkdl.search.population_settings import REPLAY


def schedule_of(run: Run, trial: Trial) -> list[Trial]:
    """Return the trials that led to a trial, from the beginning of its training.

    Args:
        run: the run.
        trial: a trial of the run.
    """
    schedule = [trial]
    while schedule[0].parent is not None:
        schedule.insert(0, run.trials[schedule[0].parent])
    return schedule


def replay_trial(
    path: str, train: Callable[..., Any] | None, data: Any, options: Mapping[str, Any]
) -> Run:
    """Run the intervals that led to a trial, one after the other.

    Args:
        path: the folder of the trial.
        train: the function, or None for the function that the run has kept.
        data: the DataFrames, for a run that had some.
        options: options of the new run.

    Raises:
        ConfigError: if there is no such trial, or it belongs to no population.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    run_path, _, folder = parent.rpartition("/")
    if folder != TRIALS or not name.isdigit():
        raise ConfigError(
            f"{path} is no folder of a trial; expected a path such as <run>/trials/7, or a Trial "
            "such as run.best."
        )
    run = read_run(run_path)
    trial = run.trials[int(name)]
    if trial.member is None:
        raise ConfigError(
            f"trial {trial.number} of run {run.id} has no schedule, as the run is no search with "
            "algorithm='pbt'. experiment.reproduce runs a run again."
        )
    schedule = [{"params": t.params, "seed": t.seed} for t in schedule_of(run, trial)]
    changes = {
        "algorithm": {REPLAY: {"run": run.id, "trial": trial.number, "schedule": schedule}},
        "num_trials": len(schedule),
        **dict.fromkeys(("stop", "patience", "max_slot_hours")),
        **dict.fromkeys(("initial_params", "constraints"), ()),
    }
    return reproduce_run(run_path, train, changes, data, options)
