"""Runs anywhere. Refuse folders whose files are not all rows of a table, or not all written yet.

Delta, Hudi and Iceberg keep files of earlier versions of a table in its folder, and list the
present ones elsewhere. Reading all files would repeat rows and bring back removed ones.
"""

import re
from collections.abc import Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkdl.errors import ConfigError

NUM_THREADS = 16  # More than cores: the threads mostly wait for a store.

_FORMATS = {
    "Delta": re.compile(r"(^|/)_delta_log/"),
    "Hudi": re.compile(r"(^|/)\.hoodie/"),
    "Iceberg": re.compile(r"(^|/)metadata/[^/]+\.metadata\.json$"),
}
_PATTERNS = {"Delta": "_delta_log", "Hudi": ".hoodie", "Iceberg": "metadata/*.metadata.json"}


def refuse_tables(
    root: str,
    filesystem: Any,
    folder: str,
    paths: Iterable[str],
    matches: Iterable[str] | None = None,
) -> None:
    """Refuse the folder of a table.

    Args:
        root: the user's path.
        filesystem: the fsspec filesystem.
        folder: the folder above all files.
        paths: all files below the folder that were listed, hidden ones included.
        matches: the files and folders that match a pattern: there may be others in the folders
            above these; None if everything below `folder` was listed.

    Raises:
        ConfigError: if the folder, or a folder above or below it, is that of a table.
    """
    paths = list(paths)
    for kind, pattern in _FORMATS.items():
        if any(pattern.search(path[len(folder) :]) for path in paths):
            raise ConfigError(_message(root, kind))
    ancestors = list(_folders_of_tables(folder))
    for ancestor in ancestors[1:] if matches is None else ancestors:
        for kind, name in _PATTERNS.items():
            if filesystem.glob(f"{_escaped(ancestor)}/{name}"):
                raise ConfigError(_message(root, kind))
    folders = _folders_between(folder, matches or ())
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for table in pool.map(lambda name: _kind_of_table(filesystem, name), folders):
            if table:
                raise ConfigError(_message(root, table))


def _folders_between(top: str, paths: Iterable[str]) -> list[str]:
    """Return the folders above some paths and below `top`, each once."""
    folders: dict[str, None] = {}
    for path in paths:
        folder = path.rpartition("/")[0]
        while len(folder) > len(top) and folder not in folders:
            folders[folder] = None
            folder = folder.rpartition("/")[0]
    return list(folders)


def _kind_of_table(filesystem: Any, folder: str) -> str | None:
    """Return the format of the table in a folder, with a single request in most cases."""
    names = {path.rstrip("/").rpartition("/")[2] for path in filesystem.ls(folder, detail=False)}
    for kind, pattern in _PATTERNS.items():
        name, separator, _ = pattern.partition("/")
        if name in names and (not separator or filesystem.glob(f"{_escaped(folder)}/{pattern}")):
            return kind
    return None


def _folders_of_tables(folder: str) -> Iterator[str]:
    """Yield the folder, and those above it of which it may be a part: partitions and `data`."""
    while folder:
        yield folder
        folder, _, name = folder.rpartition("/")
        if "=" not in name and name != "data":
            return


def _escaped(path: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", path)


def _message(root: str, kind: str) -> str:
    reader = "data.delta(path)" if kind == "Delta" else "data.parquet(df.inputFiles())"
    return (
        f"{root!r} belongs to a {kind} table. Its folder also has files that are no longer part of "
        "the table, so that their rows would be repeated or come back. Read the table's present "
        f"files: {reader}. Or pass data=spark.read.table(...) to the verb and use data.dataset."
    )


def refuse_unfinished(paths: Set[str], top: str) -> None:
    """Refuse folders that are being written, or whose writer was killed, as of Spark's writers."""
    for path in sorted(paths):
        below, temporary, _ = path[len(top) :].partition("/_temporary")
        folder = f"{top}{below}"
        if temporary and f"{folder}/_SUCCESS" not in paths:
            raise ConfigError(
                f"{folder!r} is being written, or a job that wrote it was interrupted: it has "
                f"{path!r} and no _SUCCESS. Wait for the job, or write the folder again. To read "
                f"the files that are there, pass a pattern such as '{folder}/part-*'."
            )
