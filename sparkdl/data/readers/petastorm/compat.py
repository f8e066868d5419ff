"""Runs anywhere. Make the petastorm package work with current versions of pyarrow and NumPy.

petastorm imports modules that pyarrow has removed (`pyarrow.filesystem`, `pyarrow.hdfs`), reads
files with classes that pyarrow has removed (`ParquetDataset` with `pieces`, `ParquetDatasetPiece`),
and uses names that NumPy 2 has removed. `load` installs replacements. petastorm's modules refer to
`pyarrow.parquet` by the name `pq`; `load` sets this name to the present module, which defines
everything that they use. A module is pickled by its name, so petastorm's own functions can be sent
to Spark tasks.

Importing this module changes nothing; `load` must be called before petastorm is used, also in a
task, before it unpickles an object of petastorm.

Tested with pyarrow 26.0, NumPy 2.4, pandas 2.3, pyspark 4.3 and TensorFlow 2.21, on Python 3.11:
petastorm 0.13.1 and 0.12.1. Supported: `make_reader`, `make_batch_reader` with the pools `dummy`
and `thread`, `make_petastorm_dataset`, `make_spark_converter`, `materialize_dataset`, all codecs,
folders of `column=value`, `predicate=`. Not supported: the pool `process`, whose workers import
petastorm without `load`; `filters=`; and `hdfs://` without `filesystem=`.

The pool `thread` of petastorm loses rows silently: with 0.13.1, 21 of 100 reads of a small dataset
returned no rows. `load` mends it.
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

from sparkdl.files import storage
from sparkdl.host.optional_packages import require

__all__ = ["ParquetDataset", "ParquetDatasetPiece", "common_metadata", "load", "read_metadata"]

# The modules of petastorm that read Parquet.
_READING_MODULES = (
    "reader",
    "arrow_reader_worker",
    "py_dict_reader_worker",
    "etl.dataset_metadata",
    "etl.rowgroup_indexing",
)

# The folder value that Spark and Hive write for a null.
_NULL = "__HIVE_DEFAULT_PARTITION__"


@functools.cache
def load() -> ModuleType:
    """Import petastorm and make it work in this process. Users call `data.petastorm.load()`.

    Returns:
        The module `petastorm`.

    Raises:
        ImportError: if petastorm is not installed.

    Example:
        >>> from sparkdl import data
        >>> petastorm = data.petastorm.load()
        >>> with petastorm.make_reader("file:///data/cats") as reader:
        ...     first = next(reader)  # doctest: +SKIP
    """
    require("petastorm", "data.petastorm")
    local, _ = storage.filesystem("/")
    _restore_names(local)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # petastorm imports deprecated modules.
        petastorm = importlib.import_module("petastorm")
        reading = [importlib.import_module(f"petastorm.{name}") for name in _READING_MODULES]
        fs_utils: Any = importlib.import_module("petastorm.fs_utils")
        pools: Any = importlib.import_module("petastorm.workers_pool.thread_pool")
    for module in reading:
        module.pq = sys.modules[__name__]  # type: ignore[attr-defined]
    # petastorm uses only `localfs` of this name. A namespace is pickled with its content.
    fs_utils.pyarrow = SimpleNamespace(localfs=local)
    _keep_all_rows(pools)
    return petastorm


def _keep_all_rows(pools: Any) -> None:
    """Mend the pool `thread`, which may end while row groups are still being read.

    `get_results` asks whether all workers are done, and after that whether they have got all row
    groups. It does not notice those that they have got in between.
    """
    get_results = pools.ThreadPool.get_results

    @functools.wraps(get_results)
    def get_all_results(pool: Any) -> Any:
        try:
            return get_results(pool)
        except pools.EmptyResultError:
            return get_results(pool)  # The workers have got all row groups now.

    pools.ThreadPool.get_results = get_all_results


def _restore_names(local: Any) -> None:
    """Define the names that petastorm uses and that pyarrow and NumPy have removed."""
    import numpy as np

    definitions: list[tuple[Any, str, Any]] = [
        (np, "unicode_", np.str_),
        (np, "string_", np.bytes_),
        (np, "in1d", np.isin),
        (pa, "LocalFileSystem", type(local)),
    ]
    for module, names in {
        "pyarrow.filesystem": {"LocalFileSystem": type(local)},
        "pyarrow.hdfs": {"HadoopFileSystem": object},
    }.items():
        replacement = sys.modules.setdefault(module, ModuleType(module))
        definitions += [(replacement, name, value) for name, value in names.items()]
    for module, name, value in definitions:
        if not hasattr(module, name):
            setattr(module, name, value)


class Partition:
    """A column stored in the names of folders, `name=value`.

    Args:
        name: name of the column.
        values: the values in the names of all folders.

    Attributes:
        name: name of the column.
        keys: the distinct values, sorted.
        dictionary: the distinct values as an Arrow array of integers or strings.
    """

    def __init__(self, name: str, values: Iterable[str]) -> None:
        self.name = name
        self.keys = sorted(set(values))
        texts = pa.array([None if key == _NULL else key for key in self.keys], pa.string())
        try:
            self.dictionary = texts.cast(pa.int64())
        except pa.ArrowInvalid:
            self.dictionary = texts


class Partitions(list[Partition]):
    """The columns stored in the names of folders, outermost folder first."""

    @property
    def partition_names(self) -> set[str]:
        """The names of the columns."""
        return {partition.name for partition in self}


class ParquetDatasetPiece:
    """A Parquet file, or one of its row groups.

    Args:
        path: path of the file on its filesystem.
        open_file_func: opens the file.
        row_group: number of the row group; None for all row groups.
        partition_keys: for each `Partition` its name, and the index of this file's value in its
            `keys`.
    """

    def __init__(
        self,
        path: str,
        open_file_func: Callable[[str], Any],
        row_group: int | None = None,
        partition_keys: Iterable[tuple[str, int]] = (),
    ) -> None:
        self.path = path
        self.row_group = row_group
        self.partition_keys = list(partition_keys)
        self._open = open_file_func

    def get_metadata(self) -> Any:
        """Return the file's footer."""
        with self._open(self.path) as file:
            try:
                return read_metadata(file)
            except pa.ArrowInvalid as exc:
                raise ValueError(
                    f"{self.path} is not a Parquet file, or is cut short: {exc}"
                ) from exc

    def read(self, columns: Iterable[str] | None, partitions: Partitions | None) -> pa.Table:
        """Return the rows, with the columns stored in the names of folders.

        Args:
            columns: names of the stored columns to read; None for all.
            partitions: the columns stored in the names of folders.
        """
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
    """The Parquet files below a folder, with the interface of pyarrow before version 15.

    Args:
        path_or_paths: a folder, a file, or a list of files.
        filesystem: an fsspec filesystem.
        filters: not supported.
        **unused: arguments of pyarrow's class that have no effect.

    Attributes:
        pieces: the files, sorted by path; files and folders whose names start with `_` or `.` are
            ignored.
        partitions: the columns in the names of folders; None if there are none.
        entries: what the filesystem lists about each file, by its path.
        metadata: the footer in the file `_metadata`, or None.
        common_metadata: the footer in the file `_common_metadata`, or None.
    """

    def __init__(
        self, path_or_paths: Any, filesystem: Any, filters: Any = None, **unused: object
    ) -> None:
        if filters:
            raise NotImplementedError(
                f"petastorm's filters={filters!r} is not supported; use predicate= instead."
            )
        self.fs = filesystem
        self.paths = path_or_paths
        is_single = isinstance(path_or_paths, str)
        roots = [path_or_paths] if is_single else list(path_or_paths)
        # The files may have just been written: do not use an earlier listing.
        filesystem.invalidate_cache()
        listed = [(root, _files(filesystem, root)) for root in roots]
        self.entries = {path: entry for _, entries in listed for path, entry in entries.items()}
        files = {path: _folders(root, path) for root, entries in listed for path in entries}
        if not files:
            raise FileNotFoundError(f"no Parquet file found at {path_or_paths!r}.")
        self.partitions = _partitions(files.values())
        self.pieces = [
            ParquetDatasetPiece(path, filesystem.open, None, self._keys(files[path]))
            for path in sorted(files)
        ]
        self.metadata_path = f"{path_or_paths}/_metadata" if is_single else None
        self.metadata = _footer(self.metadata_path, filesystem)
        self.common_metadata = common_metadata(path_or_paths, filesystem) if is_single else None

    def footers(self) -> list[Any]:
        """Return the footer of each piece; the footers are read in parallel."""
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(ParquetDatasetPiece.get_metadata, self.pieces))

    def _keys(self, folders: dict[str, str]) -> list[tuple[str, int]]:
        return [(p.name, p.keys.index(folders[p.name])) for p in self.partitions or ()]


