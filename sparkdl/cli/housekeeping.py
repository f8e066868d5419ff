"""Runs on the driver. Choose old runs of a root, and delete them: the logic of `sparkdl gc`."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.files import folders, storage
from sparkdl.runs import annotations
from sparkdl.runs.deletion import delete_run
from sparkdl.runs.history import history
from sparkdl.runs.lineage import models_by_run

# A run with this tag is never deleted.
KEEP = "keep"


@dataclass(frozen=True, kw_only=True)
class OldRun:
    """A run that is old enough to be deleted.

    Attributes:
        id: the id of the run.
        path: the run directory.
        state: the state of the run.
        started: the time of its start.
        num_bytes: the size of its files.
        reason_to_keep: the reason for which the run is kept all the same; empty if it is deleted.
    """

    id: str
    path: str
    state: str
    started: datetime
    num_bytes: int
    reason_to_keep: str = ""


def old_runs(root: str, keep: int | None = None, older: timedelta | None = None) -> list[OldRun]:
    """Return the runs below a root that `sparkdl gc` deletes, or keeps for a reason; oldest first.

    Args:
        root: the directory or URL that holds the runs.
        keep: the number of newest runs that are kept; None keeps none for their rank.
        older: only runs that started longer ago are deleted; None deletes runs of any age.

    Raises:
        ConfigError: if neither of both is given.
    """
    if keep is None and older is None:
        raise ConfigError("all runs would be deleted: pass --keep, --older, or both.")
    frame = history(root).iloc[keep or 0 :]
    if older is not None:
        frame = frame[frame["started"] < datetime.now(timezone.utc) - older]
    if frame.empty:
        return []
    models = models_by_run(root)
    with ThreadPoolExecutor(max_workers=16) as pool:
        sizes = list(pool.map(lambda path: sum(folders.files_in(path).values()), frame["path"]))
        reasons = list(pool.map(_why_tagged, frame["path"]))
    result = []
    for (_, row), size, reason_to_keep in zip(frame.iterrows(), sizes, reasons, strict=True):
        reason_to_keep = (
            f"{models[row['run']][0]} comes from it" if row["run"] in models else reason_to_keep
        )
        reason_to_keep = "its driver is alive" if row["state"] == "RUNNING" else reason_to_keep
        started = row["started"].to_pydatetime()
        result.append(
            OldRun(
                id=row["run"],
                path=row["path"],
                state=row["state"],
                started=started,
                num_bytes=size,
                reason_to_keep=reason_to_keep,
            )
        )
    return result[::-1]


def _why_tagged(path: str) -> str:
    """Return the reason for which the tags of a run protect the run; empty if they do not.

    A table of runs may lack tags: of files that cannot be read now, and of runs that were copied
    into the root without its index.
    """
    try:
        tags = annotations.read(path, is_complete=True).tags
    except OSError as exc:
        return f"its tags cannot be read: {exc}"
    return f"it has the tag {KEEP!r}" if KEEP in tags else ""


def delete(root: str, runs: Sequence[OldRun]) -> list[tuple[OldRun, str]]:
    """Delete runs, and what is left of runs whose deletion was interrupted.

    Args:
        root: the directory or URL that holds the runs.
        runs: the runs; those with a reason to be kept are left out.

    Returns:
        The runs that could not be deleted, each with the reason.
    """
    for name in storage.list_names(root):
        if name.startswith(".") and name.endswith(".deleted"):
            storage.remove(storage.join(root, name))
    failed = []
    for run in runs:
        if not run.reason_to_keep:
            try:
                delete_run(run.path, run.id)
            except FileNotFoundError:
                continue  # Another process has deleted the run.
            except (OSError, RunExistsError) as exc:
                failed.append((run, str(exc)))
    return failed
