"""Runs anywhere. Export models to the registry, and find them there, as in hops-util-py.

The registry is `sparkdl.models`; that of a project is the folder `models` in it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from sparkdl import models
from sparkdl.errors import ConfigError, ModelNotFoundError
from sparkdl.hops.absent_names import absent_names
from sparkdl.hops.project import expand
from sparkdl.models import ModelVersion

__all__ = ["Metric", "ModelNotFound", "export", "get_best_model", "get_model"]

__getattr__ = absent_names(__name__, __all__)

ModelNotFound = ModelNotFoundError


class Metric:
    """The values of `direction=`."""

    MAX = "MAX"
    MIN = "MIN"


def export(
    model_path: str,
    model_name: str,
    model_version: int | None = None,
    overwrite: bool = False,
    metrics: Mapping[str, float] | None = None,
    description: str | None = None,
    synchronous: bool = True,
    synchronous_timeout: float = 120,
    project: str | None = None,
) -> str:
    """Export a model as the next version of its name, and return the path of the version.

    Args:
        model_path: a Keras file or the folder of a SavedModel: a local path, or one in the project.
        model_name: the name of the model.
        model_version: must be None, as the registry numbers the versions.
        metrics: metrics of the model.
        overwrite, description, synchronous, synchronous_timeout: have no effect; the version can
            be read at once.
        project: see `hdfs.project_path`.

    Raises:
        ConfigError: if there is no model at the path, or `model_version` is given.
    """
    if model_version is not None:
        raise ConfigError(
            f"model_version is {model_version!r}, but the registry numbers the versions itself, so "
            "that two exports never get the same number. Remove it."
        )
    path = model_path if Path(model_path).exists() else expand(model_path, project)
    version = models.export(path, str(model_name), metrics=metrics, root=expand("", project))
    return cast(ModelVersion, version).path  # It is None only with `if_better=`.


def get_best_model(name: str, metric: str, direction: str) -> dict[str, Any]:
    """Return the version with the best value of a metric.

    Args:
        name: the name of the model.
        metric: the name of the metric.
        direction: `Metric.MAX` or `Metric.MIN`.

    Returns:
        A dict with the `name`, the `version`, the `metrics` and the `path` of the version, and the
        id of its run as `experimentId`.

    Raises:
        ConfigError: if the direction is another word.
        ModelNotFound: if no version has a value of the metric.
    """
    return _as_dict(models.best(name, metric, str(direction).lower(), root=expand("")))


def get_model(name: str, version: int, project_name: str | None = None) -> dict[str, Any]:
    """Return a version of a model, as `get_best_model` does.

    Args:
        name: the name of the model.
        version: the number of the version.
        project_name: see `hdfs.project_path`.

    Raises:
        ModelNotFound: if there is no such version.
    """
    return _as_dict(models.get(name, int(version), root=expand("", project_name)))


def _as_dict(version: ModelVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "version": version.version,
        "metrics": dict(version.metrics),
        "path": version.path,
        "experimentId": version.run,
    }
