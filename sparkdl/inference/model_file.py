"""Runs anywhere. Describe a model that executors can load: from a URL or from its bytes."""

import contextlib
import hashlib
import socket
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pyspark import TaskContext

from sparkdl.cluster.executor_folder import executor_folder
from sparkdl.cluster.program.local_modules import Source
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.model_formats import KERAS_FILES
from sparkdl.inference import shared_copy
from sparkdl.inference.tensor_spec import TensorSpec
from sparkdl.inference.torch_files import TORCH_FILES

T = TypeVar("T")

_CHUNK_BYTES = 1 << 20
_SUFFIXES = (*KERAS_FILES, *TORCH_FILES)
# The names of files of models in memory.
_FILE_NAMES = {
    **dict.fromkeys(("keras", "tf_keras"), "model.keras"),
    "torch.jit": "model.pt",
    "torch.export": "model.pt2",
}


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """A model that executors can load.

    Attributes:
        name: name of the model in messages.
        library: the library that loads the model: `keras`, `tf_keras`, `tensorflow` (a
            SavedModel), `torch` (a pickled module), `torch.jit` (TorchScript) or `torch.export`;
            `function` for a pickled function; `loader` for a folder with a `LoaderModel`.
        digest: digest of the contents, see `digest_of`.
        signature: name of the function of a SavedModel, or of a model with a loader.
        url: location of the model; None if the model is sent as `data`.
        data: the bytes of the model's file; None if the model is read from `url`.
        custom: the user's own classes and functions that the model uses, pickled.
        tags: tags of the graph of a SavedModel that has several graphs.
        outputs: the outputs that the user has declared, of a function or a model of PyTorch.
        by_name: True if such a model takes its inputs by name, not by position.
        modules: the user's own modules that a function imports.
    """

    name: str
    library: str
    digest: str
    signature: str = ""
    url: str | None = None
    data: bytes | None = field(default=None, repr=False)
    custom: bytes = field(default=b"", repr=False)
    tags: tuple[str, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    by_name: bool = False
    modules: Mapping[str, Source] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> tuple[object, ...]:
        """The identity of the model in a cache; without `data`, which the cache need not hold."""
        declared = self.outputs, self.by_name
        return (self.library, self.digest, self.signature, self.custom, self.tags, declared)

    @contextlib.contextmanager
    def open_local(self) -> Iterator[Path]:
        """Yield the path of a local file or folder.

        A model at a URL is fetched and checked once for all workers of a host, see `shared_copy`.

        Raises:
            FileNotFoundError: if the model does not exist on this host.
            RuntimeError: if the contents have changed since the digest was computed.
        """
        if self.data is not None:
            with temporary_folder() as temporary:
                path = temporary / _FILE_NAMES[self.library]
                path.write_bytes(self.data)
                yield path
            return
        url = self.url or ""
        folder = executor_folder("sparkdl-models")
        if folder is None:
            with local_copy(url) as path:
                self._check(path)
                yield path
        elif storage.is_local(url):
            with local_copy(url) as path:
                shared_copy.check_once(folder, path, self.digest, lambda: self._check(path))
                yield path
        else:
            suffix = next((end for end in _SUFFIXES if url.endswith(end)), "")
            key = f"{self.digest}{suffix.replace('.', '-')}"
            with shared_copy.fetch_once(folder, key, lambda f: self._fetch(f, suffix)) as copy:
                yield copy / f"model{suffix}"

    def _fetch(self, folder: Path, suffix: str) -> None:
        path = folder / f"model{suffix}"
        _download(self.url or "", path)
        self._check(path)

    def _check(self, path: Path) -> None:
        if digest_of(path) != self.digest:
            raise RuntimeError(
                f"the model {self.name} at {self.url} has changed since predict was called; rows "
                "are computed only when the DataFrame is used. Call predict again, and write a new "
                "model to a new path."
            )


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder for a copy of a model, which is removed afterwards.

    When a job fails, Spark kills the workers of its other tasks with SIGKILL, also while they load
    a model. In a task, the folder is therefore inside the one that Spark removes with the
    application.
    """
    parent = None
    if TaskContext.get():
        from pyspark import SparkFiles  # Imported late: clients of Spark Connect do not have it.

        parent = SparkFiles.getRootDirectory()
    with tempfile.TemporaryDirectory(prefix="sparkdl-model-", dir=parent) as folder:
        yield Path(folder)


@contextlib.contextmanager
def local_copy(url: str) -> Iterator[Path]:
    """Yield a local path of a file or folder; a downloaded copy is removed afterwards.

    Raises:
        FileNotFoundError: if the file or folder does not exist.
    """
    if storage.is_local(url):
        path = storage.local_path(url)
        if not path.exists():
            raise FileNotFoundError(
                f"{path} does not exist on host {socket.gethostname()}. Put the model where the "
                "driver and the executors can read it (NFS, HDFS, an object store), or load the "
                "model and pass the model itself. A registered model is models.get(name)."
            )
        yield path
        return
    with temporary_folder() as folder:
        path = folder / url.rstrip("/").rsplit("/", 1)[-1]
        _download(url, path)
        yield path


def read_files(url: str, read: Callable[[Path], T]) -> tuple[T, str]:
    """Return what a function reads from the file or folder of a model, and its digest.

    Args:
        url: the file or folder.
        read: takes its local path; raises ValueError or OSError.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        with local_copy(url) as path:
            return read(path), digest_of(path)
    except (ValueError, OSError) as exc:
        raise ConfigError(f"model {url}: {exc}") from exc


def _download(url: str, path: Path) -> None:
    storage.download(url, path)
    if not path.exists():
        raise FileNotFoundError(f"{url} does not exist.")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if not file.is_file():
            continue
        digest.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def digest_of_archive(path: Path) -> str:
    """Return the SHA-256 of the contents of a `.keras` file, without the time of writing."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(path) as archive:
        for name in sorted(set(archive.namelist()) - {"metadata.json"}):
            digest.update(name.encode() + b"\0" + archive.read(name))
    return digest.hexdigest()
