"""One model, many processes (runs in P; importing it loads no framework).

`distribute.optimizer(...)` in `compile`, or `distribute.strategy()`, is all that most need.
"""

from sparkdl.distribute.collectives import (
    allgather,
    allgather_object,
    allreduce,
    barrier,
    broadcast,
    broadcast_object,
    broadcast_variables,
    mean,
    reduce_scatter,
)
from sparkdl.distribute.optimizers import gradient_tape, optimizer
from sparkdl.distribute.rates import scale_learning_rate, warmed_up
from sparkdl.distribute.serving import serve
from sparkdl.distribute.strategies import strategy

__all__ = [
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "gradient_tape",
    "mean",
    "optimizer",
    "reduce_scatter",
    "scale_learning_rate",
    "serve",
    "strategy",
    "warmed_up",
]
