"""Ray Train on Spark for `start.py`, which starts it in an environment of its own.

The program writes JSON lines: first the versions of its packages, then the seconds of a call for
each line that it reads. Ray's cluster on Spark is started before the first call, and stays.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Callable

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from lib.peer import own_stdout
from lib.ray_on_spark import ray_cluster
from lib.start import RANKS, measure, session
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def start(storage: str, function: Callable[[str], None], folder: str) -> None:
    """Run a function in the workers of a trainer."""
    trainer = DataParallelTrainer(
        lambda: function(folder),
        scaling_config=ScalingConfig(num_workers=RANKS),
        run_config=RunConfig(storage_path=storage),
    )
    trainer.fit()


def main() -> None:
    """Measure a call for each line of standard input."""
    pipe = own_stdout()
    spark = session()
    packages = ("pyspark", "ray")
    versions = {name: importlib.metadata.version(name) for name in packages}
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as storage, ray_cluster(RANKS):
        print(json.dumps(versions), file=pipe)
        for _ in sys.stdin:
            print(json.dumps(measure(lambda *call: start(storage, *call))), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main()
