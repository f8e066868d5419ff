"""Runs in the training process. Turn what a training function returned into outputs for JSON."""

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = ["collect_outputs"]

_logger = logging.getLogger("sparkdl.cluster")


def collect_outputs(
    returned: Any, metrics: Sequence[str | None], folder: str | Path
) -> dict[str, Any]:
    """Return the value of a training function as JSON values; copy its files to the trial.

    A single number is stored under the name of the metric, or under `value`; a tuple of as many
    numbers as there are metrics under the names of these. The path of a file, and a `Path` of a
    folder, is replaced by the path of the copy, relative to `folder`.

    Args:
        returned: the value that the function returned.
        metrics: the names of the metrics; `[None]` where the user named none.
        folder: the folder of the trial.

    Example:
        >>> collect_outputs(0.9, ["accuracy"], ".")
        {'accuracy': 0.9}
        >>> collect_outputs((0.9, 5), ["accuracy", "latency"], ".")
        {'accuracy': 0.9, 'latency': 5}
    """
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        several = len(metrics) > 1 and isinstance(returned, tuple | list)
        values = returned if several else [returned]
        returned = {name or "value": value for name, value in zip(metrics, values, strict=False)}
    return {str(name): _output(str(name), value, Path(folder)) for name, value in returned.items()}


def _output(name: str, value: Any, folder: Path) -> Any:
    if _is_file(value, folder):
        return _copy(name, Path(value), folder)
    try:
        # Through JSON and back: an enum of the user's, say, is unknown on the driver.
        value = json.loads(json.dumps(_as_python(value)))
        if isinstance(value, int):
            float(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        _logger.warning(
            "the returned %r is a %s and is stored as text. Return numbers, or save the object "
            "to a file and return its path.",
            name,
            type(value).__name__,
        )
        return repr(value)
    return value


def _as_python(value: Any) -> Any:
    """Return arrays and tensors of any framework as numbers and lists of numbers."""
    for method in ("detach", "cpu", "numpy"):  # PyTorch; TensorFlow and JAX have the last one.
        value = getattr(value, method)() if hasattr(value, method) else value
    return value.tolist() if hasattr(value, "tolist") else value


def _is_file(value: Any, folder: Path) -> bool:
    """Return True if a value names a file or folder to copy, rather than being mere text."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        return False
    if not os.path.isdir(value):
        return os.path.isfile(value)
    # A folder may hold anything, so that it is copied only if it is given as a Path.
    return not isinstance(value, str) and Path(value).resolve() not in folder.resolve().parents


def _copy(name: str, source: Path, folder: Path) -> str:
    source, folder = source.resolve(), folder.resolve()
    if source.is_relative_to(folder):
        return source.relative_to(folder).as_posix()
    target = folder / "artifacts" / quote(name, safe="") / source.name
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    return target.relative_to(folder).as_posix()
