"""Ray Tune on Spark for `trial_overhead.py`, which starts it in an environment of its own.

The program writes JSON lines: first the versions of its packages, then the seconds of each
contender for every round number that it reads. Ray's cluster takes all slots of Spark, so that it
is started after the floor of a round, and shut down at the end of the round.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
import time
from functools import partial
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from lib.floor import SLEEP_S, SLOTS, session, sleep_in_one_job, time_round
from lib.peer import own_stdout
from lib.ray_on_spark import ray_cluster
from ray import tune


def make_trainable() -> Any:
    """Return the training function. An inner function is pickled by value."""
    seconds = SLEEP_S

    def train(config: dict[str, float]) -> dict[str, float]:
        time.sleep(seconds)
        return {"x": config["x"]}

    return tune.with_resources(train, {"cpu": 1})


def search(folder: str, reuse: bool, trials: int) -> None:
    """Run random search, with results in a local folder."""
    tuner = tune.Tuner(
        make_trainable(),
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            num_samples=trials, max_concurrent_trials=SLOTS, reuse_actors=reuse
        ),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    )
    results = tuner.fit()
    if results.errors or len(results) != trials:
        raise RuntimeError(f"{len(results)} trials of {trials}, errors: {results.errors[:1]}")


def main() -> None:
    """Measure a round for each line of standard input."""
    pipe = own_stdout()
    packages = ("pyspark", "ray")
    print(json.dumps({name: importlib.metadata.version(name) for name in packages}), file=pipe)
    spark = session("peers")
    for line in sys.stdin:
        seconds = time_round({"floor": partial(sleep_in_one_job, spark)}, int(line))
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
            begun = time.perf_counter()
            with ray_cluster(SLOTS):
                started_s = time.perf_counter() - begun
                running = {
                    "Ray Tune": partial(search, folder, False),
                    "Ray Tune, reused": partial(search, folder, True),
                }
                seconds |= {"cluster_start": started_s, **time_round(running, int(line))}
        print(json.dumps(seconds), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main()
