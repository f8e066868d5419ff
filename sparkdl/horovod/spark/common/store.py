"""Runs on the driver. The counterpart of `horovod.spark.common.store`: the folder of the runs.

Horovod writes the rows of a DataFrame into its store. Here Spark sends them to the ranks, and a
store only says where the runs of an estimator are.
"""

import os
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.horovod.absent_names import absent_names

__all__ = ["DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"]

_HDFS = "hdfs://"
_DBFS = ("dbfs:/", "/dbfs/", "file:///dbfs/", "file:/dbfs/")


class Store:
    """A folder for the runs of an estimator.

    Args:
        prefix_path: path or URL of the folder.
        runs_path: path or URL of the runs; by default the folder `runs` below `prefix_path`.
        **unused: the other arguments of Horovod, for files that are not written here, and for
            checkpoints, which each run has in its own folder.

    Attributes:
        prefix_path: the argument.

    Example:
        >>> Store.create("hdfs:///user/me").get_runs_path()
        'hdfs:///user/me/runs'
    """

    def __init__(
        self, prefix_path: str, *unused_paths: Any, runs_path: str | None = None, **unused: Any
    ) -> None:
        self.prefix_path = prefix_path
        self._runs_path = runs_path or storage.join(prefix_path, "runs")

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> "Store":
        """Return the store for a path or URL.

        Args:
            prefix_path, *args, **kwargs: see the class.
        """
        if HDFSStore.matches(prefix_path):
            return HDFSStore(prefix_path, *args, **kwargs)
        if DBFSLocalStore.matches_dbfs(prefix_path):
            return DBFSLocalStore(prefix_path, *args, **kwargs)
        return FilesystemStore(prefix_path, *args, **kwargs)

    def get_runs_path(self) -> str:
        """Return the path or URL of the folder of all runs."""
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        """Return the path or URL of the folder of a run.

        Args:
            run_id: its id.
        """
        return storage.join(self._runs_path, run_id)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{type(self).__name__} has no {name!r}: rows need no files, and each run has its "
            "files in a folder of its own, see get_run_path and experiment.load."
        )


class FilesystemStore(Store):
    """A store in a local folder, or at any URL of fsspec. See `Store`."""

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        is_url = "://" in prefix_path
        super().__init__(prefix_path if is_url else os.path.abspath(prefix_path), *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return True for every path."""
        return True


class LocalStore(FilesystemStore):
    """A store in a local folder, which the executors must see. See `Store`."""


class HDFSStore(Store):
    """A store in HDFS.

    Args:
        prefix_path: a path, or a URL that begins with `hdfs://`.
        host, port: the name node, unless the URL has it.
        user, kerb_ticket, driver, extra_conf: have no effect: Hadoop's own settings count.
        **kwargs: see `Store`.

    Raises:
        ConfigError: if it is another URL.

    Example:
        >>> HDFSStore("/user/me", host="namenode", port=8020).prefix_path
        'hdfs://namenode:8020/user/me'
    """

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if not self.matches(prefix_path):
            if not prefix_path.startswith("/"):
                raise ConfigError(
                    f"prefix_path is {prefix_path!r}; expected a path such as /user/me, or a URL "
                    f"that begins with {_HDFS}."
                )
            address = f"{host or ''}{f':{port}' if port else ''}"
            prefix_path = f"{_HDFS}{address}{prefix_path}"
        super().__init__(prefix_path, *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return True for a URL of HDFS."""
        return path.startswith(_HDFS)


class DBFSLocalStore(FilesystemStore):
    """A store in the file system of Databricks. See `Store`.

    Raises:
        ConfigError: if the path is not below `/dbfs/` or `dbfs:/`.

    Example:
        >>> DBFSLocalStore("dbfs:/runs").prefix_path
        '/dbfs/runs'
    """

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(self.normalize_path(prefix_path), *args, **kwargs)

    @classmethod
    def matches_dbfs(cls, path: str) -> bool:
        """Return True for a path below `/dbfs/` or `dbfs:/`."""
        return path.startswith(_DBFS) and not path.startswith("dbfs://")

    @classmethod
    def normalize_path(cls, path: str) -> str:
        """Return a path in the form `/dbfs/...`."""
        if not cls.matches_dbfs(path):
            raise ConfigError(
                f"prefix_path is {path!r}; expected a path of DBFS, such as /dbfs/runs or "
                "dbfs:/runs."
            )
        return "/dbfs/" + path[next(len(each) for each in _DBFS if path.startswith(each)) :]


__getattr__ = absent_names(__name__, __all__)
