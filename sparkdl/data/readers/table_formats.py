"""Runs anywhere. Refuse folders of tables whose Parquet files are not all part of the table.

Delta, Hudi and Iceberg keep files of earlier versions of a table in its folder, and list the
present ones elsewhere. Reading all files would repeat rows and bring back removed ones.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sparkdl.errors import ConfigError

__all__ = ["refuse_tables"]

_FORMATS = {
    "Delta": re.compile(r"(^|/)_delta_log/"),
    "Hudi": re.compile(r"(^|/)\.hoodie/"),
    "Iceberg": re.compile(r"(^|/)metadata/[^/]+\.metadata\.json$"),
}
_PATTERNS = {"Delta": "_delta_log", "Hudi": ".hoodie", "Iceberg": "metadata/*.metadata.json"}


def refuse_tables(
    root: str, filesystem: Any, folder: str, paths: Iterable[str], is_pattern: bool
) -> None:
    """Refuse the folder of a table.

    Args:
        root: the user's path.
        filesystem: the fsspec filesystem.
        folder: the folder above all files.
        paths: all files below the folder that were listed, hidden ones included.
        is_pattern: the listed files match a pattern: there may be others in the folder.

    Raises:
        ConfigError: if the folder, or a folder above or below it, is that of a table.
    """
    paths = list(paths)
    for kind, pattern in _FORMATS.items():
        if any(pattern.search(path[len(folder) :]) for path in paths):
            raise ConfigError(_message(root, kind))
    ancestors = list(_folders_of_tables(folder))
    for ancestor in ancestors if is_pattern else ancestors[1:]:
        for kind, name in _PATTERNS.items():
            if filesystem.glob(f"{_escaped(ancestor)}/{name}"):
                raise ConfigError(_message(root, kind))


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
    return (
        f"{root!r} belongs to a {kind} table. Its folder also has files that are no longer part of "
        "the table, so that their rows would be repeated or come back. Pass "
        "data=spark.read.table(...) to the verb and use data.dataset, or read the table's present "
        "files: data.parquet(df.inputFiles())."
    )
