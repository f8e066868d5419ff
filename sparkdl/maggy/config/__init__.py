"""The configurations of maggy 1.1 (driver)."""

from typing import Any

from sparkdl.maggy.config.configs import (
    AblationConfig,
    BaseConfig,
    HyperparameterOptConfig,
    LagomConfig,
)
from sparkdl.maggy.refusals import refuse

__all__ = ["AblationConfig", "BaseConfig", "HyperparameterOptConfig", "LagomConfig"]


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, __all__)
