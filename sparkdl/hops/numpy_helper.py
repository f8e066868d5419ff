"""Runs anywhere. Arrays of NumPy in files of the project.

Each function is that of NumPy, with a path of the project in place of a local one, and the other
arguments by name.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.hops.absent_names import absent_names
from sparkdl.hops.copies import copy_to_hdfs, copy_to_local
from sparkdl.hops.hdfs import open_file

__all__ = [
    "fromfile",
    "fromregex",
    "genfromtxt",
    "load",
    "loadtxt",
    "memmap",
    "save",
    "savez",
    "savez_compressed",
]

__getattr__ = absent_names(__name__, __all__)


def load(hdfs_filename: str, **kwds: Any) -> Any:
    """Return the arrays of a file that `save`, `savez` or `savez_compressed` has written.

    Example:
        >>> save("Resources/numbers.npy", np.arange(3))
        >>> load("Resources/numbers.npy").tolist()
        [0, 1, 2]
    """
    return np.load(copy_to_local(hdfs_filename, overwrite=True), **kwds)


def loadtxt(hdfs_filename: str, **kwds: Any) -> Any:
    """Return the numbers of a text file, with the same number of values in each line."""
    return _of_lines(np.loadtxt, hdfs_filename, kwds)


def genfromtxt(hdfs_filename: str, **kwds: Any) -> Any:
    """Return the numbers of a text file, in which values may be missing."""
    return _of_lines(np.genfromtxt, hdfs_filename, kwds)


def fromregex(hdfs_filename: str, **kwds: Any) -> Any:
    """Return the groups of a regular expression in a text file: `regexp=` and `dtype=`."""
    return _of_lines(np.fromregex, hdfs_filename, kwds)


def _of_lines(read: Callable[..., Any], hdfs_filename: str, kwds: dict[str, Any]) -> Any:
    with open_file(hdfs_filename, flags="rt") as file:
        return read(file, **kwds)


def fromfile(hdfs_filename: str, **kwds: Any) -> Any:
    """Return the numbers of a file without a header: `dtype=`, `count=`, `sep=`."""
    return np.fromfile(copy_to_local(hdfs_filename, overwrite=True), **kwds)


def memmap(hdfs_filename: str, **kwds: Any) -> Any:
    """Return an array whose numbers stay in a file: a copy of that of the project."""
    return np.memmap(copy_to_local(hdfs_filename, overwrite=True), **kwds)


def save(hdfs_filename: str, data: Any) -> None:
    """Write an array to a file, and replace a file of this name."""
    _write_and_copy(np.save, hdfs_filename, data)


def savez(hdfs_filename: str, *args: Any, **kwds: Any) -> None:
    """Write arrays to one file: by their names in `kwds`, the others as `arr_0`, `arr_1`, ..."""
    _write_and_copy(np.savez, hdfs_filename, *args, **kwds)


def savez_compressed(hdfs_filename: str, *args: Any, **kwds: Any) -> None:
    """Write arrays to one compressed file, see `savez`."""
    _write_and_copy(np.savez_compressed, hdfs_filename, *args, **kwds)


def _write_and_copy(write: Callable[..., Any], hdfs_filename: str, *args: Any, **kwds: Any) -> None:
    folder, _, name = hdfs_filename.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="sparkdl-") as local:
        write(Path(local, name), *args, **kwds)
        # NumPy adds `.npy` or `.npz` to a name that does not end so.
        for written in Path(local).iterdir():
            copy_to_hdfs(str(written), f"{folder}/", overwrite=True)
