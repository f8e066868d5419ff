"""Deep learning on the Spark cluster you already have (runs anywhere).

`import sparkdl` is light: it loads neither TensorFlow nor Spark. Each name below is a module
that is imported when it is first used.
"""

import importlib
from types import ModuleType

from sparkdl._version import __version__

__all__ = [
    "__version__",
    "context",
    "data",
    "devices",
    "distribute",
    "errors",
    "experiment",
    "keras",
    "models",
    "runs",
    "search",
    "tensorboard",
    "tfos",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"sparkdl.{name}")
    raise AttributeError(
        f"module 'sparkdl' at {__file__} has no attribute {name!r}. Expected one of "
        f"{', '.join(__all__)}."
    )


def __dir__() -> list[str]:
    return __all__
