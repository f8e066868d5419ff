"""What a benchmark ran on."""

import importlib.metadata
import os
import platform
from typing import Any

__all__ = ["machine"]


def machine(*packages: str) -> dict[str, Any]:
    """Cores, versions, and the load, which says whether the machine was its own.

    Args:
        *packages: whose versions matter, beside those that every benchmark uses.
    """
    names = ("sparkdl", "pyspark", "tensorflow", "keras", *packages)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": os.getloadavg()[0],
        "versions": {name: importlib.metadata.version(name) for name in names},
    }
