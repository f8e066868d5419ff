"""Runs on the driver. Open a run directory: create a run, or take over a run to resume it."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from sparkdl import storage
from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.runs.events import (
    Event,
    NewTrial,
    ParameterSuggested,
    RunEnded,
    RunStarted,
    TrialChanged,
    TrialsAdded,
)
from sparkdl.runs.history import read_description, replay
from sparkdl.runs.ids_and_seeds import trial_seed
from sparkdl.runs.journal import Journal, read_journal
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.owner import Owner, describe_owner, living_owner
from sparkdl.runs.redact import mask_params, mask_text
from sparkdl.runs.run import Run
from sparkdl.runs.states import RunState, TrialState
from sparkdl.runs.trial import Trial

__all__ = [
    "STOPPED",
    "IfExists",
    "OpenRun",
    "RunDescription",
    "continue_run",
    "difference",
    "open_run",
    "waits_again",
]

IfExists = Literal["error", "resume", "new"]

# The beginning of the error of a trial that was CANCELLED because its run was stopped.
STOPPED = "the run was stopped"


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """The request of a user, as far as the run directory stores it.

    Attributes:
        id: the id of the run, which is the name of its folder.
        name: see `Run`.
        kind: see `Run`.
        description: a text of the user.
        metric: see `Run`.
        direction: see `Run`.
        params: the parameters of each trial; None if a search chooses them.
        seed: the seed of the run.
        secrets: values that must not be stored.
        facts: further fields of `run.json`, such as `space` and `repeats` of a search.
        count: largest number of configurations, for a search.
    """

    id: str
    name: str
    kind: str
    description: str | None
    metric: str | None
    direction: str
    params: list[dict[str, Any]] | None
    seed: int
    secrets: tuple[str, ...]
    facts: Mapping[str, Any]
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run that this driver owns and may write to.

    Attributes:
        run: the run.
        paths: the files of the run.
        journal: the journal of the run.
        owner: the ownership of the run by this process.
        seed: the seed of the run.
        finished_before: True if the run was COMPLETE already and there is nothing to do.
        secrets: values that must not be stored.
    """

    run: Run
    paths: RunPaths
    journal: Journal
    owner: Owner
    seed: int
    finished_before: bool
    secrets: tuple[str, ...] = ()

    def record(self, *events: Event) -> None:
        """Write events to the journal, and update the run with them."""
        for event in self.journal.write([self._masked(event) for event in events]):
            self.run.apply(event)

    def _masked(self, event: Event) -> Event:
        """Return the event with credentials masked in the texts of exceptions."""
        if isinstance(event, TrialChanged) and event.error:
            return replace(event, error=mask_text(event.error, self.secrets))
        if isinstance(event, RunEnded) and event.reason:
            return replace(event, reason=mask_text(event.reason, self.secrets))
        return event

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Mark the run FAILED and release it if the block, which prepares the run, raises."""
        try:
            yield
        except BaseException as exc:
            reason = f"{type(exc).__name__}: {exc}".split("\n")[0]
            self.record(RunEnded(state=RunState.FAILED, reason=reason))
            self.owner.release()
            raise

    def add(
        self,
        params: dict[str, Any],
        configuration: int,
        suggested: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
    ) -> Trial:
        """Add a trial to the run.

        Args:
            params: the parameters of the trial.
            configuration: the number of its configuration.
            suggested: the value and the distribution of each parameter that a function suggested,
                see `ParameterSuggested`. They are written together with the trial.
        """
        number = len(self.run.trials)
        storage.make_directory(self.paths.trial(number).folder)
        trial = NewTrial(
            number=number,
            params=mask_params(params, self.secrets),
            seed=trial_seed(self.seed, number),
            configuration=configuration,
        )
        suggestions = [
            ParameterSuggested(number=number, name=name, value=value, distribution=distribution)
            for name, (value, distribution) in suggested.items()
        ]
        self.record(TrialsAdded(trials=[trial]), *suggestions)
        return self.run.trials[number]


def open_run(root: str, description: RunDescription, if_exists: IfExists) -> OpenRun:
    """Create a run, or take over the existing run with this id.

    Args:
        root: path or URL of the folder with all runs.
        description: the description of the run.
        if_exists: the action if there is a run with this id: `error` raises, `resume` takes the
            run over, `new` creates a run whose id has a number appended.

    Raises:
        ConfigError: if the id is no valid name of a folder.
        RunExistsError: if the run exists and may not be taken over; the message gives the reason
            and the remedy.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", description.id):
        raise ConfigError(
            f"run_id is {description.id!r}; expected only letters, digits, '.', '_' and '-', and a "
            "letter or digit first, as run_id is the name of a folder."
        )
    if if_exists not in ("error", "resume", "new"):
        raise ConfigError(f"if_exists is {if_exists!r}; expected 'error', 'resume' or 'new'.")
    paths = RunPaths(storage.join(root, description.id))
    if not storage.exists(paths.run):
        return _create(paths, description)
    if if_exists == "new":
        return open_run(root, replace(description, id=_next_id(root, description.id)), "new")
    if owner := living_owner(paths):
        raise _owned_error(description.id, owner, paths.folder)
    if if_exists == "error":
        raise RunExistsError(
            f"run {description.id} exists already in {paths.folder}. Choose another run_id, or "
            "pass if_exists='resume' to finish that run or if_exists='new' to start another run."
        )
    return _take_over(paths, description)


def _next_id(root: str, run_id: str) -> str:
    taken = set(storage.list_names(root))
    number = 2
    while f"{run_id}-{number}" in taken:
        number += 1
    return f"{run_id}-{number}"


