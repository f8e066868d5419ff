"""Measure which share of the slots' time a training and searches use in a night together.

The training has 2 workers, or 8 workers, or 2 to 8 workers: `num_workers=(2, 8), elastic=True`. Two
parts:

- simulated: five nights of eight hours on eight slots. Four searches of 24 trials, of 3 to 20
  minutes each, come at different times; the training lasts all night. The rules by which the gang
  grows and gives slots back, and by which searches submit trials, are those of the package.
- real: some minutes on four executors of this host, with 1, with 4, and with 1 to 4 workers. The
  work of a step and of a trial is to wait, so that two cores are enough.

A slot counts as used while a trial runs in it, or a rank that makes steps. The aim is to use at
least 90 percent in the simulated nights, while the trials wait at most a minute longer for their
slots than beside the small gang.

    python benchmarks/growing.py

It prints a table, then one JSON document.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

# Before Spark is loaded: nothing here needs another host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.machine import machine
from lib.night import Night, simulate

from sparkdl import experiment
from sparkdl.errors import RunStoppedError

BOUNDS = {"2 workers": (2, 2), "8 workers": (8, 8), "2 to 8 workers": (2, 8)}
REAL_BOUNDS = {"1 worker": (1, 1), "4 workers": (4, 4), "1 to 4 workers": (1, 4)}
SMALL, LARGE, GROWING = BOUNDS
AIM_USED, AIM_WAIT_S = 0.9, 60.0

SLOTS, STEP_S = 4, 0.25
TRAINING_S = 5.0
# The time of each search, the number of its trials, and their seconds.
SEARCHES = ((0.0, 4, 20.0), (110.0, 6, 15.0))

Row = dict[str, Any]


def simulated_part(nights: int) -> dict[str, Row]:
    """Return the mean over some nights, of each contender."""
    found = {}
    for name, bounds in BOUNDS.items():
        rows = [simulate(Night.of_seed(seed), *bounds) for seed in range(nights)]
        found[name] = {key: round(mean(row[key] for row in rows), 4) for key in rows[0]}
        print(f"{name}: {found[name]}", file=sys.stderr)
    return found


def training(folder: str, seconds: float) -> Any:
    """Return a function that trains until a time; each rank notes its steps."""
    step_s = STEP_S

    def train() -> None:
        import keras
        import numpy as np

        from sparkdl import context, distribute

        class Work(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                time.sleep(step_s)
                with open(Path(folder, f"{context.rank}-{os.getpid()}.txt"), "a") as file:
                    file.write(f"{time.time()}\n")

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if any(distribute.allgather_object(time.time() > seconds)):
                    self.model.stop_training = True

        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(distribute.optimizer("sgd"), "mse")
        x, y = np.ones((32, 4)), np.ones((32, 1))
        model.fit(x, y, batch_size=4, epochs=10**6, verbose=0, callbacks=[Work()])

    return train


def waiting(seconds: float) -> Any:
    """Return the function of a trial."""

    def trial(number: int) -> int:
        time.sleep(seconds)
        return number

    return trial


def real_row(bounds: tuple[int, int], lasting_s: float, root: str) -> Row:
    """Return how the slots were used in some minutes."""
    begin_s = time.time()
    end_s = begin_s + lasting_s
    folder = Path(root, "steps")
    folder.mkdir()
    least, most = bounds
    options: Row = {"root": root, "progress": False, "wait": False}
    searches = list(SEARCHES)
    runs, trained = [], None
    while time.time() < end_s:
        now = time.time() - begin_s
        if searches and now >= searches[0][0]:
            _, count, seconds = searches.pop(0)
            runs.append(experiment.launch(waiting(seconds), {"number": range(count)}, **options))
        if trained is None and now >= TRAINING_S:
            num_workers = least if least == most else bounds
            trained = experiment.allreduce(
                training(str(folder), end_s), num_workers=num_workers, elastic=True, **options
            )
        time.sleep(0.2)
    trials = [trial for run in runs for trial in run.trials]
    complete = [trial for trial in trials if trial.state == "COMPLETE"]
    trial_s = sum(trial.usage.running_s for trial in complete)
    for run in runs:
        end(run)
    if trained:
        trained.wait()
    steps = [float(at) for path in folder.iterdir() for at in path.read_text().split()]
    rank_s = STEP_S * sum(at <= end_s for at in steps)
    return {
        "used": round((trial_s + rank_s) / (SLOTS * lasting_s), 4),
        "by_training": round(rank_s / (SLOTS * lasting_s), 4),
        "trials_complete": len(complete) / len(trials),
        "wait_s": round(mean(trial.usage.queued_s for trial in complete), 1) if complete else None,
        "resizes": trained.resizes if trained else [],
    }


def end(run: Any) -> None:
    """Cancel a run, and wait for its end."""
    try:
        run.cancel()
        run.wait()
    except RunStoppedError:
        return


def real_part(lasting_s: float) -> dict[str, Row]:
    """Return the use of the slots of a real application, of each contender."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local-cluster[{SLOTS},1,1024]").appName("growing")
    for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(key, "false")
    spark = builder.config("spark.executor.memory", "1g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    found = {}
    try:
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
            # The executors start, and the fork servers import TensorFlow.
            warm = Path(root, "warm")
            Path(warm, "steps").mkdir(parents=True)
            train = training(str(warm / "steps"), 0.0)
            experiment.allreduce(train, num_workers=SLOTS, root=str(warm), progress=False)
            for name, bounds in REAL_BOUNDS.items():
                found[name] = real_row(bounds, lasting_s, str(make(Path(root, name))))
                print(f"{name}: {json.dumps(found[name])}", file=sys.stderr)
    finally:
        spark.stop()
    return found


def make(folder: Path) -> Path:
    """Create a folder, and return it."""
    folder.mkdir()
    return folder


def table(title: str, rows: dict[str, Row], keys: Iterable[str]) -> str:
    """Return the values of each contender as text."""
    lines = [f"{title:16}" + "".join(f"{key:>17}" for key in keys)]
    lines += [
        f"{name:16}" + "".join(f"{row[key]!s:>17}" for key in keys) for name, row in rows.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure both parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nights", type=int, default=5, help="simulated nights")
    parser.add_argument("--real-s", type=float, default=220.0, help="seconds of a real contender")
    parser.add_argument("--quick", action="store_true", help="one simulated night, nothing real")
    options = parser.parse_args()
    about = machine()
    simulated = simulated_part(1 if options.quick else options.nights)
    real = {} if options.quick else real_part(options.real_s)
    print(table("simulated", simulated, ("used", "by_training", "trials_begun", "wait_s")))
    if real:
        print(table("real", real, ("used", "by_training", "trials_complete", "wait_s")))
    used = simulated[GROWING]["used"]
    longer_s = simulated[GROWING]["wait_s"] - simulated[SMALL]["wait_s"]
    aims = {
        "share used": {"value": used, "aim": AIM_USED, "met": used >= AIM_USED},
        "seconds longer": {"value": longer_s, "aim": AIM_WAIT_S, "met": longer_s <= AIM_WAIT_S},
    }
    print(json.dumps({"machine": about, "simulated": simulated, "real": real, "aims": aims}))


if __name__ == "__main__":
    main()
