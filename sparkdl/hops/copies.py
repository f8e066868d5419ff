"""Runs anywhere. Copy and move files, within the project and from and to the local disk."""

import tempfile
from pathlib import Path

from sparkdl.files import storage
from sparkdl.hops.project import existing, expand, is_folder

__all__ = ["copy_to_hdfs", "copy_to_local", "cp", "move", "rename"]


def copy_to_hdfs(
    local_path: str, relative_hdfs_path: str, overwrite: bool = False, project: str | None = None
) -> None:
    """Copy a local file or folder to the project.

    Args:
        local_path: the local file or folder.
        relative_hdfs_path: the folder into which it is copied, or a new path for the copy.
        overwrite: replace a file or folder of the same name in the folder `relative_hdfs_path`.
        project: see `hdfs.project_path`.

    Raises:
        FileNotFoundError: if the local file does not exist.
        FileExistsError: if the copy exists, and `overwrite` is False.

    Example:
        >>> _ = Path("data.csv").write_text("1,2")
        >>> copy_to_hdfs("data.csv", "Resources")
        >>> from sparkdl.hops import hdfs
        >>> hdfs.load("Resources/data.csv")
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
        project: see `hdfs.project_path`.

    Raises:
        FileNotFoundError: if the file or the local folder does not exist.

    Example:
        >>> from sparkdl.hops import hdfs
        >>> hdfs.dump("1,2", "Resources/more.csv")
        >>> Path(copy_to_local("Resources/more.csv")).read_text()
        '1,2'
    """
    folder = Path(local_path).absolute()
    if not folder.is_dir():
        raise FileNotFoundError(f"copy_to_local got {local_path!r}: there is no folder {folder}.")
    url = existing(hdfs_path, project)
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
    entries = filesystem.find(path, detail=True)
    return {name[len(path) :].strip("/"): entry["size"] for name, entry in entries.items()}


def _fetch(url: str, copy: Path) -> None:
    """Copy a file or folder to a local path that does not exist."""
    if storage.is_local(url):
        storage.copy(storage.local_path(url), str(copy))
    elif is_folder(url):
        storage.download(url, copy)
    else:
        filesystem, path = storage.filesystem(url)
        filesystem.get_file(path, str(copy))


def cp(src_hdfs_path: str, dest_hdfs_path: str, overwrite: bool = False) -> None:
    """Copy a file or folder within the project.

    Args:
        src_hdfs_path: the file or folder.
        dest_hdfs_path: the folder into which it is copied, or a new path for the copy.
        overwrite: replace the copy if it exists.

    Raises:
        FileExistsError: if the copy exists, and `overwrite` is False.
    """
    source = existing(src_hdfs_path)
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
    source = existing(src)
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