def _create(paths: RunPaths, description: RunDescription) -> OpenRun:
    content = {
        "id": description.id,
        "name": description.name,
        "kind": description.kind,
        "description": mask_text(description.description or "", description.secrets) or None,
        "metric": description.metric,
        "direction": description.direction,
        "seed": description.seed,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **description.facts,
    }
    owner = Owner(paths)
    storage.make_directory(paths.folder)
    owner.hold()
    # A start that was killed before it wrote run.json may have left a journal.
    storage.remove(paths.journal)
    run = replay(content, paths.folder, [])
    trials = _new_trials(description)
    for trial in trials:
        storage.make_directory(paths.trial(trial.number).folder)
    opened = OpenRun(
        run=run,
        paths=paths,
        journal=Journal(paths.journal),
        owner=owner,
        seed=description.seed,
        finished_before=False,
        secrets=description.secrets,
    )
    with opened.failing():
        opened.record(RunStarted(), TrialsAdded(trials=trials))
        # Only with this file the folder is a run, so it is written last.
        storage.write(paths.run, json.dumps(content, indent=1))
    return opened


def _new_trials(description: RunDescription) -> list[NewTrial]:
    """Return the trials in the form in which they are read back from the journal."""
    return [
        NewTrial(
            number=number,
            params=json.loads(json.dumps(mask_params(params, description.secrets))),
            seed=trial_seed(description.seed, number),
        )
        for number, params in enumerate(description.params or ())
    ]


def _take_over(paths: RunPaths, description: RunDescription) -> OpenRun:
    content = read_description(paths.folder)
    before = replay(content, paths.folder, read_journal(paths.journal))
    now: Any = description.facts.get("space")
    then: Any = content.get("space")
    if description.params is not None:
        now = [trial.params for trial in _new_trials(description)]
        then = [trial.params for trial in before.trials]
    for name, old, new in (
        ("kind", before.kind, description.kind),
        ("metric", before.metric, description.metric),
        ("direction", before.direction, description.direction),
        ("objectives", before.objectives, dict(description.facts.get("objectives", {}))),
        ("args" if description.params is not None else "space", then, now),
        ("repeats", content.get("repeats", 1), description.facts.get("repeats", 1)),
    ):
        if old != new:
            old, new = difference(old, new), difference(new, old)
            raise RunExistsError(
                f"run {description.id} cannot be resumed: {name} was {old!r} and is now {new!r}. "
                "Pass the earlier value, or if_exists='new'. Nothing was changed."
            )
    # A search that one of its stopping rules ended is complete, even with fewer trials.
    has_more = (description.count or 0) > before.num_configurations and not before.reason
    return continue_run(paths.folder, reopen=has_more, secrets=description.secrets)


def continue_run(
    path: str,
    *,
    reopen: bool = False,
    retry_failed: bool = False,
    changed: Mapping[str, Any] | None = None,
    secrets: tuple[str, ...] = (),
) -> OpenRun:
    """Take over a run without a living driver. Its unfinished trials become WAITING.

    Args:
        path: the run directory.
        reopen: open the run also if it is COMPLETE, to add trials.
        retry_failed: failed trials become WAITING, too.
        changed: the arguments that differ from those before, see `RunStarted`.
        secrets: values that must not be stored.

    Raises:
        RunNotFoundError: if there is no run at `path`.
        RunExistsError: if a living driver owns the run.
    """
    paths = RunPaths(path)
    description = read_description(path)
    if owner := living_owner(paths):
        raise _owned_error(description["id"], owner, path)
    events = read_journal(paths.journal)
    run = replay(description, path, events)
    waiting = _unfinished(run, paths, retry_failed, events[-1].time or 0.0)
    this_owner = Owner(paths)
    this_owner.hold()
    is_complete = run.state == "COMPLETE" and not reopen and not (retry_failed and waiting)
    opened = OpenRun(
        run=run,
        paths=paths,
        journal=Journal(paths.journal),
        owner=this_owner,
        seed=description["seed"],
        finished_before=is_complete,
        secrets=secrets,
    )
    if not is_complete:
        opened.record(RunStarted(changed=changed or None), *waiting)
    return opened


def _owned_error(run_id: str, owner: dict[str, Any], folder: str) -> RunExistsError:
    return RunExistsError(
        f"run {run_id} is being run by {describe_owner(owner)}. Wait until the run has ended, or "
        f"end that process. The run directory is {folder}."
    )


def waits_again(trial: Trial, retry_failed: bool) -> bool:
    """Return True if a trial runs when its run is resumed."""
    stopped = trial.state == "CANCELLED" and (trial.error or "").startswith(STOPPED)
    return stopped or (retry_failed and trial.state == "FAILED") or not trial.state.is_final


def _unfinished(run: Run, paths: RunPaths, retry_failed: bool, last: float) -> list[TrialChanged]:
    """Return the events by which unfinished trials become WAITING.

    Args:
        run: the run.
        paths: the files of the run.
        retry_failed: failed trials count as unfinished.
        last: the time of the last event of the earlier driver, which is taken for the end of
            attempts that were running.
    """
    events = []
    for trial in run.trials:
        if trial.state != "WAITING" and waits_again(trial, retry_failed):
            event = TrialChanged(
                number=trial.number,
                state=TrialState.WAITING,
                attempt=paths.trial(trial.number).num_attempts() - 1,
                failure=trial.failure if trial.state == TrialState.FAILED else None,
                ended=last,
            )
            events.append(event)
    return events


def difference(value: Any, other: Any) -> Any:
    """Return the part of a value that differs from another value, for an error message.

    Args:
        value: a dict, a list of parameter combinations, or any other value.
        other: the value to compare with.
    """
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return {name: item for name, item in value.items() if other.get(name) != item}
    if not isinstance(value, list):
        return value
    return [params for params in value if params not in other] or [f"{len(value)} combinations"]
