"""MLflow's Spark study for `trial_overhead.py`, which starts it in an environment of its own.

The program writes JSON lines: first the versions of its packages, then the seconds of each
contender for every round number that it reads. The study and its trials are in a SQLite file, which
is MLflow's default without a tracking server.
"""

import importlib.metadata
import itertools
import json
import sys
import tempfile
import time
from functools import partial
from typing import Any

import mlflow
import optuna
from lib.floor import SLEEP_S, SLOTS, session, sleep_in_one_job, time_round
from lib.peer import own_stdout
from mlflow.optuna.storage import MlflowStorage
from mlflow.pyspark.optuna.study import MlflowSparkStudy


def make_objective() -> Any:
    """Return the objective. An inner function is pickled by value."""
    seconds = SLEEP_S

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        time.sleep(seconds)
        return x

    return objective


def main() -> None:
    """Measure a round for each line of standard input."""
    pipe = own_stdout()
    packages = ("pyspark", "mlflow", "optuna")
    versions = {name: importlib.metadata.version(name) for name in packages}
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        experiment_id = mlflow.create_experiment("trials", artifact_location=f"{folder}/artifacts")
        spark, numbers = session("peers"), itertools.count()

        def study(trials: int) -> None:
            # A study of the same name would be continued.
            storage = MlflowStorage(experiment_id=experiment_id)
            name = f"study-{next(numbers)}"
            studied = MlflowSparkStudy(name, storage, sampler=optuna.samplers.RandomSampler(0))
            studied.optimize(make_objective(), n_trials=trials, n_jobs=SLOTS)

        running = {"floor": partial(sleep_in_one_job, spark), "MLflow": study}
        print(json.dumps(versions), file=pipe)
        for line in sys.stdin:
            print(json.dumps(time_round(running, int(line))), file=pipe)
        spark.stop()


if __name__ == "__main__":
    main()
