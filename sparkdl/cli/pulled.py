"""Runs on the driver. Copy a run from a store to a local folder."""

import os
from pathlib import Path

from sparkdl.errors import ConfigError, RunDamagedError
from sparkdl.files import folders, storage
from sparkdl.files.layout import OWNERS, REPORT, RUN, SOURCE, SUMMARY
from sparkdl.runs.ids_and_seeds import is_run_id
from sparkdl.runs.run import Run

# Files that a run replaces by others, which may have the same size, or removes.
_CHANGING = (SUMMARY, REPORT, f"{OWNERS}/", f"{SOURCE}/")

# Without this file the folder is no run, so that nobody takes a part of a run for all of it.
_LAST = (RUN,)


def pull_run(run: Run, to: str | os.PathLike[str]) -> tuple[str, int, int]:
    """Copy a run to a local folder; what was copied before is not copied again.

    Args:
        run: the run.
        to: the local folder in which the copy gets a folder with the id of the run.

    Returns:
        The path of the copy, the number of files that were copied now, and their bytes.

    Raises:
        ConfigError: if `to` is on a store, or the run itself is there.
        RunDamagedError: if the id of the run is no name of a folder.
        OSError: if a file cannot be read or written. The next call goes on with the rest.
    """
    to = os.fspath(to)
    if not is_run_id(run.id):
        raise RunDamagedError(f"the id of the run {run.path} is {run.id!r}, which is no folder.")
    if not storage.is_local(to):
        raise ConfigError(f"pull copies to a local folder; got {to!r}.")
    target = Path(storage.absolute(to), run.id)
    if storage.is_local(run.path) and storage.local_path(run.path).resolve() == target.resolve():
        raise ConfigError(f"run {run.id} is in {target} already. Pass another folder with --to.")
    num_files, num_bytes = folders.pull(run.path, target, _CHANGING, _LAST)
    return str(target), num_files, num_bytes
