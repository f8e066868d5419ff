"""Ray Train and Ray Data on Spark for `torch_ddp.py`, in an environment of their own.

The arguments are the folder of the rows. The program writes JSON lines: first the versions of its
packages, then the times of a training for each line that it reads. Ray's cluster on Spark is
started before the first call, and stays; the trainer's workers leave a slot for Ray Data's tasks.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
import time

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray.data
from lib.ddp import BATCH, RANKS, result
from lib.peer import own_stdout
from lib.ray_on_spark import ray_cluster
from lib.start import session
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config: dict[str, str]) -> None:
    """Train on the share of the rows that Ray Data sends to this rank."""
    import ray.train
    from lib import ddp

    shard = ray.train.get_dataset_shard("train")

    def batches(epoch: int) -> ddp.Batches:
        mixed = shard.iter_torch_batches(
            batch_size=BATCH, drop_last=True, local_shuffle_buffer_size=16 * BATCH
        )
        return ((batch["x"], batch["y"]) for batch in mixed)

    ddp.train(config["out"], ray.train.get_context().get_world_rank(), batches)


def run(data: str, out: str, storage: str) -> None:
    """Run the training in the workers of a trainer."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"out": out},
        datasets={"train": ray.data.read_parquet(data)},
        scaling_config=ScalingConfig(num_workers=RANKS, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=storage),
    )
    trainer.fit()


def main() -> None:
    """Measure a training for each line of standard input."""
    pipe, data = own_stdout(), sys.argv[1]
    spark = session()
    packages = ("pyspark", "ray", "torch")
    versions = {name: importlib.metadata.version(name) for name in packages}
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as storage, ray_cluster(RANKS):
        print(json.dumps(versions), file=pipe)
        for _ in sys.stdin:
            with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as out:
                called_s = time.time()
                run(data, out, storage)
                print(json.dumps(result(out, called_s)), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main()
