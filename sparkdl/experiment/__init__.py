"""The verbs that users call (runs on the driver).

```python
from sparkdl import experiment

run = experiment.launch(train, {"learning_rate": [0.001, 0.01], "dropout": [0.5, 0.6]},
                        metric="accuracy")
print(run)
```
"""

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
