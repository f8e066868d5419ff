"""Runs on the driver. Opens a run directory: a new one, or one that a retried job comes back to."""

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
from sparkdl.runs.redact import mask_params
from sparkdl.runs.run import Run
from sparkdl.runs.states import RunState, TrialState
from sparkdl.runs.trial import Trial

__all__ = [
    "STOPPED",
    "IfExists",
    "OpenRun",
    "Wanted",
    "continue_run",
    "difference",
    "open_run",
    "waits_again",
]

IfExists = Literal["error", "resume", "new"]

# How the error of a trial begins that did not finish as its run was stopped.
STOPPED = "the run was stopped"


@dataclass(frozen=True)
class Wanted:
    """What the person asked for, as far as the run directory keeps it.

    Attributes:
        id, name, kind, description, metric, direction: see `Run`.
        params: the parameters of each trial; None where a search finds them.
        seed: the run's seed.
        secrets: values that may not be kept.
        facts: whatever else `run.json` is to say; under `space` and `repeats`, of a search.
        count: how many configurations there are to be at most, where a search finds them.
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


@dataclass(frozen=True)
class OpenRun:
    """A run that this driver owns and may write to."""

    run: Run
    paths: RunPaths
    journal: Journal
    owner: Owner
    seed: int
    finished_before: bool
    secrets: tuple[str, ...] = ()

    def record(self, *events: Event) -> None:
        """Write down what happened, and take it over."""
        for event in self.journal.write(list(events)):
            self.run.apply(event)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """For what comes before an execution: if it raises, the run is over, and nobody's."""
        try:
            yield
        except BaseException as exc:
            why = f"{type(exc).__name__}: {exc}".split("\n")[0]
            self.record(RunEnded(state=RunState.FAILED, reason=why))
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


