"""Start Spark sessions for tests."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ["start_gpu_session", "start_session"]


def start_session(master: str, **conf: str) -> SparkSession:
    """A session of this master, after the one before has ended."""
    if active := SparkSession.getActiveSession():
        active.stop()
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for key, value in conf.items():
        builder = builder.config(key.replace("__", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def start_gpu_session(master: str, gpus: int, folder: Path) -> SparkSession:
    """Executors that each think that they have so many GPUs, and give each task one of them."""
    script = folder / "discover.sh"
    found = json.dumps({"name": "gpu", "addresses": [str(i) for i in range(gpus)]})
    script.write_text(f"#!/bin/sh\necho '{found}'\n")
    script.chmod(0o755)
    return start_session(
        master,
        spark__executor__memory="1g",
        spark__worker__resource__gpu__amount=str(gpus),
        spark__worker__resource__gpu__discoveryScript=str(script),
        spark__executor__resource__gpu__amount=str(gpus),
        spark__task__resource__gpu__amount="1",
    )
