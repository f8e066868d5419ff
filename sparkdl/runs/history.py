"""Runs on the driver. Load runs from their directories."""

import json
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from sparkdl.errors import RunDamagedError, RunNotFoundError
from sparkdl.files import storage
from sparkdl.files.jsonl import from_json
from sparkdl.files.layout import FORMAT, MAX_RECORD_BYTES, RunPaths
from sparkdl.runs import annotations
from sparkdl.runs.annotations import Annotations
from sparkdl.runs.events import (
    Event,
    NewTrial,
    ParameterSuggested,
    TrialChanged,
    TrialsAdded,
)
from sparkdl.runs.ids_and_seeds import is_run_id
from sparkdl.runs.journal import JournalContent, scan_journal
from sparkdl.runs.large_outputs import with_outputs
from sparkdl.runs.owner import (
    SILENT_S,
    OwnerWatch,
    heartbeat_age_s,
    is_here,
    living_owner,
    newest_claim,
)
from sparkdl.runs.run import Run
from sparkdl.runs.states import RunState, TrialState
from sparkdl.runs.summary import COLUMNS, METRIC, PARAM, parse_summary, summarize

if TYPE_CHECKING:
    import pandas as pd

PARAMS_LOST = "its parameters are lost, as the journal of the run is damaged"
# A journal that lacks more trials than this one is no journal.
MAX_LOST = 10_000
DRIVER_ENDED = "its driver ended before the run was finished"

# A run whose time cannot be read comes last.
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)

_logger = logging.getLogger("sparkdl.runs")


def read_description(path: str) -> dict[str, Any]:
    """Return the content of `run.json`.

    Raises:
        RunNotFoundError: if there is no run at `path`.
        RunDamagedError: if the file cannot be read, or has another format.
    """
    url = RunPaths(path).run
    contents = storage.read_many([url], MAX_RECORD_BYTES)
    if url not in contents:
        raise RunNotFoundError(
            f"no run at {path}: it holds no run.json. `sparkdl runs` and "
            "experiment.history() list the runs below a root."
        )
    try:
        description = json.loads(contents[url])
        number = description.get("format")
    except (ValueError, AttributeError, RecursionError) as exc:
        raise RunDamagedError(f"{url} is damaged: {exc}") from exc
    if number != FORMAT:
        version = "a version before 0.1.0" if number is None else f"format {number}"
        raise RunDamagedError(
            f"the run {path} was written by {version} of sparkdl, and this version reads format "
            f"{FORMAT}. Read the run with the version that wrote it."
        )
    if not is_run_id(description.get("id")):
        # Copies of the run, and files of programs that show it, get this name.
        raise RunDamagedError(f"{url} is damaged: its id is {description.get('id')!r}, no name.")
    result: dict[str, Any] = description
    return result


def replay(description: dict[str, Any], path: str, events: list[Event]) -> Run:
    """Create a run from its description and the events of its journal.

    A trial whose addition to the run is lost gets its parameters from its folder.

    Raises:
        RunDamagedError: if the description lacks a field, or an event makes no sense.
    """
    try:
        return _replay(description, path, events)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as exc:
        raise RunDamagedError(
            f"the run {path} is damaged, in run.json or in its journal: {type(exc).__name__}: {exc}"
        ) from exc


def _replay(description: dict[str, Any], path: str, events: list[Event]) -> Run:
    names = ("id", "name", "kind", "metric", "direction")
    run = Run(path=path, **{name: description[name] for name in names})
    run.objectives = description.get("objectives", {})
    run.repeats = description.get("repeats", 1)
    request = description.get("request", {})
    run.is_search = request.get("search") is not None
    run.num_trials = (request.get("search") or {}).get("num_trials")
    run.is_distributed = request.get("is_distributed", request.get("is_gang", False))
    run.is_resumable = request.get("is_resumable", True)
    run.reproduces = description.get("reproduces", {}).get("id")
    trials, lost_numbers = _added_trials(events, path)
    run.apply(TrialsAdded(trials=trials))
    for number in lost_numbers:
        run.trials[number].error = PARAMS_LOST
    for event in events:
        if isinstance(event, TrialChanged):
            event = with_outputs(event, RunPaths(path).trial(event.number))
        if not isinstance(event, TrialsAdded):
            run.apply(event)
    return run


