"""Stores in memory with the habits of real ones, under the protocols of these."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

__all__ = [
    "ArrowHdfs",
    "BrokenStore",
    "Careless",
    "Failure",
    "LosesAnswers",
    "Meets",
    "fake_stores",
]


class _WithFolders(MemoryFileSystem):
    """A store in which a file needs its folder."""

    store: dict[str, Any] = {}
    pseudo_dirs: list[str] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return super()._strip_protocol(str(path).removeprefix(f"{cls.protocol}://"))

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        folder = self._parent(path)
        if "w" in mode and not self.isdir(folder):
            raise FileNotFoundError(folder)
        if "a" in mode and path not in self.store:
            raise FileNotFoundError(path)
        kwargs.pop("overwrite", None)
        return super()._open(path, mode, **kwargs)

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        with self.open(path, "wb") as file:
            file.write(value)

    def _move(self, path1: str, path2: str) -> None:
        for name in [name for name in self.store if f"{name}/".startswith(f"{path1}/")]:
            self.store[path2 + name[len(path1) :]] = self.store.pop(name)


class Sftp(_WithFolders):
    protocol = "sftp"
    store: dict[str, Any] = {}
    pseudo_dirs: list[str] = [""]

    def mv(self, old: str, new: str) -> None:
        """Replace the target; `recursive` is unknown."""
        self._move(old, new)


class WebHdfs(_WithFolders):
    protocol = "webhdfs"
    store: dict[str, Any] = {}
    pseudo_dirs: list[str] = [""]

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Do nothing if the target exists, without an error."""
        if not self.exists(path2):
            self._move(path1, path2)


class Smb(_WithFolders):
    protocol = "smb"
    store: dict[str, Any] = {}
    pseudo_dirs: list[str] = [""]

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Refuse a target that exists."""
        if self.exists(path2):
            raise OSError(f"{path2} exists")
        self._move(path1, path2)


class Hdfs(_WithFolders):
    protocol = "hdfs"
    store: dict[str, Any] = {}
    pseudo_dirs: list[str] = [""]

    def __init__(self, **options: Any) -> None:
        """Take every option for one of Hadoop, whose values are texts."""
        if not all(isinstance(value, str) for value in options.values()):
            raise TypeError("argument 'config': 'bool' object is not an instance of 'str'")
        super().__init__()

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Replace the target only with `overwrite`."""
        if self.exists(path2) and not kwargs.get("overwrite"):
            raise RuntimeError("RPCError: FileAlreadyExistsException")
        self._move(path1, path2)


Hdfs.__module__ = "hdfs_native.fsspec"


class ArrowHdfs(_WithFolders):
    protocol = "hdfs"
    store: dict[str, Any] = {}
    pseudo_dirs: list[str] = [""]

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Remove the target, then rename: a reader or a kill in between finds nothing."""
        raise AssertionError("a rename that is not known to replace must not be used")


class Failure(Exception):
    """The exception of a store, which is no OSError."""

    def __init__(self, text: str, **fields: Any) -> None:
        super().__init__(text)
        vars(self).update(fields)


class BrokenStore(MemoryFileSystem):
    """A store that raises `error` in every call."""

    protocol = "broken"
    error: Exception = Failure("no connection")

    def _fail(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error

    info = exists = ls = cat_file = pipe_file = put_file = makedirs = rm = mv = size = _fail
    _open = find = _fail


class Careless(MemoryFileSystem):
    """An object store that ignores the condition of a request."""

    protocol = "gcs"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        super().pipe_file(path, value)


class LosesAnswers(MemoryFileSystem):
    """An object store whose first answer is lost, so that its library repeats the request."""

    protocol = "gcs"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create" and not self.exists(path):
            super().pipe_file(path, value)
        super().pipe_file(path, value, mode)


class Meets(MemoryFileSystem):
    """An object store that refuses a conditional request which meets another one."""

    protocol = "gcs"
    meetings = 1

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create" and self.meetings:
            type(self).meetings -= 1
            raise Failure("ConditionalRequestConflict", status=409)
        super().pipe_file(path, value, mode)


@contextmanager
def fake_stores(*classes: type) -> Iterator[None]:
    """Let fsspec use these stores."""
    classes = classes or (Sftp, WebHdfs, Smb, Hdfs, BrokenStore)
    known = sys.modules["fsspec.registry"]._registry
    before = dict(known)
    for cls in classes:
        fsspec.register_implementation(cls.protocol, cls, clobber=True)
    try:
        yield
    finally:
        known.clear()
        known.update(before)
