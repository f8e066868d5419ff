"""Runs anywhere. Compare versions of models as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.models.registry import find, list_versions
from sparkdl.models.version import ModelVersion

if TYPE_CHECKING:
    import pandas as pd


def compare(
    models: str | Sequence[str | ModelVersion], *, root: str | None = None
) -> "pd.DataFrame":
    """Return a table with one row per version: its metrics, parameters and origin.

    Args:
        models: the name of a model, for all its versions; or a list of versions, each given as a
            `ModelVersion` or as a text: `digits/3`, `digits@stable`, or `digits` for the newest.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Raises:
        ModelNotFoundError: if a version of the list does not exist.

    Example:
        >>> from sparkdl import models
        >>> len(models.compare("digits"))
        0
    """
    if isinstance(models, str) and not {"/", "@"} & set(models):
        return table(list_versions(models, root=root))
    chosen = [models] if isinstance(models, str) else models
    return table([find(model, root) for model in chosen])


def table(versions: Sequence[ModelVersion]) -> "pd.DataFrame":
    """Return a table with one row per version."""
    import pandas as pd

    rows = [_row(version) for version in versions]
    first = ("model", "version", "aliases")
    columns = dict.fromkeys(name for row in rows for name in row)
    return pd.DataFrame(rows, columns=[*first, *(name for name in columns if name not in first)])


def _row(version: ModelVersion) -> dict[str, Any]:
    params = version.lineage.get("params") or {}
    exported = version.details.get("exported", {})
    first = {
        "model": version.name,
        "version": version.version,
        "aliases": " ".join(version.aliases),
    }
    last = {
        "run": version.run,
        "trial": version.trial,
        "git_commit": version.lineage.get("git_commit"),
        "user": exported.get("user"),
        "exported": exported.get("time"),
    }
    # A metric or a parameter may have the name of another column.
    taken = {*first, *last}
    metrics = {f"metrics.{k}" if k in taken else k: v for k, v in version.metrics.items()}
    taken |= {*metrics}
    params = {f"params.{k}" if k in taken else k: v for k, v in params.items()}
    return {**first, **metrics, **params, **last}
