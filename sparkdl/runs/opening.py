"""Runs on the driver. Open a run directory: create a run, or take over a run to resume it."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.files import polling, storage
from sparkdl.files.jsonl import to_json
from sparkdl.files.layout import RunPaths
from sparkdl.runs import lineage
from sparkdl.runs.description import RunDescription
from sparkdl.runs.events import RunStarted, TrialChanged, TrialsAdded
from sparkdl.runs.foreign_folder import check_own
from sparkdl.runs.history import check_params, read_description, read_events, replay
from sparkdl.runs.ids_and_seeds import is_run_id
from sparkdl.runs.journal import Journal, JournalContent
from sparkdl.runs.open_run import OpenRun
from sparkdl.runs.owner import Claim, Owner, describe_owner, living_owner, newest_claim
from sparkdl.runs.retry_choice import Retry, check_retry, is_chosen, waits_again
from sparkdl.runs.run import Run
from sparkdl.runs.same_request import check_same
from sparkdl.runs.states import Failure, TrialState

__all__ = [
    "IfExists",
    "OpenRun",
    "RunDescription",
    "check_free",
    "continue_run",
    "existing_run",
    "open_run",
    "run_exists",
]

IfExists = Literal["error", "resume", "new"]

# A run directory that is created or taken over must answer within this time.
OPEN_S = 10.0


def open_run(root: str, description: RunDescription, if_exists: IfExists) -> OpenRun:
    """Create a run, or take over the existing run with this id.

    Args:
        root: path or URL of the folder with all runs.
        description: the description of the run.
        if_exists: the action if there is a run with this id: `error` raises, `resume` takes the
            run over, `new` creates a run whose id has a number appended.

    Raises:
        ConfigError: if the id is no valid name of a folder.
        RunExistsError: if the run exists and may not be taken over, or its folder may have files of
            other users; the message gives the reason and the remedy.
        RunDamagedError: if the files of the existing run cannot be read.
        OSError: if the run directory still cannot be written after `OPEN_S` seconds.
    """
    _check_id(description.id)
    while True:
        paths = RunPaths(storage.join(root, description.id))
        try:
            opened = polling.retry(
                functools.partial(_open, paths, description, if_exists), "open a run", OPEN_S
            )
        except RunExistsError:
            if if_exists != "new":
                raise
            description = replace(description, id=_next_id(root, description.id))
        else:
            if opened:
                return opened


def existing_run(root: str, description: RunDescription, if_exists: IfExists) -> Run | None:
    """Return the run that `open_run` would take over; None if it would create one.

    Nothing is written, but for a folder that is removed at once where `check_own` needs one.

    Args:
        root, description, if_exists: see `open_run`.

    Raises:
        ConfigError, RunExistsError, RunDamagedError: as `open_run`.
    """
    _check_id(description.id)
    paths = RunPaths(storage.join(root, description.id))
    if if_exists == "new":
        return None
    if not run_exists(paths.folder, description.permissions):
        if storage.exists(paths.folder):
            check_own(paths.folder, description.permissions)
        return None
    _free_claim(paths, description.id)
    if if_exists == "error":
        raise _exists_error(paths, description.id)
    content = read_description(paths.folder)
    journal = read_events(paths.folder)
    run = replay(content, paths.folder, journal.events)
    check_same(content, journal, run, description)
    _check_goes_on(run, description)
    return run


def run_exists(path: str, permissions: int) -> bool:
    """Return True if there is a run at a path.

    Args:
        path: the run directory.
        permissions: the permissions of a new run directory.

    Raises:
        RunExistsError: if its folder is closed to this user, as that of another user.
    """
    try:
        return storage.exists(RunPaths(path).run)
    except PermissionError:
        check_own(path, permissions)
        raise


def check_free(path: str) -> None:
    """Validate that no living driver owns a run.

    Raises:
        RunExistsError: if a driver does.
    """
    _free_claim(RunPaths(path), read_description(path)["id"])


def _check_id(run_id: str) -> None:
    if not is_run_id(run_id) or run_id == lineage.FOLDER:
        raise ConfigError(
            f"run_id is {run_id!r}; expected only letters, digits, '.', '_' and '-', and a "
            "letter or digit first, as run_id is the name of a folder. The folder "
            f"{lineage.FOLDER!r} is that of the model registry."
        )


def _exists_error(paths: RunPaths, run_id: str) -> RunExistsError:
    return RunExistsError(
        f"run {run_id} exists already in {paths.folder}. Choose another run_id, or "
        "pass if_exists='resume' to finish that run or if_exists='new' to start another run."
    )


def _open(paths: RunPaths, description: RunDescription, if_exists: IfExists) -> OpenRun | None:
    """Create a run or take it over; return None if another driver has just created the run."""
    if not run_exists(paths.folder, description.permissions):
        return _create(paths, description)
    if if_exists != "new":
        claim = _free_claim(paths, description.id)
    if if_exists == "resume":
        return _take_over(paths, description, claim)
    raise _exists_error(paths, description.id)


def _free_claim(paths: RunPaths, run_id: str) -> Claim:
    """Return the newest claim of a run that no living driver owns.

    Raises:
        RunExistsError: if a living driver owns the run.
    """
    claim = newest_claim(paths)
    if owner := living_owner(paths, claim):
        raise _owned_error(run_id, owner, paths.folder)
    return claim


def _claim(paths: RunPaths, run_id: str, earlier: Claim) -> Owner:
    """Own a run.

    Raises:
        RunExistsError: if another driver was faster.
    """
    owner = Owner(paths)
    try:
        owner.claim(earlier.number + 1, OPEN_S)
    except FileExistsError:
        other = newest_claim(paths).process or {"pid": "unknown", "host": "unknown"}
        raise _owned_error(run_id, other, paths.folder) from None
    return owner


def _next_id(root: str, run_id: str) -> str:
    names = set(polling.retry(lambda: storage.list_names(root), "list the runs", OPEN_S))
    number = 2
    while f"{run_id}-{number}" in names:
        number += 1
    return f"{run_id}-{number}"


def _create(paths: RunPaths, description: RunDescription) -> OpenRun | None:
    """Create a run; return None if another driver has created the run in the meantime."""
    content = description.content()
    try:
        storage.make_directory(paths.folder, description.permissions)
        check_own(paths.folder, description.permissions)
        owner = _claim(paths, description.id, _free_claim(paths, description.id))
        # What starts have written that were killed before they wrote run.json is not read.
        journal = Journal(paths.journal, owner.number)
        run = replay(content, paths.folder, [])
        opened = OpenRun(
            run=run,
            paths=paths,
            journal=journal,
            owner=owner,
            seed=description.seed,
            finished_before=False,
            secrets=description.secrets,
        )
        owner.when_taken_over(journal.fence)
        with _released_if_raised(opened):
            if storage.exists(paths.run):
                raise FileExistsError(paths.run)
            opened.record(RunStarted(), TrialsAdded(trials=description.trials()))
            journal.flush(OPEN_S)
            # Only with this file the folder is a run, so it is written last.
            data = to_json(content, indent=1)
            if not polling.create_once(paths.run, data, "create a run", OPEN_S):
                raise FileExistsError(paths.run)
    except RunExistsError:
        raise
    except FileExistsError:
        return None  # Another driver has created the run in the meantime.
    except OSError as exc:
        raise _not_writable(exc, paths.folder) from exc
    return opened


@contextmanager
def _released_if_raised(opened: OpenRun) -> Iterator[None]:
    try:
        yield
    except BaseException:
        opened.journal.fence()
        opened.owner.release()
        raise


def _not_writable(exc: OSError, folder: str) -> OSError:
    """Return the error of a run directory that cannot be created, with what the user can do."""
    text = (
        f"the run directory {folder} cannot be written: {exc.strerror or exc}. "
        f"{storage.advice(exc)} No trial was started. Another folder can be named with root=."
    )
    return OSError(exc.errno, text) if exc.errno is not None else OSError(text)


def _take_over(paths: RunPaths, description: RunDescription, claim: Claim) -> OpenRun:
    content = read_description(paths.folder)
    journal = read_events(paths.folder)
    before = replay(content, paths.folder, journal.events)
    check_same(content, journal, before, description)
    _check_goes_on(before, description)
    read, has_more = (content, journal, claim), _has_more(before, description)
    return _continue(
        paths, read, has_more, description.retry, description.changed, description.secrets
    )


def _has_more(run: Run, description: RunDescription) -> bool:
    # A search that one of its stopping rules ended is complete, even with fewer trials.
    return (description.count or 0) > run.num_configurations and not run.reason


def _check_goes_on(run: Run, description: RunDescription) -> None:
    """Validate that a run that goes on loads no files of other users.

    Of a run that has ended, the results are read, as by `experiment.load`.

    Raises:
        RunExistsError: if other users may have placed files in its folder.
    """
    if not is_over(run, _has_more(run, description), description.retry):
        check_own(run.path, description.permissions)


def is_over(run: Run, reopen: bool, retry: Retry) -> bool:
    """Return True if nothing of a run is left to run; see `continue_run` for the arguments."""
    # A search proposes more trials; any other run has ended with its last trial.
    has_ended = run.state == "COMPLETE" or (run.state.is_final and not run.is_search)
    is_asked = reopen or any(is_chosen(trial, retry) for trial in run.trials)
    goes_on = run.state != "COMPLETE" and any(waits_again(trial) for trial in run.trials)
    return has_ended and not (is_asked or goes_on)


def continue_run(
    path: str,
    *,
    reopen: bool = False,
    retry: Retry = frozenset(),
    changes: Mapping[str, Any] | None = None,
    secrets: tuple[str, ...] = (),
) -> OpenRun:
    """Take over a run without a living driver. Its unfinished trials become WAITING.

    Args:
        path: the run directory.
        reopen: open the run also if it is COMPLETE, to add trials.
        retry: ended trials that become WAITING, too.
        changes: the arguments that differ from those before, see `RunStarted`.
        secrets: values that must not be stored.

    Raises:
        ConfigError: if `retry` names a trial that cannot run again.
        RunNotFoundError: if there is no run at `path`.
        RunDamagedError: if its files cannot be read, or parameters are lost that are needed.
        RunExistsError: if a living driver owns the run.
    """
    paths = RunPaths(path)

    def take_over() -> OpenRun:
        content = read_description(path)
        claim = _free_claim(paths, content["id"])
        read = (content, read_events(path), claim)
        return _continue(paths, read, reopen, retry, changes, secrets)

    return polling.retry(take_over, "open a run", OPEN_S)


def _continue(
    paths: RunPaths,
    read: tuple[Mapping[str, Any], JournalContent, Claim],
    reopen: bool = False,
    retry: Retry = frozenset(),
    changes: Mapping[str, Any] | None = None,
    secrets: tuple[str, ...] = (),
) -> OpenRun:
    """Own a run.

    Args:
        paths: the files of the run.
        read: the description, the journal, and the newest claim, which was read before the journal.
        reopen, retry, changes, secrets: see `continue_run`.
    """
    content, journal, claim = read
    run = replay(dict(content), paths.folder, journal.events)
    last = journal.events[-1].time or 0.0
    check_retry(retry, run.trials)
    waiting = _unfinished(run, paths, retry, last)
    has_nothing_left = is_over(run, reopen, retry)
    check_params(run, journal.events, [event.number for event in waiting])
    if max(journal.last) > claim.number and newest_claim(paths).number == claim.number:
        # Someone has removed the claims of earlier drivers, but their sessions are there.
        claim = replace(claim, number=max(journal.last))
    owner = Owner(paths) if has_nothing_left else _claim(paths, run.id, claim)
    opened = OpenRun(
        run=run,
        paths=paths,
        journal=Journal(paths.journal, owner.number, journal.last),
        owner=owner,
        seed=content["seed"],
        finished_before=has_nothing_left,
        secrets=secrets,
        earlier=journal.events,
    )
    if not has_nothing_left:
        owner.when_taken_over(opened.journal.fence)
        with _released_if_raised(opened):
            storage.remove(paths.summary)
            opened.record(RunStarted(changed=changes or None), *waiting)
    return opened


def _owned_error(run_id: str, owner: dict[str, Any], folder: str) -> RunExistsError:
    return RunExistsError(
        f"run {run_id} is being run by {describe_owner(owner)}. Wait until the run has ended, or "
        f"end that process. The run directory is {folder}."
    )


def _unfinished(run: Run, paths: RunPaths, retry: Retry, last: float) -> list[TrialChanged]:
    """Return the events by which unfinished trials become WAITING.

    Args:
        run: the run.
        paths: the files of the run.
        retry: ended trials that count as unfinished.
        last: the time of the last event of the earlier driver, which is taken for the end of
            attempts that were running.
    """
    events = []
    for trial in run.trials:
        if trial.state not in ("WAITING", "PAUSED") and waits_again(trial, retry):
            # What an attempt that failed has reported does not count for the next one.
            failures = {"FAILED": trial.failure, "INVALID": Failure.EXCEPTION}
            event = TrialChanged(
                number=trial.number,
                state=TrialState.WAITING,
                attempt=paths.trial(trial.number).num_attempts() - 1,
                failure=failures.get(trial.state),
                ended=last,
            )
            events.append(event)
    return events
