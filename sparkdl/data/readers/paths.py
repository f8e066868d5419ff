"""Runs anywhere. Which files a person means."""

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

__all__ = ["Files", "Paths", "check_names", "find", "shown", "urls_of"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Files:
    """Files of one store, below one folder.

    Attributes:
        filesystem: fsspec's.
        folder: what is above all of them; their folders below it may say something of them.
        paths: on that filesystem, sorted.
    """

    filesystem: Any
    folder: str
    paths: tuple[str, ...]

    @property
    def is_local(self) -> bool:
        """Whether they are on this machine's filesystem."""
        return "file" in self.filesystem.protocol

    @cached_property
    def arrow(self) -> pyarrow.fs.FileSystem:
        """The same store for pyarrow."""
        if self.is_local:
            return pyarrow.fs.LocalFileSystem()  # In C++, and without Python's lock.
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self.filesystem))

    def url(self, path: str) -> str:
        """How a person would write it."""
        return path if self.is_local else str(self.filesystem.unstrip_protocol(path))

    def mark(self, path: str) -> str:
        """Differs when a file has changed."""
        return str(self.filesystem.ukey(path))


def find(paths: Paths) -> list[Files]:
    """The files that a person means, in their order.

    Args:
        paths: a file; a folder, for all in and below it; a pattern with `*`, `?` or `[...]`; or a
            list of such. Local, or URLs that fsspec understands. What is in a folder and begins
            with `.` or `_` is left out, as Spark does, but for folders such as `_day=3`.

    Raises:
        FileNotFoundError: there is none.

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
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ConfigError("the list of paths is empty; expected at least one file or folder.")
    return [_find(storage.absolute(path)) for path in given]


def urls_of(found: Iterable[Files]) -> list[str]:
    """All files that were found, as a person would write them."""
    return [files.url(path) for files in found for path in files.paths]


def shown(paths: Paths) -> str:
    """Some paths in a few words."""
    if isinstance(paths, str | os.PathLike):
        return os.fspath(paths)
    if len(paths) == 1:
        return os.fspath(paths[0])
    return f"{os.fspath(paths[0])} and {len(paths) - 1} more" if paths else "no files"


def check_names(options: Mapping[str, Iterable[str] | None], schema: pa.Schema) -> None:
    """Refuse arguments that are by column, such as `fill`, where they name one that is not there.

    Raises:
        ConfigError: there is no such column.
    """
    for option, names in options.items():
        for name in names or ():
            if name not in schema.names:
                raise ConfigError(
                    f"{option} names column {name!r}, which is not there."
                    f"{suggest(name, schema.names)} Columns are {', '.join(schema.names)}."
                )


def _find(url: str) -> Files:
    filesystem, path = storage.filesystem(url)
    path = path.rstrip("/")
    if filesystem.isfile(path):
        return Files(filesystem, path.rpartition("/")[0], (path,))
    folder, wild = path, _WILD.search(path)
    if wild and not filesystem.isdir(path):
        folder = path[: wild.start()].rpartition("/")[0]
        matches = filesystem.glob(path, detail=True)
        folders = [at for at, entry in matches.items() if entry["type"] == "directory"]
    else:
        matches, folders = {}, [path]
    found = {*matches}.difference(folders).union(*map(filesystem.find, folders))
    files = tuple(sorted(file for file in found if not _is_hidden(file[len(folder) :])))
    if not files:
        raise FileNotFoundError(
            f"{url!r} is no file, holds none, and matches none; expected a file, a folder, or a "
            "pattern such as 'data/part-*'. What begins with '.' or '_' does not count."
        )
    return Files(filesystem, folder, files)


def _is_hidden(below: str) -> bool:
    *folders, name = below.strip("/").split("/")
    hidden = [part for part in folders if part.startswith("_") and "=" not in part]
    return bool(hidden) or name.startswith("_") or any(p.startswith(".") for p in [*folders, name])
