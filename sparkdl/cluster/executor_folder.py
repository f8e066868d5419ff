"""Runs in a Spark task. Find a folder that the tasks of an executor share."""

import contextlib
import os
import tempfile
from pathlib import Path

from sparkdl.host.local_disk import local_disk


def executor_folder(name: str) -> Path | None:
    """Return a folder in Spark's local directory, or None if there is no private one.

    Spark or YARN removes it with the application. The executors of a host share it on YARN. Only
    Spark's own local directory is used: in a folder for all users of the host, another user could
    put files in the place of these.

    Args:
        name: the name of the folder, which is made if it is missing.
    """
    from pyspark import TaskContext

    disk = local_disk()
    if TaskContext.get() is None or disk == Path(tempfile.gettempdir()):
        return None
    folder = disk / name
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    is_private = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if is_private and folder.is_dir() and not folder.is_symlink() else None
