"""Runs anywhere. Find the files that a path, folder or pattern refers to."""

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs

from sparkdl import context
from sparkdl.data.readers.exact_reads import arrow_filesystem
from sparkdl.data.readers.file_records import record
from sparkdl.data.readers.table_formats import refuse_tables, refuse_unfinished
from sparkdl.errors import ConfigError, suggest
from sparkdl.files import storage

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

NUM_THREADS = 16  # More than cores: the threads mostly wait for a store.

_WILDCARD = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
# As Spark and Hadoop write local URLs.
_SINGLE_SLASH = re.compile(r"^file:/(?!/)")

# Properties by which a changed file is recognised, in the order of their reliability.
_MARKS = ("ETag", "etag", "generation", "mtime", "modificationTime", "LastModified", "created")


@dataclass(frozen=True)
class Files:
    """Files of one store, below one folder.

    Attributes:
        root: the user's path, absolute.
        filesystem: the fsspec filesystem of the store.
        folder: the folder above all files; names of folders below it may define columns.
        paths: paths of the files on the filesystem, sorted.
        sizes: sizes of the files in bytes.
        marks: for each file a text that changes when its content changes.
        mark_key: the property of a file that is its mark.
        place: number of the user's path, and of its reading: literal, expanded or decoded.
        host: the host on which the files were listed.
    """

    root: str
    filesystem: Any
    folder: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    marks: tuple[str, ...]
    mark_key: str
    place: tuple[int, int] = (0, 0)
    host: str = field(default_factory=socket.gethostname)

    @property
    def is_local(self) -> bool:
        """True if the files are on this machine's filesystem."""
        return storage.is_local(self.root)

    @cached_property
    def arrow(self) -> pyarrow.fs.FileSystem:
        """The same store as a pyarrow filesystem."""
        if self.is_local:
            return pyarrow.fs.LocalFileSystem()  # Runs in C++, without Python's lock.
        return arrow_filesystem(self.filesystem, dict(zip(self.paths, self.sizes, strict=True)))

    def url(self, path: str) -> str:
        """Return the URL or local path of a file, as a user would write it."""
        if self.is_local:
            return path
        chain, separator, _ = self.root.rpartition("::")
        return f"{chain}{separator}{self.filesystem.unstrip_protocol(path)}"

    def has_changed(self, number: int) -> bool:
        """Return True if a file is another one than when the files were listed.

        Hosts may each have a local copy of the files, written at different times: a local file
        that was listed on another host is recognised by its size.

        Args:
            number: index of the file in `paths`.

        Raises:
            FileNotFoundError: if the file does not exist any more.
        """
        info = self.filesystem.info(self.paths[number])
        if info["size"] != self.sizes[number]:
            return True
        is_other_copy = self.is_local and self.host != socket.gethostname()
        if is_other_copy or self.mark_key not in info:
            return False
        return _mark(info, self.mark_key) != self.marks[number]

    def check(self, number: int) -> None:
        """Validate that an open file is the one that was listed, see `has_changed`.

        Raises:
            ValueError: if the file is another one.
        """
        if self.has_changed(number):
            raise ValueError(
                f"{self.url(self.paths[number])} has changed since it was listed. Write new rows "
                "to new files, and start again to read them."
            )

    def subset(self, numbers: Sequence[int]) -> "Files":
        """Return some of the files.

        Args:
            numbers: their indexes in `paths`.
        """
        if len(numbers) == len(self.paths):
            return self
        return replace(
            self,
            paths=tuple(self.paths[n] for n in numbers),
            sizes=tuple(self.sizes[n] for n in numbers),
            marks=tuple(self.marks[n] for n in numbers),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, relative to the user's path, which may differ from host to host."""
        _, root = storage.filesystem(self.root)
        root = root.rstrip("/")
        start = len(self.folder) + 1 if self.folder else 0
        return {
            "up": root.count("/") - self.folder.count("/") if root != self.folder else 0,
            "names": [path[start:] for path in self.paths],
            "sizes": self.sizes,
            "marks": self.marks,
            "mark_key": self.mark_key,
            "place": self.place,
            "host": self.host,
        }

    @classmethod
    def from_entries(
        cls,
        root: str,
        filesystem: Any,
        folder: str,
        entries: Mapping[str, Mapping[str, Any]],
        place: tuple[int, int] = (0, 0),
    ) -> "Files":
        """Return the files of a listing.

        Args:
            root, filesystem, folder, place: the attributes.
            entries: what the filesystem lists about each file, by its path; at least one.
        """
        paths = tuple(sorted(entries))
        first = entries[paths[0]]
        mark_key = next((key for key in _MARKS if first.get(key)), "")
        return cls(
            root=root,
            filesystem=filesystem,
            folder=folder,
            paths=paths,
            sizes=tuple(int(entries[path]["size"] or 0) for path in paths),
            marks=tuple(_mark(entries[path], mark_key) for path in paths),
            mark_key=mark_key,
            place=place,
        )

    @classmethod
    def from_dict(cls, root: str, listing: Mapping[str, Any]) -> "Files":
        """Return the files that another rank has listed.

        Args:
            root: the user's path on this rank, absolute.
            listing: the JSON form.
        """
        filesystem, folder = storage.filesystem(root)
        folder = folder.rstrip("/")
        if listing["up"]:
            folder = folder.rsplit("/", listing["up"])[0]
        prefix = f"{folder}/" if folder else ""
        return cls(
            root,
            filesystem,
            folder,
            tuple(prefix + name for name in listing["names"]),
            tuple(listing["sizes"]),
            tuple(listing["marks"]),
            listing["mark_key"],
            tuple(listing["place"]),
            listing["host"],
        )


def find(paths: Paths, refuses_tables: bool = False) -> list[Files]:
    """Return the files that the user's paths refer to, in the order of the paths.

    Args:
        paths: a file; a folder, for all files below it; a pattern with `*`, `?`, `[...]` or
            `{a,b}`; or a list of these. Local paths, or URLs that fsspec supports. As in Spark,
            names in a folder that start with `.` or `_` are ignored, except folders such as
            `_day=3`.
        refuses_tables: refuse folders of Delta, Hudi and Iceberg tables.

    Raises:
        FileNotFoundError: if a path refers to no file.
        ConfigError: if the list of paths is empty, a folder is that of a table, or a folder is
            being written: it has files of a `_temporary` folder and no `_SUCCESS`.

    Example:
        >>> from pathlib import Path
        >>> Path("data/day=1").mkdir(parents=True)
        >>> for name in ("day=1/b.csv", "a.csv", "_SUCCESS"):
        ...     Path("data", name).touch()
        >>> [Path(p).name for p in find("data")[0].paths]
        ['a.csv', 'b.csv']
        >>> [Path(p).name for p in find("data/{*=1,*=2}")[0].paths]
        ['b.csv']
    """
    path_list = _as_list(paths)
    if not path_list:
        raise ConfigError("the list of paths is empty; expected at least one file or folder.")

    def of_path(number: int) -> list[Files]:
        return _find(number, path_list[number], refuses_tables)

    if len(path_list) == 1:
        of_paths = of_path(0)
    else:
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            of_paths = [f for matches in pool.map(of_path, range(len(path_list))) for f in matches]
    record(of_paths)
    return of_paths


def find_again(paths: Paths, listings: Sequence[Mapping[str, Any]]) -> list[Files]:
    """Return the files that another rank has found for the same paths, without a look at them.

    Args:
        paths: the paths of the user on this rank.
        listings: the JSON forms of `find(paths)` on the other rank.
    """
    path_list = _as_list(paths)
    matches = []
    for files in listings:
        number, reading = files["place"]
        matches.append(Files.from_dict(_readings(path_list[number])[reading], files))
    return matches


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


def _as_list(paths: Paths) -> list[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _readings(path: str | os.PathLike[str]) -> list[str]:
    """Return the absolute URLs that a user's path may mean, without a look at any store.

    First the path as it is, then the alternatives of its braces, then the path with its `%20` and
    so on decoded, as in the URLs that `DataFrame.inputFiles()` returns.

    Example:
        >>> _readings("/a/{b,c}")
        ['/a/{b,c}', '/a/b', '/a/c']
        >>> _readings("file:/a%20b")
        ['/a%20b', '/a b']
    """
    text = os.fspath(path)
    text = _SINGLE_SLASH.sub("/", text)
    texts = [text]
    if _BRACES.search(text):
        texts += _expanded(text)
    if unquote(text) != text:
        texts.append(unquote(text))
    return [absolute(text) for text in texts]


def absolute(text: str) -> str:
    """Return an absolute URL; a relative path is not below the directory of this process alone.

    Raises:
        ConfigError: if the URL is one of FTP, also behind another one, as in `zip://::ftp://host`.
    """
    if any(part.startswith("ftp://") for part in text.lower().split("::")):
        raise ConfigError(
            "a path is on FTP (ftp://), where a reader's threads would share one connection, which "
            "mixes up their files. Use sftp://, or copy the files to a store or a shared disk."
        )
    if not storage.is_local(text):
        return storage.absolute(text)
    return str(Path(context.original_cwd, storage.local_path(text).expanduser()))


def _expanded(text: str) -> Iterator[str]:
    match = _BRACES.search(text)
    if not match:
        yield text
        return
    for choice in match.group(1).split(","):
        yield from _expanded(text[: match.start()] + choice + text[match.end() :])


def _find(number: int, path: str | os.PathLike[str], refuses_tables: bool) -> list[Files]:
    literal, *others = _readings(path)
    if files := _match(literal, (number, 0), refuses_tables):
        return [files]
    of_places = [_match(url, (number, n), refuses_tables) for n, url in enumerate(others, 1)]
    if not any(of_places):
        raise FileNotFoundError(
            f"no files found at {literal!r}; expected a file, a folder, or a pattern such as "
            "'data/part-*'. Names starting with '.' or '_' are ignored."
        )
    return [files for files in of_places if files]


def _match(root: str, place: tuple[int, int], refuses_tables: bool) -> Files | None:
    """Return the files at a URL; None if there are none."""
    filesystem, path = storage.filesystem(root)
    path = path.rstrip("/")
    info = _info(filesystem, path)
    if info and info["type"] == "file":
        return Files.from_entries(root, filesystem, path.rpartition("/")[0], {path: info}, place)
    folder = path
    wildcard = _WILDCARD.search(path)
    if wildcard and not info:
        folder = path[: wildcard.start()].rpartition("/")[0]
        matches = filesystem.glob(path, detail=True)
        folders = [match for match, entry in matches.items() if entry["type"] == "directory"]
    else:
        matches, folders = {}, [path]
    entries = {match: entry for match, entry in matches.items() if entry["type"] != "directory"}
    for name in folders:
        entries |= filesystem.find(name, detail=True)
    if refuses_tables and entries:
        refuse_tables(root, filesystem, folder, entries, matches or None)
    refuse_unfinished(entries.keys(), folder)
    visible = {file: entries[file] for file in entries if not _is_hidden(file[len(folder) :])}
    return Files.from_entries(root, filesystem, folder, visible, place) if visible else None


def _info(filesystem: Any, path: str) -> Mapping[str, Any] | None:
    try:
        info: Mapping[str, Any] = filesystem.info(path)
    except FileNotFoundError:
        return None
    return info


def _mark(info: Mapping[str, Any], key: str) -> str:
    value = info.get(key, "")
    # Some filesystems list another type than they return for a single file.
    return str(value.timestamp() if isinstance(value, datetime) else value)


def _is_hidden(relative_path: str) -> bool:
    *folders, name = relative_path.strip("/").split("/")
    hidden = [part for part in folders if part.startswith("_") and "=" not in part]
    # Hadoop on S3 writes empty objects `day=3_$folder$` in place of folders.
    is_marker = name.startswith("_") or name.endswith("_$folder$")
    return bool(hidden) or is_marker or any(p.startswith(".") for p in [*folders, name])
