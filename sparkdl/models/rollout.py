"""Runs on the driver. Roll a version out: move an alias to the version of another one, and back."""

from collections.abc import Sequence

from sparkdl.errors import ModelNotFoundError
from sparkdl.models import aliases, registry
from sparkdl.models.version import ModelVersion


def promote(
    name: str, alias: str = "canary", to: str = "stable", *, root: str | None = None
) -> ModelVersion:
    """Let an alias name the version of another alias.

    Servers that serve the alias change to the version, see `serving.start`.

    Args:
        name: the name of the model.
        alias: the alias whose version is promoted.
        to: the alias that names this version from now on.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Returns:
        The version.

    Raises:
        ModelNotFoundError: if there is no such model or alias.

    Example:
        >>> from sparkdl import models
        >>> models.promote("digits")
        Traceback (most recent call last):
        sparkdl.errors.ModelNotFoundError: the model 'digits' has no alias 'canary'; it has none.
    """
    version = registry.get(name, alias=alias, root=root)
    registry.alias(name, to, version.version, root=root)
    return registry.get(name, version.version, root=root)


def roll_back(name: str, alias: str = "stable", *, root: str | None = None) -> ModelVersion:
    """Let an alias name the version that it named before its last move.

    A second call goes back one more move. Moves that were made in another way, also those to an
    earlier version, are taken back one by one.

    Args:
        name: the name of the model.
        alias: the alias.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Returns:
        The version.

    Raises:
        ModelNotFoundError: if there is no such alias, or it has named no other version.
    """
    named = _named(registry.alias_history(name, alias, root=root))
    earlier = [version for version in named if version not in (None, named[-1])]
    if not earlier:
        registry.get(name, alias=alias, root=root)  # It raises, with the aliases that there are.
        raise ModelNotFoundError(
            f"the alias {alias!r} of the model {name!r} has named no other version; `sparkdl "
            f"models alias {name} {alias}` prints its moves."
        )
    version = registry.get(name, earlier[-1], root=root)
    aliases.move(registry.paths_of(name, root), alias, version.version, is_back=True)
    return registry.get(name, version.version, root=root)


def _named(moves: Sequence[aliases.AliasMove]) -> list[int | None]:
    """Return the versions that an alias has named, oldest first, without moves taken back.

    A move to an earlier version that `roll_back` did not make takes nothing back.
    """
    named: list[int | None] = []
    for move in moves:
        if move.is_back:
            del named[-1:]
            while named and named[-1] != move.version:
                named.pop()
        if not named or not move.is_back:
            named.append(move.version)
    return named
