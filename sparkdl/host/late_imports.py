"""Runs in the training process. Call functions on modules right after the program imports them."""

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Action = Callable[[Any], None]


def after_import(name: str, action: Action) -> None:
    """Call a function on a module: now if it is imported, else when the program imports it.

    Args:
        name: the full name of the module.
        action: the function; it takes the module.

    Example:
        >>> after_import("sys", lambda module: print(module.__name__))
        sys
    """
    if module := sys.modules.get(name):
        action(module)
    else:
        _finder().actions.setdefault(name, []).append(action)


@contextlib.contextmanager
def only_here() -> Iterator[None]:
    """Forget at the end of the block the functions that the block wants to be called."""
    actions = _finder().actions
    before = {name: [*functions] for name, functions in actions.items()}
    try:
        yield
    finally:
        actions.clear()
        actions.update({n: functions for n, functions in before.items() if n not in sys.modules})


def _finder() -> "_Finder":
    """Return the finder of this process; the list of finders is its only reference."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder
    sys.meta_path.insert(0, finder := _Finder())
    return finder


class _Finder(importlib.abc.MetaPathFinder):
    """Find modules as the other finders do, and call functions on a module after its import.

    Attributes:
        actions: the functions to call on a module, by its name.
    """

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find and (spec := find(fullname, path, target)):
                _act_after_import(spec.loader, self.actions)
                module_spec: importlib.machinery.ModuleSpec = spec
                return module_spec
        return None


def _act_after_import(loader: Any, actions: dict[str, list[Action]]) -> None:
    """Let this loader, which loads one module, call the functions when it was executed.

    A module may be looked for and not be imported, so its functions wait until it was executed.
    """
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def execute_and_act(module: types.ModuleType) -> None:
        execute(module)
        for action in actions.pop(module.__name__, ()):
            action(module)

    with contextlib.suppress(AttributeError):  # A loader that is not written in Python.
        loader.exec_module = execute_and_act
