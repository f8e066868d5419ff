"""The API of HopsML, on the driver and in trials. Programs change only their import lines.

```python
from sparkdl.hops import experiment, tensorboard, devices, hdfs, model, serving, kafka
```

Modules, functions, arguments and defaults are those of hops-util-py 2.5 and, where 2.5 has dropped
a name, of 1.0 (https://github.com/logicalclocks/hops-util-py). Each module is imported when it is
first used.
"""

import importlib
from types import ModuleType

__all__ = ["devices", "experiment", "hdfs", "kafka", "model", "serving", "tensorboard", "util"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"sparkdl.hops.{name}")
    raise AttributeError(
        f"module 'sparkdl.hops' has no attribute {name!r}. Expected one of {', '.join(__all__)}."
    )


def __dir__() -> list[str]:
    return __all__
