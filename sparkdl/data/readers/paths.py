"""Runs anywhere. Find the files that a path, folder or pattern refers to."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.fs

from sparkdl import storage
from sparkdl.errors import ConfigError, suggest

__all__ = ["Files", "Paths", "check_names", "describe", "find", "urls_of"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Files:
    """Files of one store, below one folder.

    Attributes:
        filesystem: the fsspec filesystem of the store.
        folder: the folder above all files; names of folders below it may define columns.
        paths: paths of the files on the filesystem, sorted.
    """

    filesystem: Any
    folder: str
    paths: tuple[str, ...]

    @property
    def is_local(self) -> bool:
        """True if the files are on this machine's filesystem."""
        return "file" in self.filesystem.protocol

    @cached_property
    def arrow(self) -> pyarrow.fs.FileSystem:
        """The same store as a pyarrow filesystem."""
        if self.is_local:
            return pyarrow.fs.LocalFileSystem()  # Runs in C++, without Python's lock.
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self.filesystem))

    def url(self, path: str) -> str:
        """Return the URL or local path of a file, as a user would write it."""
        return path if self.is_local else str(self.filesystem.unstrip_protocol(path))

    def mark(self, path: str) -> str:
        """Return a string that changes when the content of a file changes."""
        return str(self.filesystem.ukey(path))


def find(paths: Paths) -> list[Files]:
    """Return the files that the user's paths refer to, in the order of the paths.

    Args:
        paths: a file; a folder, for all files below it; a pattern with `*`, `?` or `[...]`; or a
            list of these. Local paths, or URLs that fsspec supports. As in Spark, names in a
            folder that start with `.` or `_` are ignored, except folders such as `_day=3`.

    Raises:
        FileNotFoundError: if a path refers to no file.
        ConfigError: if the list of paths is empty, or a folder is being written: it has files of a
            `_temporary` folder and no `_SUCCESS`.

    Example:
        >>> from pathlib import Path
        >>> Path("data/day=1").mkdir(parents=True)
        >>> for name in ("day=1/b.csv", "a.csv", "_SUCCESS"):
        ...     Path("data", name).touch()
        >>> [Path(p).name for p in find("data")[0].paths]
        ['a.csv', 'b.csv']
        >>> [Path(p).name for p in find("data/*=1")[0].paths]
        ['b.csv']
    """
    path_list = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not path_list:
        raise ConfigError("the list of paths is empty; expected at least one file or folder.")
    return [_find(storage.absolute(path)) for path in path_list]


def urls_of(matches: Iterable[Files]) -> list[str]:
    """Return the URLs or local paths of all files, as a user would write them."""
    return [files.url(path) for files in matches for path in files.paths]


def describe(paths: Paths) -> str:
    """Return a short description of paths, for messages."""
    if isinstance(paths, str | os.PathLike):
        return os.fspath(paths)
    if len(paths) == 1:
        return os.fspath(paths[0])
    return f"{os.fspath(paths[0])} and {len(paths) - 1} more" if paths else "no files"


def check_names(options: Mapping[str, Iterable[str] | None], schema: pa.Schema) -> None:
    """Validate arguments by column, such as `fill`.

    Args:
        options: the names of columns in each argument, by the argument's name.
        schema: the columns that exist.

    Raises:
        ConfigError: if an argument names a column that does not exist.
    """
    for option, names in options.items():
        for name in names or ():
            if name not in schema.names:
                raise ConfigError(
                    f"{option} names column {name!r}, which does not exist."
                    f"{suggest(name, schema.names)} Columns are {', '.join(schema.names)}."
                )


def _find(url: str) -> Files:
    filesystem, path = storage.filesystem(url)
    path = path.rstrip("/")
    if filesystem.isfile(path):
        return Files(filesystem, path.rpartition("/")[0], (path,))
    folder, wildcard = path, _WILDCARD.search(path)
    if wildcard and not filesystem.isdir(path):
        folder = path[: wildcard.start()].rpartition("/")[0]
        matches = filesystem.glob(path, detail=True)
        folders = [match for match, entry in matches.items() if entry["type"] == "directory"]
    else:
        matches, folders = {}, [path]
    candidates = {*matches}.difference(folders).union(*map(filesystem.find, folders))
    _refuse_unfinished(candidates, folder)
    files = tuple(sorted(file for file in candidates if not _is_hidden(file[len(folder) :])))
    if not files:
        raise FileNotFoundError(
            f"no files found at {url!r}; expected a file, a folder, or a pattern such as "
            "'data/part-*'. Names starting with '.' or '_' are ignored."
        )
    return Files(filesystem, folder, files)


def _refuse_unfinished(all_paths: Iterable[str], top: str) -> None:
    """Refuse folders that are being written, or whose writer was killed, as of Spark's writers."""
    paths = set(all_paths)
    for path in sorted(paths):
        below, temporary, _ = path[len(top) :].partition("/_temporary")
        folder = f"{top}{below}"
        if temporary and f"{folder}/_SUCCESS" not in paths:
            raise ConfigError(
                f"{folder!r} is being written, or a job that wrote it was interrupted: it has "
                f"{path!r} and no _SUCCESS. Wait for the job, or write the folder again. To read "
                f"the files that are there, pass a pattern such as '{folder}/part-*'."
            )


def _is_hidden(relative_path: str) -> bool:
    *folders, name = relative_path.strip("/").split("/")
    hidden = [part for part in folders if part.startswith("_") and "=" not in part]
    return bool(hidden) or name.startswith("_") or any(p.startswith(".") for p in [*folders, name])
