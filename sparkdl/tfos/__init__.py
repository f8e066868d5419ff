"""The API of TensorFlowOnSpark, on the driver and in nodes. Programs change only the import line.

```python
from sparkdl.tfos import TFCluster, TFNode
```

Modules, functions, arguments and defaults are those of TensorFlowOnSpark 2.2.5
(https://github.com/yahoo/TensorFlowOnSpark). Each module is imported when it is first used.
"""

from sparkdl.tfos.absent_names import absent_names

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


__getattr__ = absent_names(__name__, __all__)


def __dir__() -> list[str]:
    return __all__
