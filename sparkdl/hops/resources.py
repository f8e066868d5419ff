"""Runs on the driver. Find the files of `versioned_resources=` on the local disk."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from sparkdl import storage
from sparkdl.hops import hdfs
from sparkdl.hops.project import expand

__all__ = ["local_resources"]


def local_resources(paths: Sequence[str] | None) -> list[Path]:
    """Return the local paths of files of the project; files on a remote store are copied first.

    A path that the project does not have may be that of a local file.

    Args:
        paths: the paths; None for none.

    Raises:
        FileNotFoundError: if a file does not exist.
    """
    return [_local(path) for path in paths or ()]


def _local(path: str) -> Path:
    url = expand(path)
    if Path(path).exists() and not storage.exists(url):
        return Path(path)
    if storage.is_local(url):
        return storage.local_path(hdfs.abs_path(path))
    return Path(hdfs.copy_to_local(path, tempfile.mkdtemp(prefix="sparkdl-")))
