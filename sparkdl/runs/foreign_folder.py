"""Runs on the driver. Refuse a run directory in which another user may have placed files.

The names of runs can be known or guessed. In a root that users share, another user may make the
folder of a run beforehand: the run would load the checkpoints that lie there, and that user could
give it commands.
"""

import os
import pwd
import stat
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sparkdl.errors import RunExistsError
from sparkdl.files import storage
from sparkdl.host.os_processes import user_name


def check_own(folder: str, permissions: int) -> None:
    """Validate that no other user could have placed files in a run directory that exists.

    Root is trusted, and so are those users to whom the setting `permissions` opens run directories:
    with 2770 the group of a new folder beside this one, and everyone with 777. What their groups
    may do with folders of this user and of root is not looked at, nor are remote stores.

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
    for status in (path.lstat(), path.stat()):
        if problem := _problem(path, status, permissions):
            raise RunExistsError(
                f"the run directory {folder} {problem.what}, so that other users may have placed "
                "files in it, which the run would load. No trial was started. Choose another "
                "run_id or root, or remove the folder. A run that you trust is finished by its "
                f"path: sparkdl resume {folder}. {problem.remedy}If all users of the root trust "
                "one another, set SPARKDL_PERMISSIONS=2770 (for the group of the root) or 777."
            )


def other_owner(folder: str) -> str | None:
    """Return the name of the user who owns a local folder; None for this user and root.

    Stores have no owners.
    """
    if not storage.is_local(folder):
        return None
    owner = storage.local_path(folder).stat().st_uid
    return None if owner in (0, os.geteuid()) else _name_of(owner)


class _Problem(NamedTuple):
    """The reason why a folder is not this user's alone, and what this user can do."""

    what: str
    remedy: str = ""


def _problem(path: Path, status: os.stat_result, permissions: int) -> _Problem | None:
    """Return the reason for which a folder or link is not this user's alone; None if it is."""
    is_open = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IWOTH
    is_own = status.st_uid in (0, os.geteuid())
    if is_own and not is_open:
        return None
    new = _new_folder_beside(path)
    is_like_new = new is not None and (
        status.st_uid == new.st_uid or (permissions & stat.S_IWGRP and _is_colleague(status, new))
    )
    if not is_own and not is_like_new:
        what = f"belongs to user {_name_of(status.st_uid)}, not to {user_name()}"
        if os.geteuid():
            return _Problem(what)
        # As root in a container sees the folders of the host.
        return _Problem(what, f"A folder that you trust is made yours by chown -R 0 {path}. ")
    if is_open and not (new and new.st_mode & stat.S_IWOTH):
        remedy = f"A folder that you trust is closed to them by chmod o-w {path}. "
        return _Problem("may be written by all users", remedy)
    return None


def _is_colleague(status: os.stat_result, new: os.stat_result) -> bool:
    """Return True if a folder has the group of a new one, and its owner is in that group.

    A folder of any user gets the group of the root where that has the setgid bit.
    """
    with suppress(KeyError):
        owner = pwd.getpwuid(status.st_uid)
        groups = os.getgrouplist(owner.pw_name, owner.pw_gid)
        return status.st_gid == new.st_gid and new.st_gid in groups
    return False


def _new_folder_beside(path: Path) -> os.stat_result | None:
    """Return owner, group and mode of a new private folder: some mounts show the same for all."""
    probe = path.with_name(f".sparkdl-{uuid.uuid4().hex}")
    try:
        probe.mkdir(mode=0o700)
        status = probe.lstat()
    except OSError:
        return None
    with suppress(OSError):
        probe.rmdir()
    return status


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
