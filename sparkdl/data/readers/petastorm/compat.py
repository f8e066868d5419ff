"""Runs anywhere. Makes the petastorm package work on today's pyarrow and NumPy.

petastorm imports modules that pyarrow has dropped (`pyarrow.filesystem`, `pyarrow.hdfs`), reads
files with classes that it has dropped (`ParquetDataset` with `pieces`, `ParquetDatasetPiece`), and
uses names that NumPy 2 has dropped. `load` puts stand-ins in their places. Its modules call
`pyarrow.parquet` by the name `pq`: that name is set to this module, which defines all that they
use of it. A module is pickled by its name, so petastorm's own functions reach Spark's tasks too.

Nothing happens before `load` is called. A task that unpickles anything of petastorm calls it first.

Checked with pyarrow 26.0, NumPy 2.4, pandas 2.3, pyspark 4.3 and TensorFlow 2.21, on Python 3.11:
petastorm 0.13.1 and 0.12.1. Works: `make_reader`, `make_batch_reader` with the pools `dummy` and
`thread`, `make_petastorm_dataset`, `make_spark_converter`, `materialize_dataset`, all codecs,
folders of `column=value`, `predicate=`. Does not: the pool `process`, whose workers import
petastorm by themselves, `filters=`, and `hdfs://` unless `filesystem=` is given.

The pool `thread` of 0.13.1 loses rows without a word: of 100 reads of a small dataset 18 returned
none. Use `dummy`, or 0.12.1.
"""

import functools
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow.parquet import ParquetFile, read_metadata

from sparkdl import storage

__all__ = ["ParquetDataset", "ParquetDatasetPiece", "load", "read_metadata"]

# Those of its modules that read Parquet.
_READING = (
    "reader",
    "arrow_reader_worker",
    "py_dict_reader_worker",
    "etl.dataset_metadata",
    "etl.rowgroup_indexing",
)

# What Spark and Hive write for a null.
_NULL = "__HIVE_DEFAULT_PARTITION__"


@functools.cache
def load() -> ModuleType:
    """The module `petastorm`, made to work in this process.

    Raises:
        ImportError: it is not installed.

    Example:
        >>> petastorm = load()
        >>> with petastorm.make_reader("file:///data/cats", reader_pool_type="dummy") as reader:
        ...     first = next(reader)  # doctest: +SKIP
    """
    local, _ = storage.filesystem("/")
    _put_back(local)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It imports distutils, and more that is deprecated.
            petastorm = importlib.import_module("petastorm")
            reading = [importlib.import_module(f"petastorm.{name}") for name in _READING]
            fs_utils: Any = importlib.import_module("petastorm.fs_utils")
    except ModuleNotFoundError as exc:
        if exc.name != "petastorm":
            raise
        raise ImportError(
            "petastorm is not installed here. Add it with: pip install 'sparkdl[petastorm]'"
        ) from None
    for module in reading:
        module.pq = sys.modules[__name__]  # type: ignore[attr-defined]
    # It looks here for `localfs` alone. A namespace is pickled with what it holds.
    fs_utils.pyarrow = SimpleNamespace(localfs=local)
    return petastorm


def _put_back(local: Any) -> None:
    """Names that petastorm takes from pyarrow and NumPy, where they are gone."""
    import numpy as np

    gone: list[tuple[Any, str, Any]] = [
        (np, "unicode_", np.str_),
        (np, "string_", np.bytes_),
        (np, "in1d", np.isin),
        (pa, "LocalFileSystem", type(local)),
    ]
    for module, names in {
        "pyarrow.filesystem": {"LocalFileSystem": type(local)},
        "pyarrow.hdfs": {"HadoopFileSystem": object},
    }.items():
        stand_in = sys.modules.setdefault(module, ModuleType(module))
        gone += [(stand_in, name, value) for name, value in names.items()]
    for module, name, value in gone:
        if not hasattr(module, name):
            setattr(module, name, value)


class Partition:
    """A column that is kept in the names of folders, `name=value`."""

    def __init__(self, name: str, values: Iterable[str]) -> None:
        self.name = name
        self.keys = sorted(set(values))
        texts = pa.array([None if key == _NULL else key for key in self.keys], pa.string())
        try:
            self.dictionary = texts.cast(pa.int64())
        except pa.ArrowInvalid:
            self.dictionary = texts


class Partitions(list[Partition]):
    """All such columns, outermost first."""

    @property
    def partition_names(self) -> set[str]:
        """Their names."""
        return {partition.name for partition in self}


