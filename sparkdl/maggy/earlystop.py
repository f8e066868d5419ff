"""Runs on the driver (pure). The rules by which maggy stops trials early."""

from typing import Any

from sparkdl.maggy.refusals import refuse

__all__ = ["MedianStoppingRule", "NoStoppingRule"]


class MedianStoppingRule:
    """Stops a trial that is worse than the median of the others, as `es_policy="median"`."""


class NoStoppingRule:
    """Stops no trial, as `es_policy="none"`."""


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, __all__)
