"""Runs anywhere. The version or profile that a log is compared with, and its features there."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparkdl import profiles
from sparkdl.errors import ConfigError
from sparkdl.models import ModelVersion
from sparkdl.models.registry import find
from sparkdl.monitoring.counts import Features, profile_of, source_of
from sparkdl.monitoring.logs.places import Names, Place, places_of


def reference_of(
    model: Any,
    columns: Sequence[str] | None,
    inputs: Names | None,
    outputs: Names | None,
    root: str | None,
    has_others: bool = False,
) -> tuple[str, Features, tuple[Place, ...], ModelVersion | None]:
    """Return the name of a reference, its features, their places in a request, and the version.

    Args:
        model, columns, inputs, outputs, root: see `watch`.
        has_others: see `places_of`.
    """
    version = find(model, root) if isinstance(model, str) else model
    is_version = isinstance(version, ModelVersion)
    profile = profile_of(version)
    if not isinstance(profile, Mapping):
        raise ConfigError("model is a DataFrame; pass monitoring.profile(df), which is read once.")
    profiled = profile["features"]
    signature = version.signature if is_version else None
    tensors = _features_by_tensor(profiled, _names(inputs) | _names(outputs))
    sources = {name: source_of(name, feature, tensors) for name, feature in profiled.items()}
    names = None
    if columns:
        found = [source for name in columns for source in _sources(name, profiled, sources)]
        names = list(dict.fromkeys(found))
    places = places_of(tensors, signature, names, inputs, outputs, has_others)
    features = {
        name: profiled[name]
        for place in places
        for name in profiled
        if sources[name] == place.feature
        and profiles.is_chosen(name, profiled[name], columns or None)
    }
    label = f"{version.name}/{version.version}" if is_version else "the profile"
    return label, features, places, version if is_version else None


def _names(names: Names | None) -> set[str]:
    """Return the names of the features that tensors or their elements are."""
    values = (names or {}).values()
    return {name for value in values for name in ([value] if isinstance(value, str) else value)}


def _features_by_tensor(profiled: Features, named: Collection[str]) -> dict[str, Any]:
    """Return what may be a tensor or a part of one: columns of the training data.

    An element of arrays that `inputs` or `outputs` name has a place of its own, and then so have
    the other elements of its column.
    """
    elements = [name for name in named if "element" in profiled.get(name, {})]
    taken_apart = {profiles.column_of(name, profiled[name]) for name in elements} - set(named)
    found: dict[str, Any] = {}
    for name, feature in profiled.items():
        column = profiles.column_of(name, feature)
        if column == name or name in named:
            found[name] = feature
        elif column not in taken_apart:
            found.setdefault(column, {"kind": "array"})
    return found


def _sources(asked: str, profiled: Features, sources: Mapping[str, str]) -> list[str]:
    """Return the sources of the features with a name; the name itself if there are none."""
    some = [sources[n] for n, f in profiled.items() if profiles.is_chosen(n, f, [asked])]
    return list(dict.fromkeys(some)) or [asked]
