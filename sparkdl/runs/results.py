"""Runs on the driver. Read the values that training functions have returned."""

import json
from typing import Any

from sparkdl.errors import NotKeptError
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.model_objects import library_of_model
from sparkdl.files.returned_values import give_back
from sparkdl.runs.trial_files import local_copy


def returned_value(trial: str) -> Any:
    """Return the value of a trial from its folder.

    Args:
        trial: path or URL of the folder of the trial.

    Raises:
        NotKeptError: if a part of the value was not kept.
    """
    return _read(TrialPaths(trial).result, trial)


def values_of_ranks(trial: str) -> list[Any]:
    """Return the values of all ranks that have kept one, by rank, see `returned_value`."""
    paths = TrialPaths(trial)
    ranks = sorted(int(name.removesuffix(".json")) for name in storage.list_names(paths.results))
    return [_read(paths.result_of(rank), trial) for rank in ranks]


def returned_model(trial: str) -> Any:
    """Return the model that a trial has returned as an object; None if it returned none.

    It is the value itself, the one named `model`, or the only one of several values.
    """
    try:
        value = returned_value(trial)
    except NotKeptError:
        return None
    named = value if isinstance(value, dict) else {"": value}
    found = {name: each for name, each in named.items() if library_of_model(each)}
    return found.get("model") or (next(iter(found.values())) if len(found) == 1 else None)


def _read(url: str, trial: str) -> Any:
    try:
        typed = json.loads(storage.read(url))
    except FileNotFoundError as exc:
        raise NotKeptError(
            f"the file {url} with the returned value is missing: it could not be written, or was "
            "removed. `trial.outputs` has the values that are JSON."
        ) from exc
    return give_back(typed, lambda path: local_copy(storage.join(trial, path)))
