"""Deep learning on the Spark cluster you already have (runs anywhere).

`import sparkdl` is light: it loads neither TensorFlow nor Spark. Each name below is a module, or a
class of a module, that is imported when it is first used.
"""

import importlib
from typing import Any

from sparkdl._version import __version__

__all__ = [
    "MirroredStrategyRunner",
    "__version__",
    "callbacks",
    "context",
    "data",
    "devices",
    "distribute",
    "errors",
    "experiment",
    "keras",
    "ml",
    "models",
    "monitoring",
    "runs",
    "search",
    "serving",
    "tensorboard",
    "tfos",
]

# The module of each class.
_CLASSES = {"MirroredStrategyRunner": "sparkdl.mirrored_strategy_runner"}


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return getattr(importlib.import_module(_CLASSES[name]), name)
    if name in __all__:
        return importlib.import_module(f"sparkdl.{name}")
    raise AttributeError(
        f"module 'sparkdl' at {__file__} has no attribute {name!r}. Expected one of "
        f"{', '.join(__all__)}."
    )


def __dir__() -> list[str]:
    return __all__
