"""sparkdl for `trial_overhead.py`, in a Spark session that sparkdl starts itself.

Spark's Python workers are forked from sparkdl's own daemon there, see
`sparkdl.cluster.worker_daemon`; in a session of the user, from Spark's.

The program writes JSON lines: first the versions of its packages, then the seconds of each
contender for every round number that it reads. It ends when its standard input is closed.
"""

import json
import os
import sys
import tempfile
import time
from functools import partial

from lib.floor import SLEEP_S, SLOTS, sleep_in_one_job, time_round
from lib.machine import machine
from lib.peer import own_stdout
from pyspark.sql import SparkSession

from sparkdl import experiment

OPTIONS = f"--master local[{SLOTS}] --conf spark.ui.enabled=false pyspark-shell"


# A trial imports the module of its function, so that this one is not in `trial_overhead`.
def sleep(i: int) -> None:
    """Run a trial: sleep."""
    time.sleep(SLEEP_S)


def run_sleeps(root: str, trials: int) -> None:
    """Run sparkdl."""
    run = experiment.launch(sleep, {"i": list(range(trials))}, root=root, progress=False)
    run.raise_for_failures()


def main() -> None:
    """Measure a round for each line of standard input."""
    pipe = own_stdout()
    os.environ["PYSPARK_SUBMIT_ARGS"] = OPTIONS
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
        run_sleeps(root, SLOTS)
        spark = SparkSession.active()
        contenders = {
            "floor": partial(sleep_in_one_job, spark),
            "sparkdl, own session": partial(run_sleeps, root),
        }
        print(json.dumps(machine("pyarrow")["versions"]), file=pipe)
        for line in sys.stdin:
            print(json.dumps(time_round(contenders, int(line))), file=pipe)
        spark.stop()


if __name__ == "__main__":
    main()
