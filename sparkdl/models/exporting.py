"""Runs on the driver. Export a model: write its files, and publish them as the next version."""

import contextlib
import functools
import logging
import math
import os
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl import profiles
from sparkdl.errors import ConfigError, suggest
from sparkdl.files import folders, storage
from sparkdl.files.jsonl import to_json
from sparkdl.files.model_formats import (
    LOADER_FILE,
    MODEL_FILES,
    SAVED_MODEL,
    library_of,
    library_of_object,
    load_keras,
)
from sparkdl.files.polling import retry
from sparkdl.host.optional_packages import require
from sparkdl.host.supported_versions import check_versions
from sparkdl.inference.loader_model import CODE, FILES
from sparkdl.inference.model_file import local_copy
from sparkdl.inference.resolve import leave_gpus_to_tasks
from sparkdl.models import registry, saved_model, source
from sparkdl.models.layout import FORMAT, ModelPaths, check_name
from sparkdl.models.loader_files import Loader, format_of, signatures_of, write_format, write_loaded
from sparkdl.models.numbered import create, numbers, take_next, who_and_when
from sparkdl.models.source import Source
from sparkdl.models.version import EXTRA, KERAS_FILE, ONNX_FILE, PROFILE_FILE, ModelVersion
from sparkdl.runs import provenance

_logger = logging.getLogger("sparkdl.models")


def export(
    model_or_trial: Any,
    name: str,
    *,
    loader: Loader | None = None,
    metrics: Mapping[str, float] | None = None,
    signature: Any = None,
    signatures: Mapping[str, Any] | None = None,
    profile: Any = None,
    if_better: str | None = None,
    direction: str | None = None,
    alias: str | None = None,
    files: Mapping[str, str | os.PathLike[str]] | None = None,
    onnx: bool = False,
    root: str | None = None,
) -> ModelVersion | None:
    """Export a model as the next version of its name.

    The version of a Keras model is a SavedModel with one function for serving, in TensorFlow
    Serving's layout, beside the Keras file. TensorFlow is imported into this process for it; it
    leaves the GPUs alone unless this process uses them already. A SavedModel is copied. A module of
    PyTorch becomes a program of `torch.export`, which takes any number of rows. Any other model is
    a folder of files and a function that loads them, see `loader`.

    Args:
        model_or_trial: a Keras model; the path or URL of a Keras file or of a SavedModel; a
            `torch.nn.Module`, a program of `torch.export` or TorchScript, or the path of one
            (`.pt2`, `.pt`); a model of scikit-learn (needs the extra `sklearn`) or XGBoost; the
            path of an ONNX file; a trial, for the model among its outputs or in its checkpoint; a
            run, for its best trial; or a version of another model.
        name: the name of the model.
        loader: a function of a module of yours, or its name `module:function`, for a model of any
            kind: it gets the local `Path` of a folder, loads what is there, and returns a function
            that takes a NumPy array for each input, one row for each row, and returns an array, a
            tuple or a dict of arrays. Text comes as an array of `str`. `model_or_trial` is then
            the path or URL of the folder or file with the weights, a trial or a run for its
            checkpoint, or None. The module, and those of yours that it imports, are kept with the
            model. The loader runs where the model is loaded: load models of people you trust.
        metrics: metrics of the model, added to those of the trial.
        signature: the inputs of the serving function: a `tf.TensorSpec` or a batch of rows, or a
            dict of these by name, or a list. A Keras model needs it if it does not define its
            inputs or they should have other names. Other models are called with it once, which
            tells their outputs; only a file of ONNX describes itself.
        signatures: the inputs of further functions by the name of their signature, each as
            `signature`, for a loader that returns a dict with a function for each signature and for
            `serving_default`.
        profile: the DataFrame that the model was trained with, whose profile is kept beside the
            model, see `ModelVersion.profile`; or such a profile.
        if_better: the name of a metric: export only if its value is better than that of every
            version of the model.
        direction: `max` or `min`, for `if_better`. By default the direction of the trial's metric,
            or `min` if smaller values are better by the name, else `max`.
        alias: an alias that names the new version from now on, see `alias`.
        files: paths or URLs of files or folders to keep beside the model, by name, such as the
            folder of a saved `PipelineModel` of Spark; see `ModelVersion.file`.
        onnx: also write a Keras model as `model.onnx`; needs the extra `onnx`.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Returns:
        The version; None if `if_better` was given and the model is not better.

    Raises:
        ConfigError: if an argument is invalid, there is no model, or TensorFlow or Keras is too
            old. Nothing was exported.
        OSError: if the store fails for minutes.

    Example:
        >>> import keras
        >>> from sparkdl import models
        >>> model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        >>> version = models.export(model, "first", metrics={"loss": 0.5})
        >>> version.version, version.metrics
        (1, {'loss': 0.5})
        >>> models.export(model, "first", metrics={"loss": 0.7}, if_better="loss") is None
        True
    """
    paths = registry.paths_of(name, root)
    if alias is not None:
        check_name(alias, "alias")
    if onnx:
        require("tf2onnx", "onnx=True")
    profiles.check(profile)
    for file in files or ():
        check_name(file, "file")
    if signatures and loader is None:
        raise ConfigError(
            "signatures= is given without loader=; other models have theirs in their files."
        )
    origin = source.resolve(model_or_trial, loader)
    values = {**origin.metrics, **source.check_metrics(metrics)}
    if if_better is not None:
        way = direction or origin.direction.get(if_better)
        if not _is_better(values, if_better, way, registry.list_versions(name, root=root)):
            return None
    with _folder(paths) as folder:
        options = {
            "signature": signature,
            "signatures": signatures,
            "onnx": onnx,
            "loader": loader,
        }
        _write_model(origin, folder, options)
        for file, path in (files or {}).items():
            _copy_file(file, path, folder)
        if profile is not None:
            (folder / PROFILE_FILE).write_text(to_json(profiles.profile(profile)))
        number = _publish(folder, paths, _record(name, origin, values, folder))
    if alias is not None:
        registry.alias(name, alias, number, root=root)
    version = registry.get(name, number, root=root)
    _logger.info("exported %s", version)
    return version


