"""joblib-spark and hyperopt for `trial_overhead.py`, in an environment of their own.

The program writes JSON lines: first the versions of its packages, then the seconds of each
contender for every round number that it reads. It ends when its standard input is closed.
"""

import importlib.metadata
import json
import sys
import time
from functools import partial

import joblib
import numpy
from hyperopt import SparkTrials, fmin, hp, rand
from joblibspark import register_spark
from lib.floor import SLEEP_S, SLOTS, Contenders, session, sleep_in_one_job, time_round
from lib.peer import own_stdout
from pyspark.sql import SparkSession


def sleep(_: float) -> float:
    """Run one trial: sleep."""
    time.sleep(SLEEP_S)
    return 0.0


def joblib_spark(trials: int) -> None:
    """Run a Spark job per trial from the threads of joblib."""
    with joblib.parallel_config(backend="spark", n_jobs=SLOTS):
        # Batches of one: by default joblib puts several short trials into one Spark job.
        joblib.Parallel(batch_size=1)(joblib.delayed(time.sleep)(SLEEP_S) for _ in range(trials))


def spark_trials(spark: SparkSession, trials: int) -> None:
    """Run hyperopt's random search, a Spark job per trial."""
    fmin(
        sleep,
        hp.uniform("x", 0, 1),
        algo=rand.suggest,
        max_evals=trials,
        trials=SparkTrials(parallelism=SLOTS, spark_session=spark),
        rstate=numpy.random.default_rng(0),
        verbose=False,
        show_progressbar=False,
    )


def contenders(spark: SparkSession) -> Contenders:
    """Return the floor of this process, then the peers, by name."""
    return {
        "floor": partial(sleep_in_one_job, spark),
        "joblib-spark": joblib_spark,
        "hyperopt": partial(spark_trials, spark),
    }


def main() -> None:
    """Measure a round for each line of standard input."""
    pipe = own_stdout()
    register_spark()
    spark = session("peers")
    running = contenders(spark)
    packages = ("pyspark", "joblib", "joblibspark", "hyperopt")
    print(json.dumps({name: importlib.metadata.version(name) for name in packages}), file=pipe)
    for line in sys.stdin:
        print(json.dumps(time_round(running, int(line))), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main()
