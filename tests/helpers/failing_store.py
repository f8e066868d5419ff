"""An object store on the local disk, of which one call in some hundred fails in every process."""

import os
import random
import shutil
import uuid
from pathlib import Path
from typing import Any


def install(folder: str, one_in: int) -> None:
    """Let fsspec use the store under the protocol `gcs`, in this process.

    The file `kind` in the folder names the exception of the failing calls, `OSError` or another
    one, and the file `failures` gets a line for each. The source of this module is also run by
    other processes, when they start.
    """
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    objects, aside = Path(folder, "objects"), Path(folder, "aside")
    aside.mkdir(exist_ok=True)

    class FailingStore(LocalFileSystem):  # type: ignore[misc]
        protocol = "gcs"
        cachable = False

        def __init__(self, **options: Any) -> None:
            super().__init__(auto_mkdir=True, **options)

        @classmethod
        def _strip_protocol(cls, path: Any) -> Any:
            text = str(path)
            if text.startswith("gcs://"):
                text = f"{objects}/{text.removeprefix('gcs://')}"
            return LocalFileSystem._strip_protocol(text)

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
            _fail(f"write {path}")
            part = aside / uuid.uuid4().hex
            part.write_bytes(value)
            self._publish(part, path, mode)

        def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
            _fail(f"put {rpath}")
            part = aside / uuid.uuid4().hex
            shutil.copyfile(lpath, part)
            self._publish(part, rpath, "overwrite")

        def _publish(self, part: Path, path: str, mode: str) -> None:
            """Show a file as a whole, as object stores do."""
            target = Path(self._strip_protocol(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(part, target) if mode == "create" else part.replace(target)
            finally:
                part.unlink(missing_ok=True)

    def _fail(call: str) -> None:
        if random.SystemRandom().randrange(one_in):
            return
        with Path(folder, "failures").open("a") as file:
            file.write(f"{call}\n")
        if Path(folder, "kind").read_text() == "OSError":
            raise OSError(5, f"Input/output error: {call}")
        raise Exception(f"503 Service Unavailable: {call}")

    def failing(name: str) -> Any:
        method = getattr(LocalFileSystem, name)

        def call(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            _fail(f"{name} {path}")
            return method(self, path, *args, **kwargs)

        return call

    for name in ("ls", "info", "cat_file", "get_file", "rm", "cp_file"):
        setattr(FailingStore, name, failing(name))
    fsspec.register_implementation("gcs", FailingStore, clobber=True)
