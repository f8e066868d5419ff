"""Spark's TorchDistributor for `start.py`, which starts it in an environment of its own.

The program writes JSON lines: first the versions of its packages, then the seconds of a call for
each line that it reads.
"""

import importlib.metadata
import json
import sys
from collections.abc import Callable

from lib.peer import own_stdout
from lib.start import RANKS, measure, session
from pyspark.ml.torch.distributor import TorchDistributor


def start(function: Callable[[str], None], folder: str) -> None:
    """Run a function in the processes that torchrun starts in the tasks of a barrier stage."""
    TorchDistributor(RANKS, local_mode=False, use_gpu=False).run(function, folder)


def main() -> None:
    """Measure a call for each line of standard input."""
    pipe = own_stdout()
    spark = session()
    packages = ("pyspark", "torch")
    print(json.dumps({name: importlib.metadata.version(name) for name in packages}), file=pipe)
    for _ in sys.stdin:
        print(json.dumps(measure(start)), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main()
