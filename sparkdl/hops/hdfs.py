"""Runs anywhere. Files of the project: `hdfs.project_path()` is the folder that holds the runs.

A path is relative to the project, or full; see `sparkdl.hops.project.expand`. The project may be on
a local or mounted disk or on any store with a URL.
"""

import fnmatch
import getpass
from typing import Any

from sparkdl.files import storage
from sparkdl.hops.absent_names import absent_names
from sparkdl.hops.copies import copy_to_hdfs, copy_to_local, cp, move, rename
from sparkdl.hops.file_status import access, chmod, chown, lsl, stat
from sparkdl.hops.local_modules import add_module
from sparkdl.hops.project import existing, expand, is_folder, root

__all__ = [
    "abs_path",
    "access",
    "add_module",
    "chmod",
    "chown",
    "close",
    "copy_to_hdfs",
    "copy_to_local",
    "cp",
    "delete",
    "dump",
    "exists",
    "get_plain_path",
    "glob",
    "isdir",
    "isfile",
    "load",
    "log",
    "ls",
    "lsl",
    "mkdir",
    "move",
    "open_file",
    "project_name",
    "project_path",
    "project_user",
    "rename",
    "rmr",
    "stat",
]

__getattr__ = absent_names(__name__, __all__)


# ---- the project


def project_path(project: str | None = None, exclude_nn_addr: bool = False) -> str:
    """Return the path or URL of a project, which ends with a slash.

    Args:
        project: the name of another project, which is a folder beside this one.
        exclude_nn_addr: has no effect.

    Example:
        >>> project_path().endswith("/runs/")
        True
    """
    return f"{expand('', project)}/"


def project_name() -> str:
    """Return the name of the project: the last name of its path.

    Example:
        >>> project_name()
        'runs'
    """
    return root().rpartition("/")[2]


def project_user() -> str:
    """Return the name of the project and of the user, with `__` between them."""
    return f"{project_name()}__{getpass.getuser()}"


def close() -> None:
    """Have no effect: there is no connection to a NameNode."""


def abs_path(hdfs_path: str) -> str:
    """Return the full path of a file or folder.

    Raises:
        FileNotFoundError: if it does not exist.
    """
    return existing(hdfs_path)


def get_plain_path(abs_path: str) -> str:
    """Return a path without scheme and host.

    Example:
        >>> get_plain_path("hdfs://10.0.2.15:8020/Projects/demo/Models")
        '/Projects/demo/Models'
    """
    _, scheme, rest = abs_path.rpartition("://")
    return f"/{rest.partition('/')[2]}" if scheme else abs_path


# ---- files


def dump(data: bytes | str, hdfs_path: str) -> None:
    """Write a whole file.

    Example:
        >>> dump("some text", "Resources/text.txt")
    """
    storage.write(expand(hdfs_path), data)


def load(hdfs_path: str) -> bytes:
    """Return the content of a file.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    return storage.read(existing(hdfs_path))


def open_file(
    hdfs_path: str, project: str | None = None, flags: str = "rw", buff_size: int = 0
) -> Any:
    """Open a file.

    Args:
        hdfs_path: the file.
        project: see `project_path`.
        flags: `r`, `w` or `a`, for bytes; with a `t` added, for text. `rw` reads.
        buff_size: has no effect.
    """
    url = expand(hdfs_path, project)
    mode = "r" if flags.startswith("r") else flags[0]
    if mode != "r":
        storage.make_directory(url.rpartition("/")[0])
    filesystem, path = storage.filesystem(url)
    return filesystem.open(path, f"{mode}{'t' if flags.endswith('t') else 'b'}")


def log(string: Any) -> None:
    """Print a line, which the log of the trial contains."""
    print(string)


# ---- folders


def exists(hdfs_path: str, project: str | None = None) -> bool:
    """Return True if there is a file or folder.

    Example:
        >>> exists("Resources/nothing")
        False
    """
    return storage.exists(expand(hdfs_path, project))


def isdir(hdfs_path: str, project: str | None = None) -> bool:
    """Return True if there is a folder.

    Raises:
        FileNotFoundError: if there is neither a file nor a folder.
    """
    return is_folder(existing(hdfs_path, project))


def isfile(hdfs_path: str, project: str | None = None) -> bool:
    """Return True if there is a file.

    Raises:
        FileNotFoundError: if there is neither a file nor a folder.
    """
    return not is_folder(existing(hdfs_path, project))


def ls(hdfs_path: str, recursive: bool = False, exclude_nn_addr: bool = False) -> list[str]:
    """Return the full paths of the files and folders in a folder, sorted.

    Args:
        hdfs_path: the folder.
        recursive: include the files and folders of all folders in it.
        exclude_nn_addr: has no effect.

    Example:
        >>> dump("1", "Logs/a.txt")
        >>> [path.removeprefix(project_path()) for path in ls("Logs")]
        ['Logs/a.txt']
    """
    url = existing(hdfs_path)
    filesystem, path = storage.filesystem(url)
    if recursive:
        entries = filesystem.find(path, withdirs=True)
        names = [entry[len(path) :].strip("/") for entry in entries]
        return [storage.join(url, name) for name in sorted(filter(None, names))]
    return [storage.join(url, name) for name in storage.list_names(url)]


def glob(hdfs_path: str, recursive: bool = False, project: str | None = None) -> list[str]:
    """Return the full paths of the files of a folder whose names match a pattern.

    Args:
        hdfs_path: a folder, a slash and a pattern, such as `Resources/*.json`.
        recursive: include the files of all folders in it.
        project: see `project_path`.
    """
    folder, _, pattern = hdfs_path.rpartition("/")
    paths = ls(existing(folder, project), recursive)
    return [path for path in paths if fnmatch.fnmatch(path.rpartition("/")[2], pattern)]


def mkdir(hdfs_path: str, project: str | None = None) -> None:
    """Create a folder and the folders above it."""
    storage.make_directory(expand(hdfs_path, project))


def delete(hdfs_path: str, recursive: bool = False) -> None:
    """Remove a file or folder.

    Args:
        hdfs_path: the file or folder.
        recursive: remove a folder with its content.

    Raises:
        FileNotFoundError: if there is neither a file nor a folder.
        OSError: if a folder has content, and `recursive` is False.
    """
    url = existing(hdfs_path)
    if not recursive and is_folder(url) and storage.list_names(url):
        raise OSError(f"{url} is not empty. Pass recursive=True to remove its content, too.")
    storage.remove(url)


def rmr(hdfs_path: str, project: str | None = None) -> None:
    """Remove a file, or a folder with its content."""
    storage.remove(existing(hdfs_path, project))
