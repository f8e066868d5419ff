"""Runs on the driver. Resume a run from its directory."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sparkdl.cluster.base import Cluster
from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.options import check_count
from sparkdl.runner.pipeline.begin import Opener, begin
from sparkdl.runner.pipeline.continued_run import changed_sources, check_max_failed, ended_before
from sparkdl.runner.pipeline.kept_program import program_of, restore_space
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runner.pipeline.preview import is_previewing
from sparkdl.runner.request import Request
from sparkdl.runner.signatures import check_call
from sparkdl.runs import Run, TrialState
from sparkdl.runs.events import CommandHandled, RunStarted
from sparkdl.runs.history import read_description, read_run
from sparkdl.runs.journal import scan_journal
from sparkdl.runs.opening import check_free, continue_run, is_over
from sparkdl.runs.remedies import argument
from sparkdl.runs.retry_choice import Retry, check_retry, waits_again
from sparkdl.runs.same_request import difference
from sparkdl.search.files.formats import read_space
from sparkdl.search.pruners import PRUNERS
from sparkdl.search.settings import ALL_ALGORITHMS, SearchSettings, check_name
from sparkdl.search.space.spaces import Space
from sparkdl.secrets.masks import MASK
from sparkdl.secrets.names import known_secrets

# The rules for the end of a search that a resumed run may change, beside `num_trials`.
STOP_RULES = {"stop", "patience", "max_slot_hours"}

# The settings of a search that may be objects of Optuna.
OBJECTS = ("algorithm", "pruner")

# The settings of a search that a resume may change, and that its start event tells.
CHANGEABLE = (*STOP_RULES, *OBJECTS, "constraints", "num_trials")


def resume_run(
    path: str,
    train: Callable[..., Any] | None,
    changes: Mapping[str, Any],
    retry: Retry,
    data: Any,
    options: Mapping[str, Any],
    cluster: Cluster | None = None,
) -> Run:
    """Run the trials that a run has not finished.

    Args:
        path: the directory of the run.
        train: a corrected function, or None for the function in the directory.
        changes: fields of the search that have new values.
        retry: ended trials that run again.
        data: the DataFrames, for a run that had some.
        options: options that have new values.
        cluster: the cluster; by default the Spark session of the options or of the data.

    Raises:
        RunStoppedError, AllTrialsFailedError, TrainingFailedError: if the run was waited for and is
            not COMPLETE.
    """
    description, paths = read_description(path), RunPaths(path)
    run = read_run(path)
    check_retry(retry, run.trials)
    changes = _valid_changes(changes, description)
    description = with_earlier_changes(description, paths)
    is_shown = bool(options.get("progress", True))
    tensorboard = bool(options.get("tensorboard"))
    has_more = _has_more(run, changes, is_shown)
    if is_over(run, has_more, retry) and (run.state == "COMPLETE" or not is_previewing()):
        return ended_before(run, retry, is_shown, tensorboard)
    request = _request_of(description, paths, options, changes, train=train, data=data)
    secrets = known_secrets(request.options.env, request.options.secrets)
    if request.search:
        names = [name or "value" for name in request.metrics]
        request.search.check(names, request.options.timeout_s, secrets)
    _check_params(run, request, retry)
    check_max_failed(run, request.options, retry)
    program = program_of(request, paths, description.get("preload", False))
    changed = _change_of_search(description["request"]["search"] or {}, request.search, changes)
    changed |= changed_sources(path, train, program, secrets)
    prepared = prepare(request, program, cluster)

    def look() -> Run:
        check_free(path)
        return run

    opener = Opener(
        open=partial(
            continue_run, path, reopen=has_more, retry=retry, changes=changed, secrets=secrets
        ),
        look=look,
        root=path.rstrip("/").rpartition("/")[0],
        name=run.name,
        retry=retry,
    )
    return begin(prepared, opener)


def _valid_changes(changes: Mapping[str, Any], description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new values for fields of a search, without those that are the same.

    Raises:
        ConfigError: if a value is invalid.
        RunExistsError: if the space differs.
    """
    if "num_trials" in changes:
        changes = {**changes, "num_trials": check_count("num_trials", changes["num_trials"])}
    check_name("algorithm", changes.get("algorithm"), ALL_ALGORITHMS)
    check_name("pruner", changes.get("pruner"), PRUNERS)
    return _without_same_space(description, changes)


def _request_of(
    description: Mapping[str, Any],
    paths: RunPaths,
    options: Mapping[str, Any],
    changes: dict[str, Any],
    **fields: Any,
) -> Request:
    """Return the request of a run, with the space and the checkpoint that its directory keeps."""
    if description.get("space") == "function" and "space" not in changes:
        changes["space"] = restore_space(paths)
    request = Request.from_dict(description, options, changes, **fields)
    if storage.exists(paths.initial):  # The copy of the initial checkpoint.
        request = dataclasses.replace(request, init_from=paths.initial)
    return request


