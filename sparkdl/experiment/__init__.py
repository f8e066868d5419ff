"""The verbs that users call (runs on the driver).

```python
from sparkdl import experiment

run = experiment.launch(train, {"learning_rate": [0.001, 0.01], "dropout": [0.5, 0.6]},
                        metric="accuracy")
print(run)
```

A verb is imported when it is first used: reading runs needs no Spark.
"""

import importlib
from typing import TYPE_CHECKING, Any

import sparkdl.experiment.run_actions  # noqa: F401

if TYPE_CHECKING:
    from sparkdl.experiment.distributed import allreduce, horovod, mirrored, parameter_server
    from sparkdl.experiment.reproducing import replay, reproduce, try_one
    from sparkdl.experiment.saved_runs import compare, history, load, resume
    from sparkdl.experiment.trials import launch, search
    from sparkdl.inference.prediction import predict

__all__ = [
    "allreduce",
    "compare",
    "history",
    "horovod",
    "launch",
    "load",
    "mirrored",
    "parameter_server",
    "predict",
    "replay",
    "reproduce",
    "resume",
    "search",
    "try_one",
]

_MODULES = {
    "sparkdl.experiment.distributed": ("allreduce", "horovod", "mirrored", "parameter_server"),
    "sparkdl.experiment.reproducing": ("replay", "reproduce", "try_one"),
    "sparkdl.experiment.saved_runs": ("compare", "history", "load", "resume"),
    "sparkdl.experiment.trials": ("launch", "search"),
    "sparkdl.inference.prediction": ("predict",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(
        f"module 'sparkdl.experiment' has no attribute {name!r}. Expected one of "
        f"{', '.join(__all__)}."
    )


def __dir__() -> list[str]:
    return __all__
