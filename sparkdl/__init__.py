"""Deep learning on the Spark cluster you already have (runs anywhere).

`import sparkdl` is light: it loads neither TensorFlow nor Spark. Each name below is a module, or a
class of a module, that is imported when it is first used.
"""

import importlib
import importlib.machinery
import sys
from typing import Any

from sparkdl._version import __version__

# An older Python fails in other modules, with errors that do not say why.
if sys.version_info < (3, 10):  # noqa: UP036
    raise ImportError(
        f"sparkdl needs Python 3.10 or newer, and this is Python {sys.version_info[0]}."
        f"{sys.version_info[1]} ({sys.executable}). Use a newer one, for the driver and the "
        "executors."
    )

__all__ = [
    "HorovodRunner",
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
_CLASSES = {
    "HorovodRunner": "sparkdl.databricks",
    "MirroredStrategyRunner": "sparkdl.mirrored_strategy_runner",
}

# Another package of this name has modules such as `sparkdl.image`, which programs import: they are
# in a folder of their own.
__path__.append(f"{__path__[0]}/databricks/names")


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return getattr(importlib.import_module(_CLASSES[name]), name)
    if name in __all__:
        return importlib.import_module(f"sparkdl.{name}")
    if importlib.machinery.PathFinder.find_spec(f"{__name__}.{name}", __path__):
        raise AttributeError(name)  # `from sparkdl import name` imports the module after this.
    others = importlib.import_module("sparkdl.databricks")
    if name in others.__all__:
        return getattr(others, name)
    refusals = importlib.import_module("sparkdl.databricks.refusals")
    if name in refusals.REFUSED:
        message = refusals.what_to_use(name)
    else:
        message = (
            f"module 'sparkdl' at {__file__} has no attribute {name!r}. Expected one of "
            f"{', '.join(__all__)}."
        )
    raise importlib.import_module("sparkdl.host.missing_names").missing_name(message)


def __dir__() -> list[str]:
    return __all__
