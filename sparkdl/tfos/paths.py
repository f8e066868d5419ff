"""Runs on the driver and in the training process. Resolve paths that have no filesystem.

Programs for TensorFlowOnSpark write such paths, relative to the default filesystem of Hadoop.
"""

import getpass
import re
from typing import Any

__all__ = ["absolute", "default_filesystem", "hdfs_path"]

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


def hdfs_path(ctx: Any, path: str) -> str:
    """Return an absolute path with its filesystem, which TensorFlow and Spark accept on any host.

    Args:
        ctx: the context of the node, of which `defaultFS` and `working_dir` are used.
        path: see `absolute`.

    Example:
        >>> from types import SimpleNamespace
        >>> ctx = SimpleNamespace(defaultFS="file://", working_dir="/home/me")
        >>> hdfs_path(ctx, "mnist/model")
        'file:///home/me/mnist/model'
    """
    return absolute(path, ctx.defaultFS, ctx.working_dir)


def absolute(path: str, default_fs: str, working_dir: str) -> str:
    """Return a path with its filesystem.

    Args:
        path: a path with a scheme, such as `hdfs://`, is returned as is; `/x` is on the default
            filesystem; `x` is in the user's folder of HDFS, or below `working_dir` if the default
            filesystem is local.
        default_fs: `fs.defaultFS` of Hadoop.
        working_dir: an absolute local path.

    Example:
        >>> absolute("/data", "hdfs://namenode:8020", "/home/me")
        'hdfs://namenode:8020/data'
        >>> absolute("s3a://bucket/data", "hdfs://namenode:8020", "/home/me")
        's3a://bucket/data'
    """
    if not default_fs.endswith("://"):
        default_fs = default_fs.removesuffix("/")
    if _SCHEME.match(path):
        return path
    if path.startswith("/"):
        return f"{default_fs}{path}"
    if default_fs.startswith(("hdfs://", "viewfs://")):
        return f"{default_fs}/user/{getpass.getuser()}/{path}"
    if default_fs.startswith("file://"):
        return f"{default_fs}/{working_dir.lstrip('/')}/{path}"
    return f"{default_fs}/{path}"


def default_filesystem(sc: Any) -> str:
    """Return `fs.defaultFS` of the Hadoop configuration, such as `hdfs://nn:8020` or `file:///`.

    Args:
        sc: the SparkContext; the function runs on the driver only.
    """
    return str(sc._jsc.sc().hadoopConfiguration().get("fs.defaultFS", "file:///"))
