"""Runs anywhere. What is drawn for a run: its id, and the seeds of its trials."""

import re
import secrets
import time

__all__ = ["new_run_id", "trial_seed"]


def new_run_id(name: str) -> str:
    """A run id that sorts by time and that no other run has.

    Example:
        >>> new_run_id("my run").startswith("my-run-"), new_run_id("_train").startswith("train-")
        (True, True)
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "run"
    return f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def trial_seed(seed: int, number: int) -> int:
    """The seed of a trial: it depends on nothing but the run's seed and the trial's number.

    One step of SplitMix64 (Steele, Lea, Flood 2014), whose outputs are well spread over any two
    arguments; the upper 31 bits, as every framework takes those.

    Example:
        >>> trial_seed(7, 0) != trial_seed(7, 1) != trial_seed(8, 0)
        True
    """
    mask = (1 << 64) - 1
    mixed = (seed * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return (mixed ^ (mixed >> 31)) >> 33
