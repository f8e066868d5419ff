"""Runs anywhere. Names of a package that are imported when they are first used."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl.host.missing_names import missing_name


def lazy_names(
    package: str, modules: Mapping[str, str], public: Sequence[str]
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, see https://peps.python.org/pep-0562.

    Args:
        package: the name of the package.
        modules: the names that each module has, separated by spaces.
        public: all public names of the package, for the error of any other name.

    Example:
        >>> lazy_names("numbers", {"math": "sqrt pi"}, ["sqrt", "pi"])("sqrt")(4.0)
        2.0
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get_attribute(name: str) -> Any:
        if name in module_of:
            try:
                return getattr(importlib.import_module(module_of[name]), name)
            except ImportError:
                from sparkdl.host.supported_versions import explained_by_versions

                with explained_by_versions():
                    raise
        raise missing_name(
            f"module {package!r} has no attribute {name!r}. Expected one of {', '.join(public)}."
        )

    return get_attribute
