"""Runs anywhere. The error of a module's `__getattr__` for a name that the module does not have."""

import dis
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["absent_names", "missing_name"]

_FROM = "IMPORT_FROM"
_TOP = __name__.partition(".")[0]


def missing_name(message: str, depth: int = 1) -> Exception:
    """Return the error to raise from a module's `__getattr__`, see https://peps.python.org/pep-0562.

    `from module import name` replaces an AttributeError by a message of its own, and so hides what
    to write in place of the name; an ImportError reaches the user. Everywhere else, as in `hasattr`
    and in pickle, the error has to be an AttributeError.

    Args:
        message: what to write in place of the name.
        depth: the number of functions between this one and the code that asks for the name.

    Example:
        >>> type(missing_name("use y in place of x")).__name__
        'AttributeError'
    """
    caller = sys._getframe(depth + 1)
    is_from = dis.opname[caller.f_code.co_code[caller.f_lasti]] == _FROM
    return ImportError(message) if is_from else AttributeError(message)


def absent_names(
    module: str,
    public: Sequence[str] = (),
    *,
    page: str,
    instead: Mapping[str, str] | None = None,
    late: Mapping[str, str] | None = None,
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: its submodules, and errors for names it does not have.

    Args:
        module: the name of the module.
        public: the names that the module has, for the error of any other name.
        page: the page of the documentation about the module.
        instead: what to write in place of a name of another system.
        late: the modules of names that are imported on first use.

    Example:
        >>> absent_names("sys", page="docs/horovod.md", instead={"say": "Use print."})("say")
        Traceback (most recent call last):
        AttributeError: module 'sys' has no 'say'. Use print. See docs/horovod.md.
    """

    def get_attribute(name: str) -> Any:
        if late and name in late:
            return getattr(importlib.import_module(late[name]), name)
        if _is_submodule(module, name):
            return importlib.import_module(f"{module}.{name}")
        advice = (instead or {}).get(name)
        if advice is None:
            advice = f"Expected one of {', '.join(sorted(public))}." if public else "It has none."
        raise missing_name(f"module {module!r} has no {name!r}. {advice} See {page}.")

    return get_attribute


def _is_submodule(module: str, name: str) -> bool:
    path = vars(sys.modules[module]).get("__path__")
    if path is None:
        return False
    return importlib.machinery.PathFinder.find_spec(f"{module}.{name}", path) is not None


class _Refusals(importlib.abc.MetaPathFinder):
    """Let `import package.name` of an absent module tell what `from package import name` tells."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        package, _, name = fullname.rpartition(".")
        module = sys.modules.get(package)
        if package.partition(".")[0] != _TOP or not hasattr(module, "__getattr__"):
            return
        try:
            getattr(module, name)
        except AttributeError as exc:
            raise ModuleNotFoundError(str(exc), name=fullname) from None


# It comes after the finders of modules that are there.
sys.meta_path.append(_Refusals())