def check_params(run: Run, events: list[Event], numbers: Iterable[int]) -> None:
    """Validate that the parameters of trials that will run are known.

    Raises:
        RunDamagedError: if those of a trial are lost.
    """
    _, lost_numbers = _added_trials(events, run.path)
    if unknown := sorted(set(lost_numbers) & set(numbers)):
        raise RunDamagedError(
            f"run {run.id} cannot be resumed: the parameters of the trials {unknown} are lost, as "
            f"the journal {RunPaths(run.path).journal} is damaged. Start a new run."
        )


def _added_trials(events: list[Event], path: str) -> tuple[list[NewTrial], list[int]]:
    """Return the trials of a run, and the numbers of those whose parameters are lost."""
    trials: dict[int, NewTrial] = {}
    for event in events:
        for trial in event.trials if isinstance(event, TrialsAdded) else ():
            trials.setdefault(trial.number, trial)
    changed_numbers = [e.number for e in events if isinstance(e, TrialChanged | ParameterSuggested)]
    lost_numbers = []
    end = max([*trials, *changed_numbers], default=-1) + 1
    if end - len(trials) > MAX_LOST:
        raise ValueError(f"it names trial {end - 1}, and has {len(trials)} trials")
    for number in range(end):
        if number not in trials and (record := _stored_trial(path, number)):
            trials[number] = record
        elif number not in trials:
            trials[number] = NewTrial(number=number, params={}, seed=0)
            lost_numbers.append(number)
    return [trials[number] for number in sorted(trials)], lost_numbers


