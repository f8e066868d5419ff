"""The API of TensorFlowOnSpark, on the driver and in nodes. Programs change only the import line.

```python
from sparkdl.tfos import TFCluster, TFNode
```

Modules, functions, arguments and defaults are those of TensorFlowOnSpark 2.2.5
(https://github.com/yahoo/TensorFlowOnSpark). Each module is imported when it is first used.
"""

import importlib
from types import ModuleType

__all__ = [
    "TFCluster",
    "TFManager",
    "TFNode",
    "TFParallel",
    "TFSparkNode",
    "compat",
    "dfutil",
    "gpu_info",
    "marker",
    "pipeline",
    "reservation",
    "util",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"sparkdl.tfos.{name}")
    raise AttributeError(
        f"module 'sparkdl.tfos' has no attribute {name!r}. Expected one of {', '.join(__all__)}."
    )


def __dir__() -> list[str]:
    return __all__
