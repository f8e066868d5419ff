"""An object store in this process whose requests take a given time, and are counted."""

import asyncio
import threading
import zlib
from collections import Counter
from typing import Any, ClassVar

import fsspec
from fsspec.asyn import AsyncFileSystem

__all__ = ["DistantStore"]


class DistantStore(AsyncFileSystem):  # type: ignore[misc]
    """The filesystem `gcs://`; its content and counts are shared by all instances.

    As with S3, a look for a path that does not exist takes two requests: one for an object, and one
    for objects below the path.

    Attributes:
        latency_s: seconds of a request.
        objects: the content of each object.
        requests: number of requests of each kind, and of the bytes that were read.
    """

    protocol = "gcs"
    cachable = True
    latency_s: ClassVar[float] = 0.0
    objects: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar[Counter[str]] = Counter()
    _folders: ClassVar[dict[str, dict[str, None]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def start(cls, latency_s: float) -> str:
        """Empty the store, and return the URL of a folder in it."""
        fsspec.register_implementation("gcs", cls, clobber=True)
        cls.latency_s = latency_s
        for content in (cls.objects, cls.requests, cls._folders):
            content.clear()
        return "gcs://bucket"

    @classmethod
    def put(cls, url: str, data: bytes) -> None:
        """Write an object at once, as another host may have done."""
        path = cls._strip_protocol(url)
        with cls._lock:
            cls.objects[path] = bytes(data)
            while "/" in path:
                folder, _, name = path.rpartition("/")
                if name in (names := cls._folders.setdefault(folder, {})):
                    break
                names[name] = None
                path = folder

    async def _ask(self, kind: str) -> None:
        self.requests[kind] += 1
        await asyncio.sleep(self.latency_s)

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        await self._ask("HEAD")
        if path in self.objects:
            return self._described(path, "file")
        await self._ask("LIST")
        if self._folders.get(path):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        await self._ask("LIST")
        with self._lock:
            found = [f"{path}/{name}" for name in self._folders.get(path, ())]
        if not detail:
            return found
        kinds = {name: "file" if name in self.objects else "directory" for name in found}
        return [self._described(name, kind) for name, kind in kinds.items()]

    def _described(self, path: str, kind: str) -> dict[str, Any]:
        content = self.objects.get(path, b"")
        return {"name": path, "size": len(content), "type": kind, "ETag": str(zlib.crc32(content))}

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        await self._ask("GET")
        if (path := self._strip_protocol(path)) not in self.objects:
            raise FileNotFoundError(path)
        content = self.objects[path][start:end]
        self.requests["bytes"] += len(content)
        return content

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        await self._ask("PUT")
        if mode == "create" and self._strip_protocol(path) in self.objects:
            raise FileExistsError(path)
        self.put(path, value)

    async def _rm_file(self, path: str, **_: Any) -> None:
        await self._ask("DELETE")
        path = self._strip_protocol(path)
        with self._lock:
            self.objects.pop(path, None)
            folder, _, name = path.rpartition("/")
            self._folders.get(folder, {}).pop(name, None)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass
