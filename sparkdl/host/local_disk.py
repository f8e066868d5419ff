"""Runs anywhere. The folder for temporary files of a process that Spark has started."""

import os
import tempfile
from pathlib import Path


def local_disk() -> Path:
    """Return the folder for this executor's temporary files, as configured for Spark.

    Without a writable folder of Spark it is the system's folder for temporary files.
    """
    for name in ("LOCAL_DIRS", "SPARK_LOCAL_DIRS"):  # YARN; standalone and Kubernetes.
        for folder in os.environ.get(name, "").split(","):
            if folder and os.access(folder, os.W_OK):
                return Path(folder)
    return Path(tempfile.gettempdir())
