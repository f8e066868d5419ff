"""Runs anywhere. Read the model registry: versions by number, by alias, by metric."""

import logging
import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkdl.errors import ConfigError, ModelDamagedError, ModelNotFoundError, suggest
from sparkdl.files import storage
from sparkdl.files.layout import MAX_RECORD_BYTES
from sparkdl.models import aliases as alias_files
from sparkdl.models.layout import ModelPaths, check_name, is_no_record, models_folder
from sparkdl.models.numbered import numbers
from sparkdl.models.version import ModelVersion, parse_version
from sparkdl.training.metric_names import direction_of_name

_SIGNS = {"max": 1, "maximize": 1, "min": -1, "minimize": -1}

_logger = logging.getLogger("sparkdl.models")


def paths_of(name: str, root: str | None) -> ModelPaths:
    """Return the files of a model.

    Raises:
        ConfigError: if it is no name of a model.
    """
    return ModelPaths(storage.join(models_folder(root), check_name(name, "model")))


def get(
    name: str,
    version: int | None = None,
    alias: str | None = None,
    *,
    root: str | None = None,
) -> ModelVersion:
    """Return a version of a model.

    Args:
        name: the name of the model.
        version: the number of the version; by default the newest version.
        alias: an alias of the version, such as `stable`, instead of its number.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Raises:
        ModelNotFoundError: if there is no such version.
        ConfigError: if both a version and an alias are given.

    Example:
        >>> from sparkdl import models
        >>> models.get("digits")
        Traceback (most recent call last):
        sparkdl.errors.ModelNotFoundError: there is no model 'digits' in ...
    """
    if version is not None and alias is not None:
        raise ConfigError(
            f"get got {version=} and {alias=}; expected one of them, or neither for the newest "
            "version."
        )
    paths = paths_of(name, root)
    if alias is not None:
        version = alias_files.version_of(paths, check_name(alias, "alias"))
        if version is None:
            known = sorted({a for names in alias_files.aliases_of(paths).values() for a in names})
            raise ModelNotFoundError(
                f"the model {name!r} has no alias {alias!r}; it has "
                f"{', '.join(map(repr, known)) or 'none'}.{suggest(alias, known)}"
            )
    candidates = _numbers_of(paths) if version is None else [_checked_number(version)]
    for number in reversed(candidates):
        if complete := _read(paths, [number], is_strict=True):
            return complete[0]
    raise _not_found(name, version, paths)


def _checked_number(version: object) -> int:
    if isinstance(version, bool) or not isinstance(version, int):
        raise ConfigError(
            f"version is {version!r}; expected a number, such as 3. A name, such as 'stable', is "
            "an alias: pass alias=."
        )
    return version


def _not_found(name: str, version: int | None, paths: ModelPaths) -> ModelNotFoundError:
    versions = [version.version for version in _read(paths, _numbers_of(paths))]
    if versions:
        numbers_text = ", ".join(map(str, versions[-10:]))
        text = f"the model {name!r} has no version {version}; its newest are {numbers_text}."
    else:
        folder = paths.folder.rpartition("/")[0]
        known = [other for other in storage.list_names(folder) if other != name]
        hint = suggest(name, known) or (f" It has {', '.join(known[:10])}." if known else "")
        text = f"there is no model {name!r} in {folder}.{hint}"
    return ModelNotFoundError(text)


def _numbers_of(paths: ModelPaths) -> list[int]:
    """Return the numbers of all folders of versions, also of those that are not complete."""
    return numbers(storage.list_names(paths.folder))


def _read(
    paths: ModelPaths, versions: Sequence[int], is_strict: bool = False
) -> list[ModelVersion]:
    """Return those of the versions that are complete.

    Args:
        paths: the files of the model.
        versions: the numbers of the versions.
        is_strict: raise an error for a version that cannot be read, in place of a warning.

    Raises:
        ModelDamagedError: if `is_strict` and a version cannot be read.
    """
    contents = _contents([paths.record(number) for number in versions], is_strict)
    named = alias_files.aliases_of(paths) if contents else {}
    complete = []
    for number in versions:
        if data := contents.get(paths.record(number)):
            try:
                complete.append(
                    parse_version(paths.version(number), data, named.get(number, ()), paths.name)
                )
            except ModelDamagedError as exc:
                if is_strict:
                    raise
                _logger.warning("left out: %s", exc)
    return complete