def _is_better(
    metrics: Mapping[str, float],
    metric: str,
    direction: str | None,
    versions: list[ModelVersion],
) -> bool:
    """Return True if a value of a metric is better than that of all versions."""
    if metric not in metrics:
        raise ConfigError(
            f"if_better={metric!r}, but the model has the metrics "
            f"{', '.join(map(repr, metrics)) or 'none'}.{suggest(metric, metrics)} Pass "
            f"metrics={{{metric!r}: ...}}."
        )
    if not math.isfinite(metrics[metric]):
        return False
    new = ModelVersion(name="", version=0, path="", metrics=dict(metrics))
    chosen = registry.best_of([*versions, new], metric, direction)
    if chosen is not new and chosen is not None:
        text = "not exported: %s is %.5g, and %.5g for version %d of %s"
        value = chosen.metrics[metric]
        _logger.info(text, metric, metrics[metric], value, chosen.version, chosen.name)
    return chosen is new


# ---- the files


@contextlib.contextmanager
def _folder(paths: ModelPaths) -> Iterator[Path]:
    """Yield the folder in which the files of a version are written before it has a number."""
    if storage.is_local(paths.folder):
        # On the disk of the registry, so that the folder can be renamed.
        folder = storage.local_path(paths.aside(uuid.uuid4().hex))
        folder.mkdir(parents=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="sparkdl-export-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_model(origin: Source, folder: Path, options: Mapping[str, Any]) -> None:
    """Write the files of a model.

    Args:
        origin: the model.
        folder: the folder of the version.
        options: the arguments `signature`, `signatures`, `onnx` and `loader` of `export`.

    Raises:
        ConfigError: if the model cannot be loaded or written.
    """
    try:
        if _has_loader(origin, options["loader"]):
            _write_other(origin, folder, options)
            return
        require("tensorflow", "models.export")
        check_versions("tensorflow", "keras")
        if origin.url is None:
            library = library_of_object(origin.model) or "keras"
            _write_keras(origin.model, library, folder, options)
            return
        with local_copy(origin.url) as path:
            library = library_of(path)
            is_changed = options["signature"] is not None or options["onnx"]
            if is_changed and library == "tensorflow" and (path / KERAS_FILE).is_file():
                _copy_parts(path, folder, [PROFILE_FILE, EXTRA])  # Of a version of a model.
                path = path / KERAS_FILE
                library = library_of(path)
            if library == "tensorflow":
                _copy_saved_model(path, folder, options)
                return
            leave_gpus_to_tasks()
            keras_file = path if path.suffix == ".keras" else None
            _write_keras(load_keras(path, library), library, folder, options, keras_file)
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError, zipfile.BadZipFile) as exc:
        name = origin.url or f"the model {getattr(origin.model, 'name', type(origin.model))!r}"
        raise ConfigError(f"{name} cannot be exported: {exc}") from exc


def _has_loader(origin: Source, loader: Loader | None) -> bool:
    """Return True for a model of another framework than TensorFlow."""
    if loader is not None or format_of(origin.url or origin.model):
        return True
    return origin.url is not None and storage.exists(storage.join(origin.url, LOADER_FILE))


