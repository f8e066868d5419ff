"""Runs anywhere. Read the log of a Delta table: the files of a version, and their partitions.

Source: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from sparkdl.data.readers.paths import Files, absolute
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.host.optional_packages import require


@dataclass(frozen=True)
class TableVersion:
    """A version of a table.

    Attributes:
        path: the path of the user.
        number: the number of the version.
        schema: its columns.
        files: its files.
        partitions: the values of the partition columns of each file, by name.
    """

    path: str
    number: int
    schema: pa.Schema
    files: Files
    partitions: Sequence[Mapping[str, pa.Scalar]]

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], version: int | str | datetime | None
    ) -> "TableVersion":
        """Read the log.

        Args:
            path: the folder of the table.
            version: see `delta`.

        Raises:
            FileNotFoundError, ConfigError, ImportError: see `delta`.
        """
        path = os.fspath(path)
        root = absolute(path)
        table = _open(root, version)
        name = _name(path, table.version())
        _refuse_unsupported(table, name)
        actions = pa.table(table.get_add_actions()).sort_by("path")
        schema = pa.schema(table.schema())
        files = _files(root, name, actions)
        return cls(path, table.version(), schema, files, _partitions(actions, name))

    def __str__(self) -> str:
        return _name(self.path, self.number)


def _name(path: str, number: int) -> str:
    return f"version {number} of {path!r}"


def newest_version(path: str) -> int:
    """Return the number of the newest version of a table.

    Args:
        path: the folder of the table.

    Raises:
        FileNotFoundError, ConfigError, ImportError: see `delta`.
    """
    number: int = _open(absolute(path), None).version()
    return number


def _open(root: str, version: int | str | datetime | None) -> Any:
    _refuse_percent_codes(root)
    require("deltalake", "data.delta")
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    is_number = isinstance(version, int) and not isinstance(version, bool) and version >= 0
    if not (version is None or is_number or isinstance(version, str | datetime)):
        raise ConfigError(
            f"version is {version!r}; expected the number of a version, a time, or None."
        )
    try:
        table = DeltaTable(root)
        if version is not None:
            table.load_as_version(version)
    except TableNotFoundError as exc:
        raise FileNotFoundError(f"there is no Delta table at {root!r}: {exc}") from exc
    except (DeltaError, ValueError, OSError) as exc:
        raise ConfigError(f"version={version!r} of {root!r} cannot be read: {exc}") from exc
    if isinstance(version, str | datetime):
        _check_time(table, version, root)
    return table


def _refuse_percent_codes(root: str) -> None:
    """Refuse a path that deltalake decodes, whose log would be that of another folder."""
    if code := re.search(r"(%[0-9A-Fa-f]{2})+", root):
        character = unquote(code[0])
        raise ConfigError(
            f"{root!r} has {code[0]} in its path, for which deltalake reads {character!r}, and so "
            f"looks in another folder. Rename the folder; in a URL, write {character!r} itself."
        )


def _check_time(table: Any, wanted_time: str | datetime, root: str) -> None:
    """Refuse a time before the first version, for which deltalake returns the first one."""
    time = (
        datetime.fromisoformat(wanted_time.replace("Z", "+00:00"))
        if isinstance(wanted_time, str)
        else wanted_time
    )
    utc = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    commits = type(table)(
        root
    ).history()  # Of the newest version: deltalake numbers others wrongly.
    written_ms = {commit["version"]: commit.get("timestamp", 0) for commit in commits}
    if written_ms.get(table.version(), 0) > utc.timestamp() * 1000:
        raise ConfigError(
            f"{root!r} had no version yet at {wanted_time}; version {table.version()} is the first."
        )


def _refuse_unsupported(table: Any, name: str) -> None:
    """Refuse tables whose files have other columns or rows than the table."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise ConfigError(
            f"{name} has renamed columns (delta.columnMapping.mode={mode}). Read it with Spark: "
            "data=spark.read.table(...) and data.dataset."
        )
    features = table.protocol().reader_features or ()
    if "deletionVectors" in features and any(batch.num_rows for batch in table.deletion_vectors()):
        raise ConfigError(
            f"{name} has rows that are only marked as deleted (deletion vectors). Write its files "
            "again with REORG TABLE ... APPLY (PURGE), or read it with Spark: "
            "data=spark.read.table(...) and data.dataset."
        )


def _files(root: str, name: str, actions: pa.Table) -> Files:
    paths = [unquote(path) for path in actions["path"].to_pylist()]
    if not paths:
        raise ConfigError(f"{name} has no files; expected a version with rows.")
    if elsewhere := [path for path in paths if "://" in path or path.startswith("/")]:
        raise ConfigError(
            f"{name} has files outside its folder, such as {elsewhere[0]}, as a shallow clone has. "
            "Read it with Spark: data=spark.read.table(...) and data.dataset."
        )
    filesystem, folder = storage.filesystem(root)
    folder = folder.rstrip("/")
    # The files of a table never change, so that they need no marks.
    return Files(
        root=root,
        filesystem=filesystem,
        folder=folder,
        paths=tuple(f"{folder}/{path}" for path in paths),
        sizes=tuple(actions["size_bytes"].to_pylist()),
        marks=("",) * len(paths),
        mark_key="",
    )


def _partitions(actions: pa.Table, name: str) -> list[dict[str, pa.Scalar]]:
    if "partition" not in actions.column_names:
        return [{} for _ in range(actions.num_rows)]
    columns = actions["partition"].combine_chunks().flatten()
    names = [field.name for field in actions.schema.field("partition").type]
    for field in actions.schema.field("partition").type:
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            # deltalake returns the escaped form of the log, in which `/` is `\u002F`.
            raise ConfigError(
                f"{name} is partitioned by {field.name!r}, whose values are binary. Read it with "
                "Spark: data=spark.read.table(...) and data.dataset."
            )
    return [
        {name: column[number] for name, column in zip(names, columns, strict=True)}
        for number in range(actions.num_rows)
    ]
