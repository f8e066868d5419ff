"""The configurations of maggy 1.0 (driver)."""

from typing import Any

from sparkdl.maggy.config.configs import AblationConfig, LagomConfig, OptimizationConfig
from sparkdl.maggy.refusals import refuse

__all__ = ["AblationConfig", "LagomConfig", "OptimizationConfig"]


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, __all__)
