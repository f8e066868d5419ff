"""Runs on the driver. Find the newest run below a root."""

import json
from datetime import datetime, timezone

from sparkdl.errors import RunDamagedError, RunNotFoundError
from sparkdl.files import storage
from sparkdl.files.layout import MAX_RECORD_BYTES, RunPaths
from sparkdl.runs.history import read_events


def newest_run(root: str) -> str:
    """Return the path of the run below a root that was created last.

    Folders that cannot be read are left out.

    Raises:
        RunNotFoundError: if there is no run below the root.
    """
    # A run whose deletion was interrupted has a name that begins with a dot.
    names = [name for name in storage.list_names(root) if not name.startswith(".")]
    paths = [storage.join(root, name) for name in names]
    contents = storage.read_new({RunPaths(path).run: 0 for path in paths}, MAX_RECORD_BYTES)
    created = {path: _created(contents.get(RunPaths(path).run, b"")) for path in paths}
    times = [time for time in created.values() if time is not None]
    if not times:
        raise RunNotFoundError(
            f"there is no run below {root}. Name the folder of the runs with SPARKDL_ROOT, or pass "
            "the path of a run."
        )
    newest = [path for path, time in created.items() if time == max(times)]
    # The time of creation is stored in seconds, and that of the first event in milliseconds.
    return newest[0] if len(newest) == 1 else max(newest, key=_start_time)


def _created(description: bytes) -> datetime | None:
    """Return the time in the content of `run.json`; None if there is no run."""
    try:
        text = json.loads(description)["created"]
        time = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return time.astimezone(timezone.utc)


def _start_time(path: str) -> float:
    try:
        return read_events(path).events[0].time or 0.0
    except RunDamagedError:
        return 0.0