def _stored_trial(path: str, number: int) -> NewTrial | None:
    """Return a trial from the file that its task has written."""
    try:
        record = from_json(storage.read(RunPaths(path).trial(number).params))
        return NewTrial(number=number, params=record["params"], seed=record["seed"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def read_events(path: str) -> JournalContent:
    """Read the journal of a run, without the reports to the study, which change no trial.

    Raises:
        RunDamagedError: if it has no event that can be read.
    """
    content = scan_journal(RunPaths(path).journal, with_reports=False)
    if not content.events:  # It is written before run.json.
        raise RunDamagedError(
            f"the run {path} is damaged: its journal {RunPaths(path).journal} has no event that "
            "can be read."
        )
    return content


def read_run(path: str) -> Run:
    """Read a run as its journal tells it, without a look at its driver.

    Raises:
        RunNotFoundError: if there is no run at `path`.
        RunDamagedError: if its files cannot be read.
    """
    return replay(read_description(path), path, read_events(path).events)


def load(path: str, watch: OwnerWatch | None = None) -> Run:
    """Load a run. A run whose driver died is FAILED; its finished trials are complete.

    Args:
        path: the run's directory: `run.path`, which is also the last line of the run's table.
        watch: tells whether a driver runs the run; by default its heartbeats are awaited.

    Raises:
        RunNotFoundError: if there is no run at `path`.
        RunDamagedError: if its files cannot be read.
    """
    run = read_run(storage.absolute(path))
    if run.state == RunState.RUNNING and not (
        watch.sees_driver() if watch else living_owner(RunPaths(run.path))
    ):
        run = read_run(run.path)  # The driver may have ended the run in the meantime.
        _mark_dead(run)
    return run


def _mark_dead(run: Run) -> None:
    if run.state == RunState.RUNNING:
        run.state = RunState.FAILED
        run.reason = DRIVER_ENDED
        run.end_session()
        for trial in run.trials:
            if trial.state == TrialState.RUNNING:
                trial.state = TrialState.LOST


def history(root: str) -> "pd.DataFrame":
    """Return a table of the runs below a root, newest first, with one row per run.

    A run that has ended is read from its summary. The driver of any other run is looked up in the
    process table of this host, or taken for dead if it runs on another host and has written no
    heartbeat for ten minutes; `heartbeat_s` is the age of the last one. Folders that cannot be read
    are left out, counted in a warning, and named in `history().attrs["unreadable"]`.
    """
    return frame_of(*newest_rows(root))


def newest_rows(root: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the rows of `history`, and the folders that cannot be read with the reasons."""
    rows, unreadable = read_rows(root)
    if unreadable:
        first = next(iter(unreadable))
        text = "%d folders below %s cannot be read and are left out, such as %s: %s"
        _logger.warning(text, len(unreadable), root, first, unreadable[first])
    rows = [{**row, "started": _time(row.get("started"))} for row in rows]
    rows.sort(key=lambda row: row["started"] or _LONG_AGO, reverse=True)
    return rows, unreadable


def _time(text: Any) -> datetime | None:
    """Return a time in UTC; None for a text that is no time."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").astimezone(timezone.utc)
    except (TypeError, ValueError, OverflowError):
        return None


def columns_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the columns of the rows; the parameters follow what all runs have."""
    by_path = sorted(rows, key=lambda row: row["path"])  # A new run does not move the columns.
    names = list(dict.fromkeys(name for row in by_path for name in row))
    values = [name for prefix in (PARAM, METRIC) for name in names if name.startswith(prefix)]
    return [*COLUMNS, "heartbeat_s", *values, "path"]


def frame_of(rows: list[dict[str, Any]], unreadable: dict[str, str]) -> "pd.DataFrame":
    """Return the results of `newest_rows` as a table."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=columns_of(rows))
    frame["started"] = pd.to_datetime(frame["started"], utc=True, errors="coerce")
    frame.attrs["unreadable"] = unreadable
    return frame


def read_rows(root: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a row for each run, and the folders that cannot be read with the reasons."""
    names = storage.list_names(root)
    paths = [storage.join(root, name) for name in names if not name.startswith(".")]
    summaries = storage.read_new({RunPaths(path).summary: 0 for path in paths}, MAX_RECORD_BYTES)
    annotated = annotations.read_all(root, names)
    rows: list[dict[str, Any]] = []
    unreadable: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=16) as pool:
        for path, row in zip(paths, pool.map(lambda p: _row(p, summaries), paths), strict=True):
            if isinstance(row, dict):
                of_run = annotated.get(path) or Annotations()
                notes = "; ".join(note.text for note in of_run.notes) or None
                rows.append({**row, "tags": of_run.tags, "note": notes, "path": path})
            elif row is not None:
                unreadable[path] = f"{type(row).__name__}: {row}"
    return rows, unreadable


def _row(path: str, summaries: Mapping[str, bytes]) -> dict[str, Any] | Exception | None:
    """Return the row of a folder, None if it is no run, or the reason why it cannot be read."""
    try:
        if summary := parse_summary(summaries.get(RunPaths(path).summary, b"")):
            return {**summary, "heartbeat_s": None}
        description = read_description(path)
        run = read_run(path)
        age_s = None
        if run.state == RunState.RUNNING:
            age_s = _silence_s(RunPaths(path))
            if age_s is None or age_s > SILENT_S:
                _mark_dead(run)
        run.end_session()  # The time so far of a run that goes on.
        return {**summarize(run, description), "heartbeat_s": age_s}
    except RunNotFoundError:
        return None
    except Exception as exc:  # noqa: BLE001 No damage of a run hides the other runs.
        return exc


def _silence_s(paths: RunPaths) -> float | None:
    """Return the age of the last heartbeat of a run's driver; None if the driver has ended."""
    claim = newest_claim(paths)
    if claim.process is None:
        return None
    if is_here(claim.process):
        return 0.0 if living_owner(paths, claim) else None
    return heartbeat_age_s(paths, claim)
