"""Runs anywhere. Sizes, times, owners and permissions of files of the project.

A store without owners and permissions, such as S3, has None for an owner, and permits everything.
"""

import os
import shutil
import stat as bits
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.hops.project import existing

__all__ = ["StatResult", "access", "chmod", "chown", "lsl", "stat"]

_READ_WRITE_EXECUTE = 0o7
# The names that stores give the time of the last change.
_TIMES = ("mtime", "modificationTime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class StatResult:
    """The fields of `os.stat` that stores have, and those of pydoop.

    Attributes:
        path: the full path.
        kind: `file` or `directory`.
        st_mode: the type and the permissions, as in the module `stat`.
        st_size: the number of bytes.
        st_mtime, st_atime: the times of the last change and the last access, in seconds; 0 if the
            store does not tell.
        st_uid, st_gid: the names of the owner and the group; None if the store does not tell.
    """

    path: str
    kind: str
    st_mode: int
    st_size: int
    st_mtime: float
    st_atime: float
    st_uid: str | None
    st_gid: str | None


def stat(hdfs_path: str) -> StatResult:
    """Return the size, the times, the owner and the permissions of a file or folder.

    Raises:
        FileNotFoundError: if it does not exist.

    Example:
        >>> from sparkdl.hops import hdfs
        >>> hdfs.dump("1,2", "Resources/size.csv")
        >>> stat("Resources/size.csv").st_size
        3
    """
    return _status(existing(hdfs_path))


def lsl(
    hdfs_path: str, recursive: bool = False, project: str | None = None
) -> list[dict[str, Any]]:
    """Return the files and folders in a folder, sorted, each as a dict with the fields of pydoop.

    Args:
        hdfs_path: the folder, or a file for this file alone.
        recursive: include the files and folders of all folders in it.
        project: see `hdfs.project_path`.

    Returns:
        Dicts with the keys `name` (the full path), `path`, `kind` (`file` or `directory`), `size`,
        `last_mod`, `last_access`, `permissions`, `owner` and `group`.
    """
    url = existing(hdfs_path, project)
    filesystem, path = storage.filesystem(url)
    depth = {} if recursive else {"maxdepth": 1}
    entries = filesystem.find(path, withdirs=True, **depth)
    names = sorted(filter(None, (entry[len(path) :].strip("/") for entry in entries)))
    urls = [storage.join(url, name) for name in names] or [url] * bool(filesystem.isfile(path))
    return [_entry(_status(each)) for each in urls]


def _entry(status: StatResult) -> dict[str, Any]:
    return {
        "name": status.path,
        "path": status.path,
        "kind": status.kind,
        "size": status.st_size,
        "last_mod": int(status.st_mtime),
        "last_access": int(status.st_atime),
        "permissions": bits.S_IMODE(status.st_mode),
        "owner": status.st_uid,
        "group": status.st_gid,
    }


def _status(url: str) -> StatResult:
    filesystem, path = storage.filesystem(url)
    info = filesystem.info(path)
    is_file = info["type"] == "file"
    default = (bits.S_IFREG if is_file else bits.S_IFDIR) | 0o777
    owner, group = info.get("owner"), info.get("group")
    atime = 0.0
    if storage.is_local(url):
        local = storage.local_path(url)
        owner, group, atime = local.owner(), local.group(), local.stat().st_atime
    return StatResult(
        path=url,
        kind="file" if is_file else "directory",
        st_mode=info.get("mode", default),
        st_size=info["size"] if is_file else 0,
        st_mtime=next((_seconds(info[name]) for name in _TIMES if info.get(name)), 0.0),
        st_atime=atime,
        st_uid=owner,
        st_gid=group,
    )


def _seconds(time: Any) -> float:
    return time.timestamp() if isinstance(time, datetime) else float(time)


def access(hdfs_path: str, mode: int, project: str | None = None) -> bool:
    """Return True if this process may use a file or folder.

    Args:
        hdfs_path: the file or folder.
        mode: `os.R_OK`, `os.W_OK`, `os.X_OK`, added up; only these bits of the number count.
        project: see `hdfs.project_path`.

    Raises:
        FileNotFoundError: if it does not exist.
    """
    url = existing(hdfs_path, project)
    is_local = storage.is_local(url)
    return os.access(storage.local_path(url), mode & _READ_WRITE_EXECUTE) if is_local else True


def chmod(hdfs_path: str, mode: int, project: str | None = None) -> None:
    """Change the permissions of a file or folder.

    Args:
        hdfs_path: the file or folder.
        mode: the bits of the permissions, such as `0o640`.
        project: see `hdfs.project_path`.

    Raises:
        ConfigError: if the store has no permissions.
        FileNotFoundError: if there is no such file or folder.
    """
    url = existing(hdfs_path, project)
    if not storage.is_local(url):
        raise _no_permissions("chmod", url)
    storage.local_path(url).chmod(mode)


def chown(hdfs_path: str, user: str, group: str, project: str | None = None) -> None:
    """Change the owner and the group of a file or folder.

    Args:
        hdfs_path: the file or folder.
        user, group: the names of the owner and the group.
        project: see `hdfs.project_path`.

    Raises:
        ConfigError: if the store has no owners.
        FileNotFoundError: if there is no such file or folder.
        LookupError: if there is no such user or group.
    """
    url = existing(hdfs_path, project)
    if not storage.is_local(url):
        raise _no_permissions("chown", url)
    shutil.chown(storage.local_path(url), user, group)


def _no_permissions(name: str, url: str) -> ConfigError:
    return ConfigError(
        f"{name} got {url}, on a store whose permissions sparkdl cannot change. Use the tools of "
        "the store, such as hdfs dfs -chmod, or a policy of the bucket."
    )
