"""Spark's TorchDistributor for `torch_ddp.py`, which starts it in an environment of its own.

The arguments are the folder of the rows. The program writes JSON lines: first the versions of its
packages, then the times of a training for each line that it reads.
"""

import importlib.metadata
import json
import sys
import tempfile
import time

from lib.ddp import RANKS, result
from lib.peer import own_stdout
from lib.start import session
from pyspark.ml.torch.distributor import TorchDistributor


def train(data: str, out: str) -> None:
    """Train on the rows that each rank holds in memory: the launcher has no reader."""
    import torch.distributed
    from lib import ddp

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    ddp.train(out, rank, ddp.rows_in_memory(data, rank))
    torch.distributed.destroy_process_group()


def main() -> None:
    """Measure a training for each line of standard input."""
    pipe, data = own_stdout(), sys.argv[1]
    spark = session()
    packages = ("pyspark", "torch")
    print(json.dumps({name: importlib.metadata.version(name) for name in packages}), file=pipe)
    for _ in sys.stdin:
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as out:
            called_s = time.time()
            TorchDistributor(RANKS, local_mode=False, use_gpu=False).run(train, data, out)
            print(json.dumps(result(out, called_s)), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main()
