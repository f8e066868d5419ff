"""Runs anywhere. The version or profile that a log is compared with, and its features there."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.models import ModelVersion
from sparkdl.models.registry import find
from sparkdl.monitoring.counts import Features, profile_of
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
    places = places_of(profiled, signature, columns, inputs, outputs, has_others)
    features = {place.feature: profiled.get(place.feature, {}) for place in places}
    label = f"{version.name}/{version.version}" if is_version else "the profile"
    return label, features, places, version if is_version else None
