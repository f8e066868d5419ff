"""Runs anywhere. Files of the project: `hdfs.project_path()` is the folder that holds the runs.

A path is relative to the project, or full; see `sparkdl.hops.project.expand`. The project may be on
a local or mounted disk or on any store with a URL.
"""

import fnmatch
import getpass
import tempfile
from pathlib import Path
from typing import Any

from sparkdl import storage
from sparkdl.hops.project import expand, is_folder, root

__all__ = [
    "abs_path",
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
    "mkdir",
    "move",
    "open_file",
    "project_name",
    "project_path",
    "project_user",
    "rename",
    "rmr",
]


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


def abs_path(hdfs_path: str) -> str:
    """Return the full path of a file or folder.

    Raises:
        FileNotFoundError: if it does not exist.
    """
    return _existing(hdfs_path)


def get_plain_path(abs_path: str) -> str:
    """Return a path without scheme and host.

    Example:
        >>> get_plain_path("hdfs://10.0.2.15:8020/Projects/demo/Models")
        '/Projects/demo/Models'
    """
    _, scheme, rest = abs_path.rpartition("://")
    return f"/{rest.partition('/')[2]}" if scheme else abs_path


def _existing(path: str, project: str | None = None) -> str:
    url = expand(path, project)
    if not storage.exists(url):
        raise FileNotFoundError(
            f"{path!r} is not in the project: there is no {url}. hdfs.project_path() is the folder "
            "of the runs, which SPARKDL_ROOT or spark.sparkdl.root sets."
        )
    return url


# ---- copies from and to the local disk


def copy_to_hdfs(
    local_path: str, relative_hdfs_path: str, overwrite: bool = False, project: str | None = None
) -> None:
    """Copy a local file or folder to the project.

    Args:
        local_path: the local file or folder.
        relative_hdfs_path: the folder into which it is copied, or a new path for the copy.
        overwrite: replace a file or folder of the same name in the folder `relative_hdfs_path`.
        project: see `project_path`.

    Raises:
        FileNotFoundError: if the local file does not exist.
        FileExistsError: if the copy exists, and `overwrite` is False.

    Example:
        >>> _ = Path("data.csv").write_text("1,2")
        >>> copy_to_hdfs("data.csv", "Resources")
        >>> load("Resources/data.csv")
        b'1,2'
    """
    source = Path(local_path).absolute()
    if not source.exists():
        raise FileNotFoundError(f"copy_to_hdfs got {local_path!r}: there is no {source}.")
    target = expand(relative_hdfs_path, project)
    is_inside = overwrite or relative_hdfs_path.endswith("/") or is_folder(target)
    _copy(source, storage.join(target, source.name) if is_inside else target, overwrite)


def _copy(source: Path, target: str, overwrite: bool) -> None:
    if storage.exists(target):
        if not overwrite:
            raise FileExistsError(f"{target} exists. Pass overwrite=True to replace it.")
        if storage.is_local(target) and _is_same(source, storage.local_path(target)):
            return
        storage.remove(target)
    storage.copy(source, target)


def _is_same(source: Path, copy: Path) -> bool:
    """Return True if a file or folder would be replaced by itself.

    Raises:
        OSError: if a folder would be replaced by something in it, which would be removed, too.
    """
    source, copy = source.resolve(), copy.resolve()
    if source != copy and source.is_relative_to(copy):
        raise OSError(f"{source} cannot replace {copy}, the folder that contains it.")
    return source == copy


def copy_to_local(
    hdfs_path: str, local_path: str = "", overwrite: bool = False, project: str | None = None
) -> str:
    """Copy a file or folder of the project to a local folder, and return the path of the copy.

    A copy that exists with the same files and sizes is not repeated.

    Args:
        hdfs_path: the file or folder.
        local_path: an existing local folder; by default the working directory.
        overwrite: copy also if the copy exists.
        project: see `project_path`.

    Raises:
        FileNotFoundError: if the file or the local folder does not exist.

    Example:
        >>> dump("1,2", "Resources/more.csv")
        >>> Path(copy_to_local("Resources/more.csv")).read_text()
        '1,2'
    """
    folder = Path(local_path).absolute()
    if not folder.is_dir():
        raise FileNotFoundError(f"copy_to_local got {local_path!r}: there is no folder {folder}.")
    url = _existing(hdfs_path, project)
    copy = folder / url.rpartition("/")[2]
    if copy.exists():
        if not overwrite and _sizes(str(copy)) == _sizes(url):
            return str(copy)
        if storage.is_local(url) and _is_same(storage.local_path(url), copy):
            return str(copy)
        storage.remove(str(copy))
    _fetch(url, copy)
    return str(copy)


def _sizes(url: str) -> dict[str, int]:
    """Return the size of each file in a folder by its relative path, or of a single file."""
    filesystem, path = storage.filesystem(url)
    found = filesystem.find(path, detail=True)
    return {name[len(path) :].strip("/"): entry["size"] for name, entry in found.items()}


def _fetch(url: str, copy: Path) -> None:
    """Copy a file or folder to a local path that does not exist."""
    if storage.is_local(url):
        storage.copy(storage.local_path(url), str(copy))
    elif is_folder(url):
        storage.download(url, copy)
    else:
        filesystem, path = storage.filesystem(url)
        filesystem.get_file(path, str(copy))


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
    return storage.read(_existing(hdfs_path))


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
    return is_folder(_existing(hdfs_path, project))


def isfile(hdfs_path: str, project: str | None = None) -> bool:
    """Return True if there is a file.

    Raises:
        FileNotFoundError: if there is neither a file nor a folder.
    """
    return not is_folder(_existing(hdfs_path, project))


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
    url = _existing(hdfs_path)
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
    paths = ls(_existing(folder, project), recursive)
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
    url = _existing(hdfs_path)
    if not recursive and is_folder(url) and storage.list_names(url):
        raise OSError(f"{url} is not empty. Pass recursive=True to remove its content, too.")
    storage.remove(url)


def rmr(hdfs_path: str, project: str | None = None) -> None:
    """Remove a file, or a folder with its content."""
    storage.remove(_existing(hdfs_path, project))


def cp(src_hdfs_path: str, dest_hdfs_path: str, overwrite: bool = False) -> None:
    """Copy a file or folder within the project.

    Args:
        src_hdfs_path: the file or folder.
        dest_hdfs_path: the folder into which it is copied, or a new path for the copy.
        overwrite: replace the copy if it exists.

    Raises:
        FileExistsError: if the copy exists, and `overwrite` is False.
    """
    source = _existing(src_hdfs_path)
    target = _target(source, dest_hdfs_path)
    if storage.is_local(source):
        _copy(storage.local_path(source), target, overwrite)
        return
    with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
        _copy(Path(copy_to_local(source, folder)), target, overwrite)


def move(src: str, dest: str) -> None:
    """Move a file or folder within the project.

    Args:
        src: the file or folder.
        dest: the folder into which it is moved, or its new path.

    Raises:
        FileExistsError: if there is a file or folder at its new path.
    """
    source = _existing(src)
    target = _target(source, dest)
    if storage.exists(target):
        raise FileExistsError(f"{target} exists. Remove it with hdfs.rmr, or choose another name.")
    storage.rename(source, target)


def rename(src: str, dest: str) -> None:
    """Move a file or folder within the project, see `move`."""
    move(src, dest)


def _target(source: str, path: str) -> str:
    """Return the path of the copy of a file: inside a folder that exists, else the path itself."""
    target = expand(path)
    is_inside = path.endswith("/") or is_folder(target)
    return storage.join(target, source.rpartition("/")[2]) if is_inside else target
