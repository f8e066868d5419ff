"""Runs on the driver. The versions of models in the registry that come from a run.

The registry is the folder `models` beside the runs, see `sparkdl.models`. A version is a folder
`<name>/<version>` with a `model.json`, whose field `run` names the run.
"""

from collections.abc import Mapping
from typing import Any

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json

FOLDER = "models"
# The description of a version; it is there as soon as the version is.
RECORD = "model.json"


def models_of(path: str, run_id: str | None = None) -> list[str]:
    """Return the versions of models that come from a run, such as `digits version 3`.

    Args:
        path: the run directory.
        run_id: the id of the run, if the run directory may have been renamed.

    Raises:
        OSError: if a description of a version cannot be read.
    """
    root, folder = path.rstrip("/").rsplit("/", 1)
    models = models_by_run(root)
    return [
        model
        for name in dict.fromkeys((folder, run_id or folder))
        for model in models.get(name, [])
    ]


def models_by_run(root: str) -> dict[str, list[str]]:
    """Return the versions of models in the registry of a root, by the id of their run."""
    names = _records_in(root)
    models: dict[str, list[str]] = {}
    for url, data in storage.read_many(names).items():
        models.setdefault(_run_of(data), []).append(names[url])
    return models


def versions_of(path: str) -> dict[str, dict[str, Any]]:
    """Return the `model.json` of each version of a model that comes from a run, by its folder.

    Args:
        path: the run directory.

    Raises:
        OSError: if a description of a version cannot be read.
    """
    root, run_id = path.rstrip("/").rsplit("/", 1)
    return {
        url.rsplit("/", 1)[0]: from_json(data)
        for url, data in storage.read_many(_records_in(root)).items()
        if _run_of(data) == run_id
    }


def _records_in(root: str) -> dict[str, str]:
    """Return the name of each version in the registry of a root, by the URL of its description."""
    registry = storage.join(root, FOLDER)
    records: dict[str, str] = {}
    for name in storage.list_names(registry):
        folder = storage.join(registry, name)
        for version in storage.list_names(folder):
            if version.isdigit():
                url = storage.join(folder, version, RECORD)
                records[url] = f"model {name} version {version}"
    return records


def _run_of(data: bytes) -> str:
    """Return the id of the run in a description; empty if it names no run."""
    try:
        record = from_json(data)
        run = record.get("run") or record.get("lineage", {}).get("run")
    except (ValueError, AttributeError):
        return ""
    if isinstance(run, Mapping):
        run_fields: Mapping[str, Any] = run
        run = run_fields.get("id") or run_fields.get("path")
    return str(run or "").rstrip("/").rsplit("/", 1)[-1]
