"""Runs in the training process, and on the driver for `try_one`. Seed random numbers.

Frameworks that the function imports later are seeded, too.
"""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from sparkdl.host.late_imports import after_import, only_here


def seed_everything(seed: int) -> None:
    """Seed `random`, and NumPy and each framework, now or as soon as the program imports it."""
    random.seed(seed)
    for name, seed_module in _seeders(seed).items():
        after_import(name, seed_module)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed everything in a process that goes on afterwards: later imports seed nothing then."""
    with only_here():
        seed_everything(seed)
        yield


def _seeders(seed: int) -> dict[str, Callable[[Any], None]]:
    """Return the functions that seed a module, by the name of the module; Keras comes last."""

    def seed_keras(keras: Any) -> None:
        with _other_seeds_kept():
            keras.utils.set_random_seed(seed)

    return {
        # NumPy 2.4 loads it when it is first used, which takes a process some milliseconds.
        "numpy.random": lambda module: module.seed(seed),
        "torch": lambda torch: torch.manual_seed(seed),
        "tensorflow": lambda tensorflow: tensorflow.random.set_seed(seed),
        "keras": seed_keras,
        "tf_keras": seed_keras,
    }


@contextlib.contextmanager
def _other_seeds_kept() -> Iterator[None]:
    """Keep the state of `random` and NumPy, which Keras seeds too.

    A program that imports Keras late may have drawn numbers already, and must not draw them again.
    """
    numpy = sys.modules.get("numpy")
    state, numpy_state = random.getstate(), numpy and numpy.random.get_state()
    yield
    random.setstate(state)
    if numpy:
        numpy.random.set_state(numpy_state)
