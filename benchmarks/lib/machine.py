"""Describe the machine that a benchmark ran on."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from sparkdl._version import __version__

__all__ = ["machine", "resident_mb"]


def machine(*packages: str) -> dict[str, Any]:
    """Return cores, versions and load; a high load means that others used the machine.

    Args:
        *packages: names of packages whose versions matter, besides those of every benchmark.
    """
    names = ("pyspark", "tensorflow", "keras", *packages)
    versions = {name: importlib.metadata.version(name) for name in names}
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": os.getloadavg()[0],
        "versions": {"sparkdl": __version__, **versions},
    }


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB, see proc(5)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