def common_metadata(root: str, filesystem: Any) -> Any:
    """Return the footer in the file `_common_metadata` of a dataset; None if there is none.

    Args:
        root: the folder of the dataset.
        filesystem: an fsspec filesystem.
    """
    return _footer(f"{root}/_common_metadata", filesystem)


def _footer(path: str | None, filesystem: Any) -> Any:
    if path is None or not filesystem.exists(path):
        return None
    with filesystem.open(path) as file:
        return read_metadata(file)


def _files(filesystem: Any, root: str) -> dict[str, Any]:
    def is_data(path: str) -> bool:
        parts = os.path.relpath(path, root).split("/")
        return path == root or all(part[0] not in "._" or "=" in part for part in parts)

    entries = filesystem.find(root, detail=True)
    return {path: entry for path, entry in entries.items() if is_data(path)}


def _folders(root: str, path: str) -> dict[str, str]:
    """Return the values of the columns in the names of a file's folders, by name."""
    names = os.path.relpath(path, root).split("/")[:-1]
    pairs = [name.split("=", 1) for name in names if "=" in name]
    return {name: unquote(value) for name, value in pairs}


def _partitions(folders_of_files: Iterable[dict[str, str]]) -> Partitions | None:
    """Return the columns in the names of folders.

    Args:
        folders_of_files: the result of `_folders` for each file.
    """
    all_folders = list(folders_of_files)
    names = list(all_folders[0])
    for folders in all_folders:
        if list(folders) != names:
            raise ValueError(
                f"files lie in folders of {list(folders)} and of {names}; expected the same "
                "columns for all files."
            )
    if not names:
        return None
    return Partitions(Partition(name, (f[name] for f in all_folders)) for name in names)
