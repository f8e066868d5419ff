"""Runs on each executor host of a local master, as the daemon that forks Spark's Python workers.

Spark's own daemon, `pyspark.daemon`, imports little, so that each Python worker imports pyspark,
pyarrow, pandas and sparkdl again, which takes half a second of CPU time. This daemon imports them
once, before it forks. It is chosen by a setting of Spark:

```
spark.python.daemon.module  sparkdl.cluster.worker_daemon
```

Where sparkdl cannot be imported, no Python worker starts with this setting. So sparkdl sets it only
in sessions that it creates itself, on a local master, and only if it is installed, see `settings`.
"""

import contextlib
import gc
import importlib
import os
import site
import sys
from collections.abc import Callable
from importlib import metadata

from sparkdl._version import DISTRIBUTION

SETTING = "spark.python.daemon.module"
MODULE = "sparkdl.cluster.worker_daemon"

# What Spark's workers import for tasks with Arrow, and for the tasks of trials and gangs.
MODULES = (
    "pyspark.worker",
    "pyarrow",
    "pandas",
    "sparkdl.cluster.preflight",
    "sparkdl.cluster.trial_task",
    "sparkdl.cluster.gang.task",
)

# The settings of jemalloc in pyarrow, whose thread in the background would begin at the import.
_JEMALLOC = "JE_ARROW_MALLOC_CONF"


def settings(conf: Callable[[str], str | None]) -> dict[str, str]:
    """Return the settings of a new Spark session that choose this daemon; empty where it may fail.

    Args:
        conf: returns a setting of Spark that is known before the session starts, or None.

    Example:
        >>> settings({"spark.master": "yarn"}.get)
        {}
    """
    is_local = (conf("spark.master") or "local[*]").startswith("local")
    python = conf("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
    if not is_local or python != sys.executable or conf(SETTING) or not _is_installed():
        return {}
    return {SETTING: MODULE}


def _is_installed() -> bool:
    """Return True if a new process of this Python can import sparkdl, whatever its folder is."""
    # Not in all of `sys.path`, to which a program can add folders that another process lacks.
    return any(metadata.distributions(name=DISTRIBUTION, path=site.getsitepackages()))


def preload() -> None:
    """Import what the workers need, unless that starts a thread, which the workers would not have.

    The library under numpy starts no thread where Spark gives its workers one thread each, as it
    does unless a task has several CPU cores.
    """
    if os.environ.get("OMP_NUM_THREADS") != "1":
        return
    is_set = _JEMALLOC in os.environ
    os.environ.setdefault(_JEMALLOC, "background_thread:false")
    # Any error, such as those of a pandas that does not fit its numpy: the task that needs a module
    # says so. Spark reads the port of the daemon from the standard output, so that nothing else may
    # be printed there.
    with contextlib.suppress(Exception), contextlib.redirect_stdout(sys.stderr):
        for name in MODULES:
            importlib.import_module(name)
        importlib.import_module("sparkdl.runs.provenance").versions()  # They are read once.
    if not is_set:
        del os.environ[_JEMALLOC]
    _seed_workers()
    gc.collect()
    gc.freeze()  # Memory that the workers share stays shared.


def _seed_workers() -> None:
    """Give each worker random numbers of its own, as if it had imported numpy itself.

    Python's `random` does so for every fork; numpy does not.
    """
    if "numpy" not in sys.modules:
        return
    import numpy as np

    daemon = os.getpid()

    def seed() -> None:
        # What a worker forks itself keeps the seeds of the worker's program.
        if os.getppid() == daemon:
            np.random.seed()

    os.register_at_fork(after_in_child=seed)


if __name__ == "__main__":
    from pyspark.daemon import manager

    preload()
    manager()