class ParquetDatasetPiece:
    """A Parquet file, or one row group of it.

    Args:
        path: of the file, in its filesystem.
        open_file_func: opens it.
        row_group: its number; None for all.
        partition_keys: the name of each `Partition`, and which of its `keys` this file has.
    """

    def __init__(
        self,
        path: str,
        open_file_func: Callable[[str], Any],
        row_group: int | None = None,
        partition_keys: Iterable[tuple[str, int]] = (),
    ) -> None:
        self.path, self.row_group = path, row_group
        self.partition_keys = list(partition_keys)
        self._open = open_file_func

    def get_metadata(self) -> Any:
        """The file's footer."""
        with self._open(self.path) as file:
            try:
                return read_metadata(file)
            except pa.ArrowInvalid as exc:
                raise ValueError(f"{self.path} is no Parquet file, or cut short: {exc}") from exc

    def read(self, columns: Iterable[str] | None, partitions: Partitions | None) -> pa.Table:
        """Its rows, and the columns that are kept in the names of folders."""
        names = None if columns is None else list(columns)
        with self._open(self.path) as file, ParquetFile(file) as parquet:
            if self.row_group is None:
                table = parquet.read(names)
            else:
                table = parquet.read_row_group(self.row_group, names)
        for partition, (name, key) in zip(partitions or [], self.partition_keys, strict=True):
            values = pa.repeat(partition.dictionary[key], table.num_rows)
            table = table.append_column(name, values)
        return table


class ParquetDataset:
    """The Parquet files below a folder, as pyarrow described them before version 15.

    Args:
        path_or_paths: a folder, a file, or a list of files.
        filesystem: of fsspec.
        filters: not supported.
        **unused: settings of pyarrow that mean nothing here.

    Attributes:
        pieces: the files, sorted by their paths; none whose name, or whose folder's, begins with
            `_` or a dot.
        partitions: the columns in the names of folders; None where there are none.
        metadata, common_metadata: the footers `_metadata` and `_common_metadata`, or None.
    """

    def __init__(
        self, path_or_paths: Any, filesystem: Any, filters: Any = None, **unused: object
    ) -> None:
        if filters:
            raise NotImplementedError(f"filters={filters!r} of petastorm; use predicate= instead.")
        self.fs, self.paths = filesystem, path_or_paths
        single = isinstance(path_or_paths, str)
        roots = [path_or_paths] if single else list(path_or_paths)
        # Not what a listing said before: the files may have just been written.
        filesystem.invalidate_cache()
        files = {path: _folders(root, path) for root in roots for path in _files(filesystem, root)}
        if not files:
            raise FileNotFoundError(f"no Parquet file at {path_or_paths!r}.")
        self.partitions = _partitions(files.values())
        self.pieces = [
            ParquetDatasetPiece(path, filesystem.open, None, self._keys(files[path]))
            for path in sorted(files)
        ]
        self.metadata_path = f"{path_or_paths}/_metadata" if single else None
        self.metadata = self._footer(self.metadata_path)
        self.common_metadata = self._footer(f"{path_or_paths}/_common_metadata" if single else None)

    def footers(self) -> list[Any]:
        """The footer of each piece, read at the same time: stores answer slowly."""
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(ParquetDatasetPiece.get_metadata, self.pieces))

    def _keys(self, folders: dict[str, str]) -> list[tuple[str, int]]:
        return [(p.name, p.keys.index(folders[p.name])) for p in self.partitions or ()]

    def _footer(self, path: str | None) -> Any:
        if path is None or not self.fs.exists(path):
            return None
        with self.fs.open(path) as file:
            return read_metadata(file)


def _files(filesystem: Any, root: str) -> list[str]:
    def is_data(path: str) -> bool:
        below = os.path.relpath(path, root).split("/")
        return path == root or all(p[0] not in "._" or "=" in p for p in below)

    return [path for path in filesystem.find(root) if is_data(path)]


def _folders(root: str, path: str) -> dict[str, str]:
    """The columns in the names of a file's folders."""
    names = os.path.relpath(path, root).split("/")[:-1]
    pairs = [name.split("=", 1) for name in names if "=" in name]
    return {name: unquote(value) for name, value in pairs}


def _partitions(found: Iterable[dict[str, str]]) -> Partitions | None:
    found = list(found)
    names = list(found[0])
    for folders in found:
        if list(folders) != names:
            raise ValueError(
                f"files lie in folders of {list(folders)} and of {names}; expected the same "
                "columns for all of them."
            )
    return Partitions(Partition(n, (f[n] for f in found)) for n in names) if names else None