def _check_algorithm(run: Run, search: SearchSettings | None) -> None:
    """Validate that trials still continue from one another, or still do not.

    Raises:
        ConfigError: if the new algorithm is of another kind.
    """
    is_population = any(trial.member is not None for trial in run.trials)
    if search and run.trials and search.is_scheduled != is_population:
        raise ConfigError(
            f"algorithm of run {run.id} cannot be changed to {search.algorithm!r}: with 'pbt' the "
            "trials continue from one another, and with other algorithms they do not. Start a new "
            "search."
        )


def _check_pruner(run: Run, search: SearchSettings | None) -> None:
    """Validate that the pruner lets PAUSED trials go on.

    Raises:
        ConfigError: if a trial is PAUSED, and the pruner does not promote trials.
    """
    is_any_paused = any(trial.state == TrialState.PAUSED for trial in run.trials)
    if search and is_any_paused and not search.promotes:
        raise ConfigError(
            f"run {run.id} has PAUSED trials, which only a pruner with 'promote' lets go on. Pass "
            "such a pruner, or start a new search."
        )


def _has_more(run: Run, changes: Mapping[str, Any], is_shown: bool) -> bool:
    """Return True if the changes ask for more trials than the run has."""
    num_trials, num_now = changes.get("num_trials"), run.num_configurations
    if num_trials is not None and num_trials <= num_now and is_shown:
        print(
            f"Note: {argument('num_trials', num_trials)} is the total number of configurations, "
            f"and run {run.id} has {num_now}: none is added. For {num_trials} more pass "
            f"{argument('num_trials', num_now + num_trials)}."
        )
    return (num_trials or 0) > num_now or bool(STOP_RULES & changes.keys())


def _without_same_space(
    description: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the changes without `space` if it is the space of the run.

    Raises:
        RunExistsError: if the space differs.
    """
    changes, old = dict(changes), description.get("space")
    space = changes.get("space")
    if space is None or (old == "function" and callable(space)):
        return changes
    del changes["space"]
    if isinstance(space, str):
        space = read_space(space).space
    if isinstance(space, Mapping):
        space = Space.of(space)
    new = space.to_dict() if isinstance(space, Space) else "function"
    if new != old:
        removed, added = difference(old, new), difference(new, old)
        raise RunExistsError(
            f"run {description['id']} cannot be resumed: space was {removed!r} and is now "
            f"{added!r}. Remove space=, or start a new search with learn_from=. Nothing was "
            "changed."
        )
    return changes


def with_earlier_changes(description: dict[str, Any], paths: RunPaths) -> dict[str, Any]:
    """Return the description of a run with the changes of `resume`, `set` and `enqueue`."""
    written = description["request"]
    search, options = dict(written["search"] or {}), dict(written["options"])
    for event in scan_journal(paths.journal, with_reports=False).events:
        match event:
            case RunStarted():
                changed = event.changed or {}
                search |= {name: changed[name][1] for name in CHANGEABLE if name in changed}
            case CommandHandled(action="set", refused=None):
                for name, value in event.arguments.items():
                    (search if name in CHANGEABLE else options)[name] = value
            case CommandHandled(action="enqueue", refused=None) if search.get("num_trials"):
                search["num_trials"] += 1
    request = {**written, "search": search if written["search"] else None, "options": options}
    return {**description, "request": request}


def _check_params(run: Run, request: Request, retry: Retry) -> None:
    """Validate that the function takes the parameters of the trials, and that all are known.

    Raises:
        ConfigError: if the parameters of a trial that will run were masked in the journal, or the
            algorithm or the pruner is of another kind.
        FunctionError: if the function does not take the parameters.
    """
    _check_algorithm(run, request.search)
    _check_pruner(run, request.search)
    for trial in run.trials:
        if waits_again(trial, retry) and MASK in str(trial.params):
            raise ConfigError(
                f"trial {trial.number} of run {run.id} has parameters that look like "
                f"credentials, which were not kept: {trial.params}. Call the verb again with "
                f"run_id={run.id!r} and if_exists='resume'."
            )
    if request.train and request.search is None:
        check_call(request.train, run.trials[0].params)
    elif request.train and request.search and isinstance(request.search.space, Space):
        for names in sorted(request.search.space.name_sets(), key=len):
            check_call(request.train, names, "space")


def _change_of_search(
    old_search: Mapping[str, Any], search: SearchSettings | None, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the part of the start event that describes the changed settings of the search."""
    if search is None:
        return {}
    new = search.to_dict()
    names = [name for name in CHANGEABLE if name in changes]
    return {name: [old_search[name], new[name]] for name in names if old_search[name] != new[name]}
