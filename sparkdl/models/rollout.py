"""Runs on the driver. Roll a version out: move an alias to the version of another one, and back."""

from sparkdl.errors import ModelNotFoundError
from sparkdl.models import registry
from sparkdl.models.version import ModelVersion

__all__ = ["promote", "roll_back"]


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

    A second call goes back one more move.

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
    stack: list[int | None] = []
    for move in registry.alias_history(name, alias, root=root):
        if len(stack) > 1 and stack[-2] == move.version:
            stack.pop()  # This move took the one before back.
        else:
            stack.append(move.version)
    earlier = [version for version in stack[:-1] if version is not None]
    if not earlier:
        registry.get(name, alias=alias, root=root)  # It raises, with the aliases that there are.
        raise ModelNotFoundError(
            f"the alias {alias!r} of the model {name!r} has named no other version; `sparkdl "
            f"models alias {name} {alias}` prints its moves."
        )
    registry.alias(name, alias, earlier[-1], root=root)
    return registry.get(name, earlier[-1], root=root)
