"""The API of HopsML, on the driver and in trials. Programs change only their import lines.

```python
from sparkdl.hops import experiment, tensorboard, devices, hdfs, model, serving, kafka
```

Modules, functions, arguments and defaults are those of hops-util-py 2.5 and, where 2.5 has dropped
a name, of 1.0 (https://github.com/logicalclocks/hops-util-py). Each module is imported when it is
first used.
"""

from sparkdl.hops.absent_names import absent_names

__all__ = [
    "devices",
    "experiment",
    "hdfs",
    "kafka",
    "model",
    "numpy_helper",
    "pandas_helper",
    "serving",
    "tensorboard",
    "util",
]

__getattr__ = absent_names(__name__, __all__)


def __dir__() -> list[str]:
    return __all__
