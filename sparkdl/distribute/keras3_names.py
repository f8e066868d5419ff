"""Runs in the training process. Check that Keras has the names that its corrections replace."""

import importlib
import inspect
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# A piece of advice: no version is compared with it.
TESTED = "Keras 3.5 to 3.15"


@dataclass(frozen=True)
class Name:
    """A class or function of Keras that a correction replaces, calls or relies on.

    Attributes:
        module: the full name of the module that defines it.
        path: its path in the module, such as "Trainer.compile".
        parameters: parameters of the function that a correction uses.
        uses: names in the code of the function, or of the methods of the class. A function that is
            replaced without being called would correct nothing.
    """

    module: str
    path: str
    parameters: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        """True if the installed Keras has the name as described."""
        return not any(self.problems())

    def problems(self) -> Iterator[str]:
        """Yield what the installed Keras does not have, as phrases."""
        full = f"{self.module}.{self.path}"
        try:
            value: Any = importlib.import_module(self.module)
            for part in self.path.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError):
            yield f"{full} does not exist"
            return
        if self.parameters:
            parameters = inspect.signature(value).parameters
            for name in self.parameters:
                if name not in parameters:
                    yield f"{full} has no parameter {name!r}"
        if self.uses:
            known_names = set(_names_in(value))
            for name in self.uses:
                if name not in known_names:
                    yield f"{full} does not use {name!r}"


def require(names: Iterable[Name]) -> None:
    """Validate that the installed Keras has all names.

    Raises:
        RuntimeError: if a name is missing, has other parameters, or is no longer used; the message
            has every such name.
    """
    problems = [problem for name in names for problem in name.problems()]
    if problems:
        import keras

        raise RuntimeError(
            f"distribute.strategy() cannot correct Keras {keras.__version__} for several workers "
            f"or GPUs: {'; '.join(problems)}. Install {TESTED}, whose names the corrections know, "
            "or use distribute.optimizer without a strategy, which needs no correction."
        )


def _names_in(value: Any) -> Iterator[str]:
    """Yield the attributes and global names that the code of a function or a class has."""
    if isinstance(value, type):
        for member in vars(value).values():
            yield from _names_in(getattr(member, "fget", member))
        return
    code = value if isinstance(value, types.CodeType) else None
    if code is None and callable(value):
        code = getattr(inspect.unwrap(value), "__code__", None)
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from _names_in(constant)
