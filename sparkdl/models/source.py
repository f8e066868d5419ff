"""Runs on the driver. The model that the user exports, with its metrics and its origin."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError, RunDamagedError, RunNotFoundError, named_type
from sparkdl.files import storage
from sparkdl.files.model_formats import is_model, library_of_object
from sparkdl.inference.resolve import trial_of
from sparkdl.models.loader_files import format_of
from sparkdl.models.version import ModelVersion
from sparkdl.runs import Run, Trial, provenance, trial_files
from sparkdl.runs.history import read_description
from sparkdl.runs.results import returned_model
from sparkdl.secrets.masks import mask_text

# The facts of `run.json` that describe the origin of a model.
_FACTS = ("name", "kind", "function", "metric", "created", "user", "git_commit", "versions")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model to export.

    Attributes:
        model: the model in memory; None for a model at a URL.
        url: path or URL of the file or the folder of a model.
        metrics: the metrics of the trial that trained the model.
        direction: the direction of the metric of the trial, by the name of the metric.
        run: the id of the run.
        trial: the number of the trial.
        lineage: the origin of the model, for `model.json`.
    """

    model: Any = None
    url: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    direction: dict[str, str] = field(default_factory=dict)
    run: str | None = None
    trial: int | None = None
    lineage: dict[str, Any] = field(default_factory=dict)


def resolve(model: Any, loader: Any = None) -> Source:
    """Return the model that the user means.

    Args:
        model: a model in memory or its path, a Trial, a Run (its best trial), or a version of
            another model.
        loader: the function that loads the files; any path is then a model, and a trial has its
            files in its checkpoint unless it returned a file or a folder as `model`.

    Raises:
        ConfigError: if there is no model.
        NoCompleteTrialError: if the run has no best trial.
    """
    is_path = isinstance(model, str | os.PathLike)
    if not is_path and (library_of_object(model) or format_of(model) or (loader and model is None)):
        return Source(model=model, lineage={"git_commit": provenance.git_commit(Path.cwd())})
    if isinstance(model, Run):
        model = trial_of(model)
    if isinstance(model, Trial):
        return _of_trial(model, loader is not None)
    if isinstance(model, ModelVersion):
        return _of_version(model)
    if not is_path:
        raise ConfigError(
            f"model_or_trial is {named_type(model)}; expected a model of Keras, PyTorch, "
            "scikit-learn or XGBoost, the path of a model, a Trial, a Run or a ModelVersion. Any "
            "other model is a folder of files with loader=."
        )
    url = storage.absolute(model)
    is_known = loader or format_of(url)
    if not (storage.exists(url) if is_known else is_model(url)):
        raise ConfigError(
            f"{url} is no model; expected the path of a .keras or .h5 file, of the folder of a "
            "SavedModel, or of a .pt2, .pt or .onnx file. Any other file or folder needs loader=."
        )
    return Source(url=url, lineage={"source": mask_text(url)})


def _of_trial(trial: Trial, has_loader: bool) -> Source:
    model = None
    url: str | None
    try:
        url = _files_of(trial) if has_loader else trial.model_path
    except ConfigError:
        model = None if has_loader else returned_model(trial.path)
        url = None if has_loader or model is not None else _program_of(trial)
        if url is None and model is None:
            raise
    run_path = trial.path.rsplit("/", 2)[0]
    try:
        description = read_description(run_path)
    except (RunNotFoundError, RunDamagedError):
        description = {}
    chosen = trial.checkpoint_of_value()
    # The metric that counts comes first.
    metrics = {}
    if trial.metric and trial.value is not None:
        metrics[trial.metric] = trial.value
    metrics = {**metrics, **trial.metrics, **metrics}
    lineage = {
        "source": url,
        "run_path": run_path,
        "trial_path": trial.path,
        "params": trial.params,
        "seed": trial.seed,
        "checkpoint": chosen.url if chosen and url and url.startswith(chosen.url) else None,
        "data": trial.data,
        "columns": trial.columns,
        **{name: description[name] for name in _FACTS if name in description},
    }
    return Source(
        model=model,
        url=url,
        metrics=metrics,
        direction=_directions(trial, metrics, description.get("objectives") or {}),
        run=str(description.get("id", run_path.rsplit("/", 1)[-1])),
        trial=trial.number,
        lineage=lineage,
    )


def _files_of(trial: Trial) -> str:
    """Return the URL of the files that a loader gets."""
    if "model" in trial.outputs:
        return trial_files.artifact_url(trial.path, trial.outputs, "model")
    if chosen := trial.checkpoint_of_value():
        return chosen.url
    raise ConfigError(
        f"trial {trial.number} of {trial.path} has neither a checkpoint nor a file or folder under "
        "'model' among its outputs, which the loader would get."
    )


def _program_of(trial: Trial) -> str | None:
    """Return the URL of a file of PyTorch, ONNX, scikit-learn or XGBoost that a trial returned."""
    value = trial.outputs.get("model")
    if not isinstance(value, str) or not format_of(value):
        return None
    return trial_files.artifact_url(trial.path, trial.outputs, "model")


def _directions(
    trial: Trial, metrics: Mapping[str, float], objectives: Mapping[str, str]
) -> dict[str, str]:
    """Return the direction of each metric by which the trials of the run were compared."""
    if trial.metric:
        return {trial.metric: trial.direction, **objectives}
    returned = [name for name in trial.outputs if name in metrics] or [*metrics]
    # Without the name of a metric, the only number counts.
    is_only = trial.value is not None and len(returned) == 1
    return {returned[0]: trial.direction} if is_only else {}


def _of_version(version: ModelVersion) -> Source:
    return Source(
        url=version.path,
        metrics=version.metrics,
        run=version.run,
        trial=version.trial,
        lineage={**version.lineage, "copy_of": f"{version.name}/{version.version}"},
    )


def check_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the metrics that the user passed, as numbers.

    Raises:
        ConfigError: if a value is no number.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ConfigError(
            f"metrics is {named_type(metrics)}; expected a dict, such as {{'accuracy': 0.97}}."
        )
    numbers = {}
    for name, value in (metrics or {}).items():
        plain = value.item() if hasattr(value, "item") and not isinstance(value, Real) else value
        if isinstance(plain, bool) or not isinstance(plain, Real):
            raise ConfigError(f"metrics[{name!r}] is {value!r}; expected a number.")
        numbers[str(name)] = float(plain)
    return numbers
