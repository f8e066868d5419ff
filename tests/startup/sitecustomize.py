"""Runs at the start of each Python process of the tests: TensorFlow then imports in less time.

Where they are installed, as they are for the tests, TensorFlow's converter imports JAX and Keras's
wrappers import scikit-learn, which takes a third of the CPU time of `import tensorflow`. No test
needs JAX or scikit-learn there. All other modules find both.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

# The modules that are not found, each with the packages that then do without it.
NOT_FOUND = {
    "jax": ("tensorflow.lite.", "keras.src.callbacks."),
    "sklearn": ("keras.src.wrappers.",),
}


class OptionalImports(MetaPathFinder):
    """Hide modules from the packages that do without them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Leave the search to the other finders, except for a hidden module.

        Raises:
            ModuleNotFoundError: if the module is hidden from the module that imports it.
        """
        if name in NOT_FOUND and _importer(sys._getframe(1)).startswith(NOT_FOUND[name]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _importer(frame: Any) -> str:
    """Return the name of the module that imports another one."""
    while frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


sys.meta_path.insert(0, OptionalImports())
