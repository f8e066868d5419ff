"""The optimizers of maggy: how a search chooses the hyperparameters of its trials (driver)."""

from typing import Any

from sparkdl.maggy.optimizer.asha import Asha
from sparkdl.maggy.optimizer.optimizers import (
    AbstractOptimizer,
    GridSearch,
    RandomSearch,
    SingleRun,
)
from sparkdl.maggy.refusals import refuse

__all__ = ["AbstractOptimizer", "Asha", "GridSearch", "RandomSearch", "SingleRun"]


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, __all__)