def open_run(root: str, wanted: Wanted, if_exists: IfExists) -> OpenRun:
    """Make the run directory, or take over the one of that id.

    Raises:
        ConfigError: the id cannot be a folder's name.
        RunExistsError: it exists and may not be taken over; the message says why and what to do.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", wanted.id):
        raise ConfigError(
            f"run_id is {wanted.id!r}; expected letters, digits, '.', '_' and '-' only, as it is "
            "a folder's name."
        )
    if if_exists not in ("error", "resume", "new"):
        raise ConfigError(f"if_exists is {if_exists!r}; expected 'error', 'resume' or 'new'.")
    paths = RunPaths(storage.join(root, wanted.id))
    if not storage.exists(paths.run):
        return _create(paths, wanted)
    if if_exists == "new":
        return open_run(root, replace(wanted, id=_next_id(root, wanted.id)), "new")
    if owner := living_owner(paths):
        raise _being_run(wanted.id, owner, paths.folder)
    if if_exists == "error":
        raise RunExistsError(
            f"run {wanted.id} exists already in {paths.folder}. Choose another run_id, or pass "
            "if_exists='resume' to finish it or if_exists='new' to run anew beside it."
        )
    return _take_over(paths, wanted)


def _next_id(root: str, run_id: str) -> str:
    taken = set(storage.names(root))
    number = 2
    while f"{run_id}-{number}" in taken:
        number += 1
    return f"{run_id}-{number}"


def _create(paths: RunPaths, wanted: Wanted) -> OpenRun:
    description = {
        "id": wanted.id,
        "name": wanted.name,
        "kind": wanted.kind,
        "description": wanted.description,
        "metric": wanted.metric,
        "direction": wanted.direction,
        "seed": wanted.seed,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **wanted.facts,
    }
    owner = Owner(paths)
    storage.make_directory(paths.folder)
    owner.hold()
    storage.remove(paths.journal)  # Of a start that was killed before it wrote run.json.
    run = replay(description, paths.folder, [])
    trials = _as_kept(wanted)
    for trial in trials:
        storage.make_directory(paths.trial(trial.number).folder)
    opened = OpenRun(run, paths, Journal(paths.journal), owner, wanted.seed, False, wanted.secrets)
    with opened.failing():
        opened.record(RunStarted(), TrialsAdded(trials=trials))
        storage.write(paths.run, json.dumps(description, indent=1))  # The last: now it is a run.
    return opened


def _as_kept(wanted: Wanted) -> list[NewTrial]:
    """Return the trials as they are read back from the journal."""
    return [
        NewTrial(
            number=number,
            params=json.loads(json.dumps(mask_params(params, wanted.secrets))),
            seed=trial_seed(wanted.seed, number),
        )
        for number, params in enumerate(wanted.params or ())
    ]


def _take_over(paths: RunPaths, wanted: Wanted) -> OpenRun:
    description = read_description(paths.folder)
    before = replay(description, paths.folder, read_journal(paths.journal))
    now: Any = wanted.facts.get("space")
    then: Any = description.get("space")
    if wanted.params is not None:
        now = [trial.params for trial in _as_kept(wanted)]
        then = [trial.params for trial in before.trials]
    for name, old, new in (
        ("kind", before.kind, wanted.kind),
        ("metric", before.metric, wanted.metric),
        ("direction", before.direction, wanted.direction),
        ("objectives", before.objectives, dict(wanted.facts.get("objectives", {}))),
        ("args" if wanted.params is not None else "space", then, now),
        ("repeats", description.get("repeats", 1), wanted.facts.get("repeats", 1)),
    ):
        if old != new:
            old, new = difference(old, new), difference(new, old)
            raise RunExistsError(
                f"run {wanted.id} cannot be resumed: {name} was {old!r} and is now {new!r}. Ask "
                "for what it was, or pass if_exists='new'. Nothing was changed."
            )
    # A search that a rule of its own ended is done, however few trials that took.
    made = before.num_configurations
    more = (wanted.count or 0) > made and not before.reason
    return continue_run(paths.folder, again=more, secrets=wanted.secrets)


def continue_run(
    path: str,
    *,
    again: bool = False,
    retry_failed: bool = False,
    changed: Mapping[str, Any] | None = None,
    secrets: tuple[str, ...] = (),
) -> OpenRun:
    """Take over a run that no living driver has; trials that have not finished wait again.

    Args:
        path: the run's directory.
        again: open it although it is COMPLETE, as there is more to do.
        retry_failed: trials that have failed wait again too.
        changed: the arguments that differ from those before, see `RunStarted`.
        secrets: values that may not be kept.

    Raises:
        RunNotFoundError: there is no run at `path`.
        RunExistsError: it is being run.
    """
    paths = RunPaths(path)
    description = read_description(path)
    if owner := living_owner(paths):
        raise _being_run(description["id"], owner, path)
    events = read_journal(paths.journal)
    run, last = replay(description, path, events), events[-1].time or 0.0
    owner_now = Owner(paths)
    owner_now.hold()
    journal = Journal(paths.journal)
    waiting = _unfinished(run, paths, retry_failed, last)
    done = run.state == "COMPLETE" and not again and not (retry_failed and waiting)
    opened = OpenRun(run, paths, journal, owner_now, description["seed"], done, secrets)
    if not done:
        opened.record(RunStarted(changed=changed or None), *waiting)
    return opened


def _being_run(run_id: str, owner: dict[str, Any], folder: str) -> RunExistsError:
    return RunExistsError(
        f"run {run_id} is being run by {describe_owner(owner)}. Wait for it, or end that process; "
        f"its directory is {folder}."
    )


def waits_again(trial: Trial, retry_failed: bool) -> bool:
    """Whether a trial is run when its run goes on."""
    stopped = trial.state == "CANCELLED" and (trial.error or "").startswith(STOPPED)
    return stopped or (retry_failed and trial.state == "FAILED") or not trial.state.is_final


def _unfinished(run: Run, paths: RunPaths, retry_failed: bool, last: float) -> list[TrialChanged]:
    """The trials that were running, lost, or cancelled with their run: they wait again.

    What is known of how long they ran is when their driver wrote `last`.
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


def difference(some: Any, others: Any) -> Any:
    """What of the one is not in the other."""
    if isinstance(some, Mapping) and isinstance(others, Mapping):
        return {name: value for name, value in some.items() if others.get(name) != value}
    if not isinstance(some, list):
        return some
    return [params for params in some if params not in others] or [f"{len(some)} combinations"]
