"""The verbs that users call (runs on the driver).

```python
from sparkdl import experiment

run = experiment.launch(train, {"learning_rate": [0.001, 0.01], "dropout": [0.5, 0.6]},
                        metric="accuracy")
print(run)
```

A verb is imported when it is first used: reading runs needs no Spark.
"""

from typing import TYPE_CHECKING

import sparkdl.experiment.run_actions  # noqa: F401
from sparkdl.host.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparkdl.experiment.distributed import allreduce, horovod, mirrored, parameter_server
    from sparkdl.experiment.reproducing import replay, reproduce, try_one
    from sparkdl.experiment.saved_runs import compare, history, load, resume
    from sparkdl.experiment.trials import launch, search
    from sparkdl.experiment.verifying import verify
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
    "verify",
]

__getattr__ = lazy_names(
    "sparkdl.experiment",
    {
        "sparkdl.experiment.distributed": "allreduce horovod mirrored parameter_server",
        "sparkdl.experiment.reproducing": "replay reproduce try_one",
        "sparkdl.experiment.saved_runs": "compare history load resume",
        "sparkdl.experiment.trials": "launch search",
        "sparkdl.experiment.verifying": "verify",
        "sparkdl.inference.prediction": "predict",
    },
    __all__,
)


def __dir__() -> list[str]:
    return __all__
