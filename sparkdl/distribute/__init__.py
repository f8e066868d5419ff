"""Runs in the training process. Train one model with many processes.

Most programs need only `distribute.optimizer(...)` in `compile`, or `distribute.strategy()`.
Importing this package loads no framework. The functions are imported when they are first used: the
driver needs none of them.
"""

from typing import TYPE_CHECKING

from sparkdl.host.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparkdl.distribute.collectives import (
        allgather,
        allgather_object,
        allreduce,
        alltoall,
        barrier,
        broadcast,
        broadcast_object,
        broadcast_variables,
        mean,
        reduce_scatter,
    )
    from sparkdl.distribute.groups import group
    from sparkdl.distribute.learning_rate import scale_learning_rate, warmed_up
    from sparkdl.distribute.optimizers import gradient_tape, load_model, optimizer
    from sparkdl.distribute.strategies import strategy
    from sparkdl.distribute.tf_server import serve

__all__ = [
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "gradient_tape",
    "group",
    "load_model",
    "mean",
    "optimizer",
    "reduce_scatter",
    "scale_learning_rate",
    "serve",
    "strategy",
    "warmed_up",
]

__getattr__ = lazy_names(
    "sparkdl.distribute",
    {
        "sparkdl.distribute.collectives": (
            "allgather allgather_object allreduce alltoall barrier broadcast broadcast_object "
            "broadcast_variables mean reduce_scatter"
        ),
        "sparkdl.distribute.groups": "group",
        "sparkdl.distribute.learning_rate": "scale_learning_rate warmed_up",
        "sparkdl.distribute.optimizers": "gradient_tape load_model optimizer",
        "sparkdl.distribute.strategies": "strategy",
        "sparkdl.distribute.tf_server": "serve",
    },
    __all__,
)


def __dir__() -> list[str]:
    return __all__
