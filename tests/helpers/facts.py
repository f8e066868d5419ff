"""The facts of healthy hosts, which tests change."""

from typing import Any

import pyspark

from sparkdl.doctor.facts import Facts
from sparkdl.doctor.root_probe import RootProbe

__all__ = ["PACKAGES", "executor", "facts", "probe"]

PACKAGES = {"python": "3.12.1", "tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.1.0"}


def facts(**changes: Any) -> Facts:
    """The facts of a healthy driver."""
    healthy: dict[str, Any] = {
        "host": "a",
        "process": 1,
        "folder": "/work",
        "user": "ann",
        "time_s": 1000.0,
        "packages": PACKAGES,
        "pyspark": pyspark.__version__,
        "open_files": (65536, 65536),
        "address_space_mb": None,
        "free_mb": {"/tmp": 50_000},
        "shared_memory_mb": 16_000,
        "gpus": [],
        "visible_gpus": None,
        "assigned_gpus": None,
        "held_gpus": {},
        "busy_gpus": [],
        "local_ip": None,
    }
    return Facts(**{**healthy, **changes})


def executor(host: str = "b", **changes: Any) -> Facts:
    """The facts of a healthy executor, with the same packages as the driver."""
    return facts(**{"host": host, "packages": {}, "root": probe(sees_driver=True), **changes})


def probe(**changes: Any) -> RootProbe:
    """The access to a healthy root."""
    return RootProbe(**{"seconds": {"write": 0.002, "read": 0.001, "delete": 0.001}, **changes})
