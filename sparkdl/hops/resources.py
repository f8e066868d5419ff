"""Runs on the driver. Find the files of `versioned_resources=` on the local disk."""

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.hops import hdfs
from sparkdl.hops.project import expand, root

__all__ = ["local_resources"]


def local_resources(paths: Sequence[str] | None) -> list[Path]:
    """Return the local paths of files of the project; files on a remote store are copied first.

    A path that the project does not have may be that of a local file.

    Args:
        paths: the paths; None for none.

    Raises:
        ConfigError: if `paths` is a text.
        FileNotFoundError: if a file does not exist.
    """
    if isinstance(paths, str):
        raise ConfigError(
            f"versioned_resources is {paths!r}; expected a list of paths. Pass [{paths!r}] for a "
            "single file."
        )
    return [_local(path) for path in paths or ()]


def _local(path: str) -> Path:
    url = expand(path)
    if Path(path).exists() and not storage.exists(url):
        return Path(path)
    if storage.is_local(url):
        return storage.local_path(hdfs.abs_path(path))
    return _fetched(hdfs.abs_path(path))


def _fetched(url: str) -> Path:
    """Return a copy that has the same folders above it, and is removed at the end of the program.

    By these folders files of the same name are told apart.
    """
    copies = tempfile.mkdtemp(prefix="sparkdl-")
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    folder = Path(copies, url.removeprefix(f"{root()}/").replace("://", "/")).parent
    folder.mkdir(parents=True, exist_ok=True)
    return Path(hdfs.copy_to_local(url, str(folder)))
