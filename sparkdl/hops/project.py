"""Runs anywhere. The project: the folder of all runs, and the paths in it."""

import os
import re

from sparkdl import context
from sparkdl.cluster.root import resolve_root
from sparkdl.files import storage
from sparkdl.hops.absent_names import absent_names

__all__ = ["existing", "expand", "is_folder", "root"]

__getattr__ = absent_names(__name__, __all__)

_OTHER_PROJECT = re.compile(r"/Projects/(?P<name>[^/]+)(?P<rest>/.*)?")


def root() -> str:
    """Return the path or URL of the project: the folder that holds the runs.

    Example:
        >>> root() == storage.absolute(root())
        True
    """
    me = context.current()
    # The folder of `experiment.try_one` belongs to no run.
    is_tried = me.folder is not None and me.run_path == me.folder
    if me.run_path and not is_tried:
        return storage.absolute(me.run_path).rpartition("/")[0]
    if (trial := me.url or me.folder) and not is_tried:
        # The folder of a trial is `<root>/<run id>/trials/<number>`.
        return storage.absolute(trial).rsplit("/", 3)[0]
    return resolve_root()


def expand(path: str | os.PathLike[str], project: str | None = None) -> str:
    """Return the full path of a file or folder of a project.

    Args:
        path: a path relative to the project, also with a slash in front of it; a full path or URL
            below the project; `/Projects/<name>/...`; or any URL.
        project: the name of another project, which is a folder beside this one; None for this one.

    Example:
        >>> expand("Resources/a.csv") == expand("/Resources/a.csv") == f"{root()}/Resources/a.csv"
        True
        >>> expand("s3://bucket/a.csv")
        's3://bucket/a.csv'
    """
    path = os.fspath(path)
    if match := _OTHER_PROJECT.fullmatch(path):
        return expand((match["rest"] or "/"), match["name"])
    folder = _folder_of(project)
    bases = [folder, root(), *filter(None, [context.current().folder])]
    for base in bases:
        if f"{path.rstrip('/')}/".startswith(f"{base}/"):
            # `project_path() + "/Resources"` has two slashes, which differ from one on a store.
            return f"{base}{re.sub('/+', '/', path[len(base) :])}".rstrip("/")
    if "://" in path:
        return path.rstrip("/")
    return storage.join(folder, path.strip("/")).rstrip("/")


def _folder_of(project: str | None) -> str:
    parent, _, name = root().rpartition("/")
    return root() if project in (None, name) else storage.join(parent, str(project))


def is_folder(url: str) -> bool:
    """Return True if there is a folder at a path.

    A name without a dot directly below the project is the name of a data set, which always exists.
    """
    parent, _, name = url.rpartition("/")
    if parent == root() and "." not in name and not storage.exists(url):
        return True
    if storage.is_local(url):
        return storage.local_path(url).is_dir()
    filesystem, path = storage.filesystem(url)
    return bool(filesystem.isdir(path))


def existing(path: str, project: str | None = None) -> str:
    """Return the full path of a file or folder that exists, see `expand`.

    Raises:
        FileNotFoundError: if it does not exist.
    """
    url = expand(path, project)
    if not storage.exists(url):
        raise FileNotFoundError(
            f"{path!r} is not in the project: there is no {url}. hdfs.project_path() is the folder "
            "of the runs, which SPARKDL_ROOT or spark.sparkdl.root sets."
        )
    return url