def _write_other(origin: Source, folder: Path, options: Mapping[str, Any]) -> None:
    if options["onnx"]:
        raise ConfigError("onnx=True is given; it is for models of Keras.")
    loader, signature = options["loader"], options["signature"]
    more = options["signatures"]
    kind = format_of(origin.url or origin.model)
    if origin.url is None:
        if loader is not None:
            write_loaded(None, loader, folder, signature, more)
        else:
            write_format(origin.model, str(kind), folder, signature)
        return
    with local_copy(origin.url) as path:
        if loader is not None:
            write_loaded(path, loader, folder, signature, more)
        elif kind:
            write_format(path, kind, folder, signature)
        elif signature is not None:
            raise ConfigError(
                f"signature= is given, but {origin.url} describes its inputs. Leave it out, or "
                "export the files again with loader=."
            )
        else:
            _copy_parts(path, folder, [LOADER_FILE, FILES, CODE, PROFILE_FILE, EXTRA])


def _write_keras(
    model: Any,
    library: str,
    folder: Path,
    options: Mapping[str, Any],
    keras_file: Path | None = None,
) -> None:
    onnx = str(folder / ONNX_FILE) if options["onnx"] else None
    saved_model.write_keras(model, library, str(folder), options["signature"], onnx)
    if keras_file:
        shutil.copyfile(keras_file, folder / KERAS_FILE)
    else:
        model.save(folder / KERAS_FILE)


def _copy_saved_model(source_path: Path, folder: Path, options: Mapping[str, Any]) -> None:
    if options["signature"] is not None or options["onnx"]:
        raise ConfigError(
            f"signature= or onnx= is given, but {source_path} is a SavedModel, which is copied "
            "with its own signatures. Leave them out, or export the Keras model."
        )
    saved_model.read_signatures(source_path)
    parts = (SAVED_MODEL, "variables", "assets", EXTRA, "fingerprint.pb")
    # A version of a model has more files beside the SavedModel.
    _copy_parts(source_path, folder, [*parts, KERAS_FILE, ONNX_FILE, PROFILE_FILE])


def _copy_parts(source_path: Path, folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if (part := source_path / name).is_dir():
            shutil.copytree(part, folder / name)
        elif part.exists():
            shutil.copyfile(part, folder / name)


def _copy_file(name: str, url: str | os.PathLike[str], folder: Path) -> None:
    target = folder / EXTRA / name
    try:
        with local_copy(storage.absolute(url)) as path:
            target.parent.mkdir(exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)  # That of a version that was copied.
            shutil.copytree(path, target) if path.is_dir() else shutil.copyfile(path, target)
    except FileNotFoundError as exc:
        raise ConfigError(f"files has {os.fspath(url)!r} for {name!r}: {exc}") from exc


def _record(
    name: str, origin: Source, metrics: Mapping[str, float], folder: Path
) -> dict[str, Any]:
    """Return the content of `model.json`, without the number of the version."""
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": folders.sha256(str(path)),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {
        "format": FORMAT,
        "name": name,
        "metrics": dict(metrics),
        "run": origin.run,
        "trial": origin.trial,
        "signatures": _signatures(folder),
        "lineage": origin.lineage,
        # The id tells this description from that of any other export.
        "exported": {
            **who_and_when(),
            "versions": provenance.versions(),
            "id": uuid.uuid4().hex,
        },
        "files": files,
    }


def _signatures(folder: Path) -> dict[str, Any]:
    is_saved_model = (folder / SAVED_MODEL).is_file()
    return saved_model.read_signatures(folder) if is_saved_model else signatures_of(folder)


# ---- the version


def _publish(folder: Path, paths: ModelPaths, record: Mapping[str, Any]) -> int:
    """Take the next number, make the folder the version of this number, and return the number."""
    above = max(numbers(storage.list_names(paths.folder)), default=0)
    number = take_next(paths.claims, who_and_when(), above)
    text = to_json({**record, "version": number}, indent=1)
    if storage.is_local(paths.folder):
        (folder / storage.local_path(paths.record(number)).name).write_text(text)
        storage.fsync([*folder.rglob("*"), folder])
        storage.rename(str(folder), paths.version(number))
        storage.fsync([storage.local_path(paths.folder)])
        return number
    # TensorFlow Serving reads a folder as soon as it has a number: `saved_model.pb` comes late.
    for file in sorted(record["files"], key=lambda file: (file in MODEL_FILES, file)):
        put = functools.partial(storage.put, folder, file, paths.version(number))
        retry(put, f"upload {file} of a model")
    if not create(paths.record(number), text):
        raise FileExistsError(
            f"{paths.record(number)} was written by another process: the store has let two "
            "processes create one file. Export the model again."
        )
    return number
