"""Runs anywhere. A model as it travels: by its place, or by its bytes."""

import contextlib
import hashlib
import json
import os
import socket
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sparkdl import storage

__all__ = [
    "KERAS_FILES",
    "SAVED_MODEL",
    "Stored",
    "digest_of",
    "digest_of_archive",
    "fetched",
    "library_of",
]

KERAS_FILES = (".keras", ".h5", ".hdf5")
SAVED_MODEL = "saved_model.pb"

_PIECE = 1 << 20


@dataclass(frozen=True)
class Stored:
    """A model that can be loaded elsewhere.

    Attributes:
        name: what the person would call it.
        library: what loads it: `keras`, `tf_keras` or `tensorflow` (a SavedModel).
        digest: what tells it from others: of its contents, see `digest_of`.
        signature: which function of a SavedModel.
        tags: of the graph of a SavedModel that has several.
        url: where it is; None if it travels by its bytes.
        data: the bytes of its file; None if it is read from `url`.
        custom: the pickled classes and functions of the person's own that it is made of.
    """

    name: str
    library: str
    digest: str
    signature: str = ""
    url: str | None = None
    data: bytes | None = field(default=None, repr=False)
    custom: bytes = field(default=b"", repr=False)
    tags: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from others; not what it came as: its bytes need not be kept."""
        return (self.library, self.digest, self.signature, self.custom, self.tags)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Path]:
        """Its local file or folder, which is gone afterwards unless it was local before.

        Raises:
            FileNotFoundError: this host does not see it.
            RuntimeError: it is not what it was any more.
        """
        if self.data is not None:
            with tempfile.TemporaryDirectory(prefix="sparkdl-model-") as folder:
                path = Path(folder, "model.keras")
                path.write_bytes(self.data)
                yield path
            return
        with fetched(self.url or "") as path:
            if digest_of(path) != self.digest:
                raise RuntimeError(
                    f"the model {self.name} at {self.url} has changed since predict was called, "
                    "and its rows are computed only now. Call predict again, and write a new "
                    "model to a new path."
                )
            yield path


@contextlib.contextmanager
def fetched(url: str) -> Iterator[Path]:
    """A file or folder as a local path; what had to be downloaded is removed afterwards.

    Raises:
        FileNotFoundError: there is none.
    """
    if storage.is_local(url):
        path = storage.local_path(url)
        if not path.exists():
            raise FileNotFoundError(
                f"there is no {path} on host {socket.gethostname()}. Put the model where driver "
                "and executors see it (NFS, HDFS, an object store), or load it and pass the "
                "model itself."
            )
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="sparkdl-model-") as folder:
        path = Path(folder, url.rstrip("/").rsplit("/", 1)[-1])
        storage.download(url, path)
        if not path.exists():
            raise FileNotFoundError(f"there is no {url}.")
        yield path


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, or of a folder's files and their names."""
    found = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if not file.is_file():
            continue
        found.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as opened:
            while piece := opened.read(_PIECE):
                found.update(piece)
    return found.hexdigest()


def digest_of_archive(path: Path) -> str:
    """The SHA-256 of what is in a `.keras` file, but when it was written."""
    found = hashlib.sha256()
    with zipfile.ZipFile(path) as archive:
        for name in sorted(set(archive.namelist()) - {"metadata.json"}):
            found.update(name.encode() + b"\0" + archive.read(name))
    return found.hexdigest()


def library_of(path: Path) -> str:
    """What loads a model: `tf_keras` what Keras 2 has written, where that is installed.

    Raises:
        ValueError: it is no model; the message says what was expected.
    """
    if path.is_dir():
        if not (path / SAVED_MODEL).is_file():
            inside = ", ".join(sorted(os.listdir(path))[:5]) or "nothing"
            raise ValueError(
                f"the folder has no {SAVED_MODEL} in it, but {inside}. Expected a SavedModel, "
                "or the path of a .keras or .h5 file."
            )
        return "tensorflow"
    if path.name.endswith(".weights.h5"):
        raise ValueError("it holds weights alone. Save the whole model: model.save('m.keras').")
    if path.suffix not in KERAS_FILES:
        raise ValueError("expected a .keras or .h5 file, or the folder of a SavedModel.")
    return "tf_keras" if _version(path).startswith("2.") and _has_tf_keras() else "keras"


def _has_tf_keras() -> bool:
    import importlib.util

    return importlib.util.find_spec("tf_keras") is not None


def _version(path: Path) -> str:
    """The version of Keras that wrote a file: in its metadata.json, or its HDF5 attributes."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            return str(json.loads(archive.read("metadata.json"))["keras_version"])
    import h5py  # type: ignore[import-untyped]

    with h5py.File(path) as file:
        version = file.attrs.get("keras_version", "")
    return version.decode() if isinstance(version, bytes) else str(version)
