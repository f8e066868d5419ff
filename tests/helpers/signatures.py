"""Compare the functions of a package with the signatures of the one whose names it has."""

import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Parameters = list[list[Any]]


def differences(package: str, table: Path, instead: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return what a program would notice that changes only its import lines.

    Args:
        package: the name of our package.
        table: a JSON file: for each module and function (or `Class`, `Class.method`) of theirs its
            parameters, each a list of the name and, unless it is required, the default.
        instead: the names that our modules refuse, by module; "" has modules.
    """
    found = []
    for module, functions in json.loads(table.read_text()).items():
        if module in instead.get("", {}):
            continue
        ours = importlib.import_module(f"{package}.{module}")
        for name, theirs in functions.items():
            if name.split(".")[0] in instead.get(module, {}):
                continue
            if difference := _difference(ours, name, theirs):
                found.append(f"{module}.{name}: {difference}")
    return found


def _difference(module: Any, name: str, theirs: Parameters) -> str:
    holder, _, last = name.rpartition(".")
    owner = getattr(module, holder, None) if holder else module
    if not hasattr(owner, last):
        return "is missing"
    value = getattr(owner, last)
    if inspect.isclass(value) and not theirs:
        return ""  # A name for constants, a base class, an exception.
    ours = _parameters(value)
    if holder and ours and ours[0][0] == "self":
        ours = ours[1:]
    if len(ours) < len(theirs) or not all(map(_fits, ours, theirs)):
        return f"{theirs} are the parameters of theirs, {ours} of ours"
    required = [parameter for parameter in ours[len(theirs) :] if len(parameter) == 1]
    return f"only ours needs {required}" if required else ""


def _parameters(function: Any) -> Parameters:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(function).parameters.values()
    return [
        [stars.get(parameter.kind, "") + parameter.name]
        + ([] if parameter.default is inspect.Parameter.empty else [parameter.default])
        for parameter in parameters
    ]


def _fits(ours: list[Any], theirs: list[Any]) -> bool:
    """Return True if the names and defaults agree; ours may have a default that theirs has not."""
    if ours[0] != theirs[0] or len(theirs) == 1:
        return ours[0] == theirs[0]
    return len(ours) == 2 and _plain(ours[1]) == _plain(theirs[1])


def _plain(default: Any) -> Any:
    """An empty list as a default is () or None with us; tuples are lists in JSON."""
    if isinstance(default, (list, tuple, dict)):
        return list(default) or None
    return default
