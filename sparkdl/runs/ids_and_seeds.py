"""Runs anywhere. Draw the id of a run and the seeds of its trials."""

import re
import secrets
import time

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def new_run_id(name: str) -> str:
    """Return a unique run id; the ids of a name sort by time.

    Example:
        >>> new_run_id("my run").startswith("my-run-"), new_run_id("_train").startswith("train-")
        (True, True)
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "run"
    return f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def is_run_id(value: object) -> bool:
    """Return True for the name of a folder that a run can have.

    Example:
        >>> [is_run_id(value) for value in ("night-1", "..", "a/b", "", 5)]
        [True, False, False, False, False]
    """
    return isinstance(value, str) and _RUN_ID.fullmatch(value) is not None


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of a trial, which depends only on the run's seed and the trial's number.

    The seed is one step of SplitMix64 (Steele, Lea, Flood 2014), whose outputs are well spread for
    any two arguments. Only the upper 31 bits are used, as every framework accepts 31 bits.

    Example:
        >>> trial_seed(7, 0) != trial_seed(7, 1) != trial_seed(8, 0)
        True
    """
    mask = (1 << 64) - 1
    mixed = (seed * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return (mixed ^ (mixed >> 31)) >> 33
