"""A store in memory that counts the requests which an object store would get."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from tests.helpers.fake_stores import fake_stores

__all__ = ["CountingStore", "counting_store"]


class _Counting(MemoryFileSystem):
    protocol = "gcs"
    requests: list[str] = []

    def _note(self, verb: str, path: Any) -> None:
        self.requests.append(f"{verb} {path}")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._note("PUT", path)
        path = self._strip_protocol(path)
        if mode == "create" and path in self.store:
            raise FileExistsError(path)
        self.store[path] = MemoryFile(self, path, value)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> Any:
        self._note("GET", path)
        path = self._strip_protocol(path)
        if path not in self.store:
            raise FileNotFoundError(path)
        return self.store[path].getvalue()[start:end]

    def info(self, path: str, **kwargs: Any) -> Any:
        self._note("HEAD", path)
        return super().info(path, **kwargs)

    def exists(self, path: str, **kwargs: Any) -> bool:
        self._note("HEAD", path)
        return bool(super().exists(path, **kwargs))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._note("LIST", path)
        return super().ls(path, detail, **kwargs)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._note("MKDIR", path)
        super().makedirs(path, exist_ok)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Any = None) -> None:
        self._note("DELETE", path)
        for one in [path] if isinstance(path, str) else path:
            self.store.pop(self._strip_protocol(one), None)


class CountingStore:
    """The store, and the requests that it got.

    Attributes:
        requests: a verb and a path for each request.
    """

    def __init__(self) -> None:
        self.requests = _Counting.requests
        self.requests.clear()
        self._id = uuid4().hex

    def url(self, *parts: str) -> str:
        """The URL of a file or folder."""
        return "/".join([f"gcs://{self._id}", *parts])


@pytest.fixture
def counting_store() -> Iterator[CountingStore]:
    """A store that counts its requests."""
    with fake_stores(_Counting):
        yield CountingStore()
