"""Runs in the training process. Seed random numbers, also of frameworks that are imported later."""

import contextlib
import importlib.abc
import importlib.machinery
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["seed_everything", "seeded"]


def seed_everything(seed: int) -> None:
    """Seed `random`, and NumPy and each framework, now or as soon as the program imports it."""
    random.seed(seed)
    late: dict[str, Callable[[Any], None]] = {}
    for name, seed_module in _seeders(seed).items():
        if module := sys.modules.get(name):
            seed_module(module)
        else:
            late[name] = seed_module
    sys.meta_path.insert(0, _SeedingFinder(late))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed everything in a process that goes on afterwards: later imports seed nothing then."""
    before = list(sys.meta_path)
    seed_everything(seed)
    try:
        yield
    finally:
        for finder in [finder for finder in sys.meta_path if finder not in before]:
            if isinstance(finder, _SeedingFinder):
                sys.meta_path.remove(finder)


def _seeders(seed: int) -> dict[str, Callable[[Any], None]]:
    """Return the functions that seed a module, by the name of the module; Keras comes last."""

    def seed_keras(keras: Any) -> None:
        with _other_seeds_kept():
            keras.utils.set_random_seed(seed)

    return {
        "numpy": lambda numpy: numpy.random.seed(seed),
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


class _SeedingFinder(importlib.abc.MetaPathFinder):
    """Find modules as the other finders do, and seed each right after its import.

    Args:
        late: the functions that seed a module, by its name.
    """

    def __init__(self, late: dict[str, Callable[[Any], None]]) -> None:
        self._late = late

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        seed_module = self._late.pop(fullname, None)
        if seed_module is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find and (spec := find(fullname, path, target)):
                _seed_after_import(spec.loader, seed_module)
                found: importlib.machinery.ModuleSpec = spec
                return found
        return None


def _seed_after_import(loader: Any, seed_module: Callable[[Any], None]) -> None:
    """Let this loader, which loads one module, seed the module when it has been executed."""
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def execute_and_seed(module: types.ModuleType) -> None:
        execute(module)
        seed_module(module)

    with contextlib.suppress(AttributeError):  # A loader that is not written in Python.
        loader.exec_module = execute_and_seed
