"""Where it runs: D. Opens a run directory: a new one, or one that a retried job comes back to."""

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sparkdl import storage
from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.runs.history import read_description, replay
from sparkdl.runs.journal import Journal, read_journal
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.owner import Owner, describe_owner, living_owner
from sparkdl.runs.redact import mask_params
from sparkdl.runs.run import Run

__all__ = ["STOPPED", "IfExists", "OpenRun", "Wanted", "new_run_id", "open_run", "trial_seed"]

IfExists = Literal["error", "resume", "new"]

# How the error of a trial begins that did not finish as its run was stopped.
STOPPED = "the run was stopped"


@dataclass(frozen=True)
class Wanted:
    """What the person asked for, as far as the run directory keeps it.

    Attributes:
        id, name, kind, description, metric, direction: see `Run`.
        params: the parameters of each trial.
        seed: the run's seed.
        secrets: values that may not be kept.
        facts: whatever else `run.json` is to say.
    """

    id: str
    name: str
    kind: str
    description: str | None
    metric: str | None
    direction: str
    params: list[dict[str, Any]]
    seed: int
    secrets: tuple[str, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class OpenRun:
    """A run that this driver owns and may write to."""

    run: Run
    paths: RunPaths
    journal: Journal
    owner: Owner
    seed: int
    finished_before: bool


def new_run_id(name: str) -> str:
    """A run id that sorts by time and that no other run has.

    Example:
        >>> new_run_id("my run").startswith("my-run-")
        True
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    return f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def trial_seed(seed: int, number: int) -> int:
    """The seed of a trial: it depends on nothing but the run's seed and the trial's number.

    One step of SplitMix64 (Steele, Lea, Flood 2014), whose outputs are well spread over any two
    arguments; the upper 31 bits, as every framework takes those.

    Example:
        >>> trial_seed(7, 0) != trial_seed(7, 1) != trial_seed(8, 0)
        True
    """
    mask = (1 << 64) - 1
    mixed = (seed * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return (mixed ^ (mixed >> 31)) >> 33


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
        raise RunExistsError(
            f"run {wanted.id} is being run by {describe_owner(owner)}. Wait for it, or end that "
            f"process; its directory is {paths.folder}."
        )
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
        "num_trials": len(wanted.params),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **wanted.facts,
    }
    owner = Owner(paths)
    storage.make_directory(paths.folder)
    owner.hold()
    storage.remove(paths.journal)  # Of a start that was killed before it wrote run.json.
    run = replay(description, paths.folder, [])
    journal = Journal(paths.journal)
    trials = _as_kept(wanted)
    for trial in trials:
        storage.make_directory(paths.trial(trial["number"]).folder)
    events: list[dict[str, Any]] = [{"event": "start"}, {"event": "trials", "trials": trials}]
    journal.write(events)
    for event in events:
        run.apply(event)
    storage.write(paths.run, json.dumps(description, indent=1))  # The last: now it is a run.
    return OpenRun(run, paths, journal, owner, wanted.seed, finished_before=False)


def _as_kept(wanted: Wanted, seed: int | None = None) -> list[dict[str, Any]]:
    seed = wanted.seed if seed is None else seed
    kept = [
        {"number": i, "params": mask_params(params, wanted.secrets), "seed": trial_seed(seed, i)}
        for i, params in enumerate(wanted.params)
    ]
    plain: list[dict[str, Any]] = json.loads(json.dumps(kept))
    return plain


def _take_over(paths: RunPaths, wanted: Wanted) -> OpenRun:
    description = read_description(paths.folder)
    before = replay(description, paths.folder, read_journal(paths.journal))
    now = [trial["params"] for trial in _as_kept(wanted)]
    then = [trial.params for trial in before.trials]
    for name, old, new in (
        ("kind", before.kind, wanted.kind),
        ("metric", before.metric, wanted.metric),
        ("direction", before.direction, wanted.direction),
        ("args", then, now),
    ):
        if old != new:
            if name == "args":
                old, new = _difference(then, now), _difference(now, then)
            raise RunExistsError(
                f"run {wanted.id} cannot be resumed: {name} was {old!r} and is now {new!r}. Ask "
                "for what it was, or pass if_exists='new'. Nothing was changed."
            )
    owner = Owner(paths)
    owner.hold()
    journal = Journal(paths.journal)
    done = before.state == "COMPLETE"
    if not done:
        events = [{"event": "start"}, *_unfinished(before, paths)]
        journal.write(events)
        for event in events:
            before.apply(event)
    return OpenRun(before, paths, journal, owner, description["seed"], finished_before=done)


def _unfinished(run: Run, paths: RunPaths) -> list[dict[str, Any]]:
    """The trials that were running, lost, or cancelled with their run: they wait again."""
    events = []
    for trial in run.trials:
        stopped = trial.state == "CANCELLED" and (trial.error or "").startswith(STOPPED)
        if stopped or trial.state in ("RUNNING", "LOST"):
            names = storage.names(paths.trial(trial.number).attempts)
            made = [int(n.removesuffix(".json")) for n in names if n.endswith(".json")]
            event = {"event": "trial", "number": trial.number, "state": "WAITING"}
            events.append({**event, "attempt": max(made, default=-1)})
    return events


def _difference(some: list[Any], others: list[Any]) -> list[Any]:
    return [params for params in some if params not in others] or [f"{len(some)} combinations"]