def _contents(urls: Sequence[str], is_strict: bool) -> dict[str, bytes]:
    try:
        return storage.read_many(urls, MAX_RECORD_BYTES)
    except OSError as exc:
        if is_strict or not is_no_record(exc):
            raise
        if len(urls) == 1:
            _logger.warning("left out: %s", exc)
            return {}
    # What another user has placed there hides no version.
    return {name: data for url in urls for name, data in _contents([url], False).items()}


def list_versions(name: str | None = None, *, root: str | None = None) -> list[ModelVersion]:
    """Return the versions of a model, or of all models, by name and number.

    A version that is still being written, or whose export was killed, is not listed.

    Args:
        name: the name of the model; by default all models.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Example:
        >>> from sparkdl import models
        >>> models.list("digits")
        []
    """
    if name is not None:
        paths = paths_of(name, root)
        return _read(paths, _numbers_of(paths))
    folder = models_folder(root)
    all_paths = [ModelPaths(storage.join(folder, name)) for name in storage.list_names(folder)]
    with ThreadPoolExecutor(max_workers=16) as pool:
        per_model = pool.map(lambda paths: _read(paths, _numbers_of(paths)), all_paths)
        return [version for versions in per_model for version in versions]


def best(
    name: str, metric: str, direction: str | None = None, *, root: str | None = None
) -> ModelVersion:
    """Return the version with the best value of a metric; of equal versions the older one.

    Args:
        name: the name of the model.
        metric: the name of a metric.
        direction: `max` or `min`. By default `min` if smaller values are better by the name of the
            metric, such as `val_loss`, else `max`.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Raises:
        ModelNotFoundError: if the model has no version with a value of this metric.
    """
    versions = list_versions(name, root=root)
    if not versions:
        raise _not_found(name, None, paths_of(name, root))
    chosen = best_of(versions, metric, direction)
    if chosen is None:
        known = sorted({metric for version in versions for metric in version.metrics})
        raise ModelNotFoundError(
            f"no version of the model {name!r} has a value of the metric {metric!r}; the versions "
            f"have {', '.join(map(repr, known)) or 'no metrics'}.{suggest(metric, known)}"
        )
    return chosen


def best_of(
    versions: Sequence[ModelVersion], metric: str, direction: str | None = None
) -> ModelVersion | None:
    """Return the best of these versions, see `best`; None if none has a value of the metric.

    Raises:
        ConfigError: if `direction` is another word.
    """
    sign = _SIGNS.get(direction or direction_of_name(metric) or "max")
    if sign is None:
        raise ConfigError(f"direction is {direction!r}; expected 'max' or 'min'.")
    measured = [v for v in versions if math.isfinite(v.metrics.get(metric, math.nan))]
    return max(measured, key=lambda v: sign * v.metrics[metric], default=None)


def alias(
    name: str, alias: str, version: int | None, *, root: str | None = None
) -> ModelVersion | None:
    """Let an alias name a version from now on, or remove the alias.

    If several processes move an alias at once, the last of them decides; `alias_history` has all
    moves.

    Args:
        name: the name of the model.
        alias: the alias, such as `stable` or `canary`.
        version: the number of the version; None removes the alias.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Returns:
        The version; None if the alias was removed.

    Raises:
        ModelNotFoundError: if there is no such version.
        ConfigError: if the alias is no name.
    """
    paths = paths_of(name, root)
    check_name(alias, "alias")
    if version is not None:
        version = get(name, version, root=root).version
    alias_files.move(paths, alias, version)
    return None if version is None else get(name, version, root=root)


def alias_history(name: str, alias: str, *, root: str | None = None) -> list[alias_files.AliasMove]:
    """Return all moves of an alias, oldest first: the version, the time, the user and the host.

    Args:
        name: the name of the model.
        alias: the alias.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.
    """
    return alias_files.history(paths_of(name, root), check_name(alias, "alias"))


def find(reference: Any, root: str | None = None) -> ModelVersion:
    """Return the version that a text names: `digits`, `digits/3` or `digits@stable`.

    Args:
        reference: the text, or a version.
        root: the folder that holds the runs and the models.

    Raises:
        ModelNotFoundError: if there is no such version.
        ConfigError: if the text is no reference.
    """
    if isinstance(reference, ModelVersion):
        return reference
    name, at, alias = str(reference).partition("@")
    name, slash, number = name.partition("/")
    # Half a reference is not the newest version.
    if (slash and not re.fullmatch("[0-9]+", number)) or (at and not alias):
        raise ConfigError(
            f"{reference!r} is no version of a model; expected a name, alone for its newest "
            "version, or with a number or an alias: digits, digits/3, digits@stable."
        )
    return get(name, int(number) if number else None, alias or None, root=root)
