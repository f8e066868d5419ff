"""A store in this process that counts requests and bytes, and reads ahead as that of S3 does."""

from typing import Any, ClassVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile

__all__ = ["CountedStore"]


class CountedStore(AsyncFileSystem):  # type: ignore[misc]
    """The filesystem `counted://`; its content and counts are shared by all instances.

    Attributes:
        objects: the content of each object.
        requests: kind of each request and number of bytes that it returned.
    """

    protocol = "counted"
    cachable = False
    objects: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar[list[tuple[str, int]]] = []

    @classmethod
    def start(cls) -> type["CountedStore"]:
        """Empty the store and make it known."""
        fsspec.register_implementation("counted", cls, clobber=True)
        cls.objects.clear()
        cls.requests.clear()
        return cls

    @classmethod
    def count(cls, kind: str) -> int:
        """The number of requests of a kind."""
        return sum(other == kind for other, _ in cls.requests)

    @classmethod
    def num_bytes(cls) -> int:
        """The bytes of all requests."""
        return sum(size for _, size in cls.requests)

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        self.requests.append(("HEAD", 0))
        path = self._strip_protocol(path)
        if path in self.objects:
            return self._entry(path)
        if any(name.startswith(f"{path}/") for name in self.objects):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def _entry(self, path: str) -> dict[str, Any]:
        content = self.objects[path]
        return {"name": path, "size": len(content), "type": "file", "ETag": str(hash(content))}

    async def _find(self, path: str, **options: Any) -> Any:
        self.requests.append(("LIST", 0))
        found = {n: self._entry(n) for n in sorted(self.objects) if n.startswith(f"{path}/")}
        return found if options.get("detail") else list(found)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        self.requests.append(("LIST", 0))
        below = [name for name in self.objects if name.startswith(f"{path}/")]
        names = {
            name[: name.find("/", len(path) + 1)] for name in below if "/" in name[len(path) + 1 :]
        }
        entries = [{"name": name, "size": 0, "type": "directory"} for name in sorted(names)]
        entries += [self._entry(n) for n in below if "/" not in n[len(path) + 1 :]]
        return entries if detail else [entry["name"] for entry in entries]

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        if (path := self._strip_protocol(path)) not in self.objects:
            raise FileNotFoundError(path)
        content = self.objects[path][start:end]
        self.requests.append(("GET", len(content)))
        return content

    async def _pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self.objects[self._strip_protocol(path)] = bytes(value)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        named = {"block_size": 50 << 20, "cache_type": "readahead", **options}
        return _CountedFile(
            self, path, mode, **{**named, "block_size": named["block_size"] or 50 << 20}
        )


class _CountedFile(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start=start, end=end))
