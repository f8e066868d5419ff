"""Runs anywhere. A version of a model, as the registry lists it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError, ModelDamagedError
from sparkdl.files import storage
from sparkdl.files.jsonl import from_json
from sparkdl.files.model_formats import LOADER_FILE, load_model
from sparkdl.models.layout import FORMAT
from sparkdl.runs.lineage import RECORD
from sparkdl.runs.trial_files import local_copy

KERAS_FILE = "model.keras"
ONNX_FILE = "model.onnx"
PROFILE_FILE = "profile.json"
# TensorFlow's place for files beside a SavedModel, which it does not read.
EXTRA = "assets.extra"


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelVersion:
    """A version of a model. `experiment.predict` takes it as its model.

    Attributes:
        name: the name of the model.
        version: the number of the version.
        path: path or URL of the folder, which is a SavedModel as TensorFlow Serving reads it.
        metrics: the metrics of the version, by name.
        run: the id of the run that trained the model; None for a model without a run.
        trial: the number of the trial in that run.
        aliases: the aliases that named the version when the registry was read.
        details: everything that `model.json` contains: the signature, the lineage, the files with
            their digests, versions of packages, user and time.
    """

    name: str
    version: int
    path: str
    metrics: dict[str, float]
    run: str | None = None
    trial: int | None = None
    aliases: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict, compare=False)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        metrics = "".join(f" {name}={value:.5g}" for name, value in self.metrics.items())
        aliases = "".join(f" @{alias}" for alias in self.aliases)
        return f"<ModelVersion {self.name}/{self.version}{aliases}{metrics} at {self.path}>"

    @property
    def signature(self) -> dict[str, Any]:
        """The inputs and outputs of the serving function: the dtype and the shape of each."""
        signatures: dict[str, Any] = self.details.get("signatures", {})
        first: dict[str, Any] = next(iter(signatures.values()), {})
        return dict(signatures.get("serving_default", first))

    @property
    def lineage(self) -> dict[str, Any]:
        """The origin of the model: run, trial, parameters, checkpoint, data, git commit."""
        return dict(self.details.get("lineage", {}))

    @property
    def profile(self) -> dict[str, Any] | None:
        """The profile of the training data's features; None if it was not exported."""
        try:
            content: dict[str, Any] = from_json(storage.read(self._file(PROFILE_FILE)))
        except FileNotFoundError:
            return None
        return content

    def file(self, name: str) -> str:
        """Return the path or URL of a file or folder that was exported with `files=`.

        Args:
            name: its name there.

        Raises:
            ConfigError: if there is no such file.
        """
        names = {
            file.split("/")[1]
            for file in self.details.get("files", {})
            if file.startswith(f"{EXTRA}/")
        }
        if name not in names:
            raise ConfigError(
                f"{self.name}/{self.version} has no file {name!r}; "
                f"{'it has ' + ', '.join(sorted(names)) if names else 'it has none'}. They are "
                f"given to models.export(..., files={{{name!r}: path}})."
            )
        return storage.join(self.path, EXTRA, name)

    def to_dict(self) -> dict[str, Any]:
        """Return everything about the version as a value for JSON."""
        return {**self.details, "path": self.path, "aliases": list(self.aliases)}

    def model(self) -> Any:
        """Load the model into this process.

        Returns:
            The Keras model; for a version without a Keras file, the object of the SavedModel; for
            a version with a loader, what the loader returns, which runs in this process.
        """
        files = self.details.get("files", {})
        if LOADER_FILE in files:
            # Imported late: it takes Arrow, which the list of the versions does not need.
            from sparkdl.inference.loader_model import read_loader_model

            folder = Path(local_copy(self.path))
            return read_loader_model(folder).load(folder)[0]
        return load_model(
            Path(local_copy(self._file(KERAS_FILE) if KERAS_FILE in files else self.path))
        )

    def download(self, to: str | os.PathLike[str]) -> str:
        """Copy the files of the version to `<to>/<version>`.

        Args:
            to: a local folder; created if it is missing. TensorFlow Serving takes it as the base
                path of a model.

        Returns:
            The absolute path of the copy.

        Raises:
            ConfigError: if another model was copied there.
        """
        record = Path(to, str(self.version), RECORD)
        if record.exists() and record.read_bytes() != storage.read(self._file(record.name)):
            raise ConfigError(
                f"{record.parent} contains another model, with which {self.name}/{self.version} "
                "would be mixed. Pass another folder."
            )
        return local_copy(self.path, to)

    def _file(self, name: str) -> str:
        return storage.join(self.path, name)


def parse_version(path: str, data: bytes, aliases: tuple[str, ...], name: str) -> ModelVersion:
    """Return the version that a `model.json` describes.

    Args:
        path: the folder of the version.
        data: the content of the file.
        aliases: the aliases of the version.
        name: the name of the model, which is that of the folder above the version.

    Raises:
        ModelDamagedError: if the file cannot be read, or has another format.
    """
    try:
        details = from_json(data)
        if details["format"] != FORMAT:
            raise ValueError(f"it has format {details['format']}; this version reads {FORMAT}")
        _check(details, name, path.rsplit("/", 1)[-1])
        return ModelVersion(
            path=path,
            aliases=aliases,
            details=details,
            **{name: details[name] for name in ("name", "version", "metrics", "run", "trial")},
        )
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ModelDamagedError(f"{storage.join(path, 'model.json')} is damaged: {exc!r}") from exc


def _check(details: Mapping[str, Any], name: str, number: str) -> None:
    """Validate the fields that lists of versions read, as another user may have written them.

    Raises:
        ValueError: if it is of another version, or of another type.
    """
    if (details["name"], str(details["version"])) != (name, number):
        raise ValueError(f"it describes {details['name']}/{details['version']}")
    for key in ("metrics", "signatures", "lineage", "files", "exported"):
        if not isinstance(details.get(key, {}), dict):
            raise ValueError(f"its {key} are {details[key]!r}")
    for metric, value in details["metrics"].items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"its metric {metric} is {value!r}")
