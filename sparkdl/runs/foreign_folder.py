"""Runs on the driver. Refuse a run directory in which another user may have placed files.

The names of runs can be known or guessed. In a root that users share, another user may make the
folder of a run beforehand: the run would load the checkpoints that lie there, and that user could
give it commands.
"""

import contextlib
import os
import pwd
import stat
import tempfile
from pathlib import Path

from sparkdl import storage
from sparkdl.errors import RunExistsError
from sparkdl.os_processes import user_name

__all__ = ["check_own"]


def check_own(folder: str, permissions: int) -> None:
    """Validate that no other user could have placed files in a run directory that exists.

    Root is trusted, and so are those users to whom the setting `permissions` opens run directories:
    the group of the folder with 2770, if this user is in it, and everyone with 777. Remote stores
    are not looked at.

    Args:
        folder: path or URL of the run directory.
        permissions: the permissions of a new run directory.

    Raises:
        RunExistsError: if one could; the message names the user.
        OSError: if the folder cannot be read.
    """
    if not storage.is_local(folder) or permissions & stat.S_IWOTH:
        return
    path = storage.local_path(folder)
    # A link of another user may lead to any folder of this user.
    for seen in (path.lstat(), path.stat()):
        if problem := _problem(path, seen, permissions):
            raise RunExistsError(
                f"the run directory {folder} {problem}, so that other users may have placed files "
                "in it, which the run would load. No trial was started. Choose another run_id or "
                "root, or remove the folder. A run that you trust is finished by its path: "
                f"sparkdl resume {folder}. If all users of the root trust one another, set "
                "SPARKDL_PERMISSIONS=2770 (for the group of the root) or 777."
            )


def _problem(path: Path, seen: os.stat_result, permissions: int) -> str | None:
    """Return the reason for which a folder or link is not this user's alone; None if it is."""
    is_group = permissions & stat.S_IWGRP and seen.st_gid in (os.getegid(), *os.getgroups())
    is_open = stat.S_ISDIR(seen.st_mode) and seen.st_mode & stat.S_IWOTH
    is_own = is_group or seen.st_uid in (0, os.geteuid())
    if is_own and not is_open:
        return None
    own = _new_folder_in(path)
    if not is_own and not (own and own.st_uid == seen.st_uid):
        return f"belongs to user {_name_of(seen.st_uid)}, not to {user_name()}"
    if is_open and not (own and own.st_mode & stat.S_IWOTH):
        return "may be written by all users"
    return None


def _new_folder_in(path: Path) -> os.stat_result | None:
    """Return owner and mode of a new private folder: some mounts show the same for all."""
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=path) as probe:
        return os.stat(probe)
    return None


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
