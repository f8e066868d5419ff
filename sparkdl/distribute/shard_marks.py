"""Runs in the training process. Mark the variables of which each rank has a shard of its own."""

from typing import Any

# The attribute of a variable of which each rank has a part of its own.
_IS_SHARD = "_sparkdl_is_shard"


def mark_as_shard(variable: Any) -> None:
    """Note that a variable has the shard of this rank only."""
    object.__setattr__(variable, _IS_SHARD, True)


def is_shard(variable: Any) -> bool:
    """Return True if a variable has the shard of this rank only."""
    return getattr(variable, _IS_SHARD, False)
