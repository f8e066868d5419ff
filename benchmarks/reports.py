"""Measure what a report after each batch costs a trial, against a trial that reports nothing.

A search of maggy on one slot (`local[1]`), whose trials differ in one thing only: half of them
report after each of their 40,000 steps. Pairs of trials take turns, and the result is the ratio of
the times of a pair, which cancels the speed of the machine. The median rule hears the reports.

- spin: a step is a fixed loop of about a millisecond, and `reporter.broadcast`
- Keras: a step is a batch of `fit` of a small network, and the callback `KerasBatchEnd`

The driver and Spark share the cores with the trials, so that what they do with the reports counts,
too. Times are measured within the training function: the wall clock, and the CPU time of the
process. On a busy machine only the latter means something.

Run it with `python benchmarks/reports.py`, on a quiet machine. The program prints a table, then one
JSON document, and removes its files.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from statistics import median
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from lib.machine import machine

from sparkdl import experiment as verbs
from sparkdl.maggy import Searchspace, experiment

STEPS = 40_000
STEP_S = 0.001
AIM = 1.02


def spin(reports: int, pair: int, reporter: Any, steps: int, size: int) -> dict[str, float]:
    """Run a trial whose steps are loops of Python."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for step in range(steps):
        total = sum(range(size))
        if reports:
            reporter.broadcast(1.0 / (total + 1), step)
    return _times(wall_s, cpu_s)


def fit(reports: int, pair: int, reporter: Any, steps: int) -> dict[str, float]:
    """Run a trial whose steps are batches of Keras."""
    import keras
    import numpy

    from sparkdl.maggy.callbacks import KerasBatchEnd

    units = keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)
    model = keras.Sequential([keras.layers.Input((64,)), *units])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    x, y = numpy.random.rand(32 * steps // 10, 64), numpy.random.randint(10, size=32 * steps // 10)
    model.fit(x[:320], y[:320], verbose=0)
    callbacks = [KerasBatchEnd(reporter, "accuracy")] if reports else []
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    model.fit(x, y, batch_size=32, epochs=10, callbacks=callbacks, verbose=0)
    return _times(wall_s, cpu_s)


def _times(wall_s: float, cpu_s: float) -> dict[str, float]:
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return {"metric": 1.0, "wall_s": wall_s, "cpu_s": cpu_s}


def calibrated() -> int:
    """Return the size of a loop that takes about `STEP_S`."""
    begun = time.process_time()
    for _ in range(200):
        sum(range(20_000))
    return round(20_000 * STEP_S * 200 / (time.process_time() - begun))


def measure(train: Any, fixed: dict[str, int], pairs: int) -> dict[str, Any]:
    """Run pairs of trials, and return their times and ratios."""
    space = Searchspace(
        pair=("DISCRETE", [*range(pairs)]),
        reports=("DISCRETE", [0, 1]),
        **{name: ("DISCRETE", [value]) for name, value in fixed.items()},
    )
    result = experiment.lagom(train, searchspace=space, optimizer="gridsearch", es_min=2)
    trials = {(t.params["pair"], t.params["reports"]): t for t in verbs.load(result["path"]).trials}
    row: dict[str, Any] = {"steps": fixed["steps"]}
    for name in ("wall_s", "cpu_s"):
        times = [[trials[pair, way].outputs[name] for way in (0, 1)] for pair in range(pairs)]
        row[name] = [[round(value, 3) for value in pair] for pair in times]
        row[f"{name[:-2]}_ratio"] = round(median(b / a for a, b in times), 4)
    silent = median(a for a, _ in row["wall_s"])
    row["ms_per_step"] = round(1000 * silent / fixed["steps"], 3)
    row["reporting_s"] = [round(trials[pair, 1].usage.reporting_s, 3) for pair in range(pairs)]
    return row


def main() -> None:
    """Measure, print the table and the JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", choices=("spin", "Keras"))
    given = parser.parse_args()
    from pyspark.sql import SparkSession

    result: dict[str, Any] = {"machine": machine(), "aim": AIM, "rows": {}}
    with tempfile.TemporaryDirectory() as root:
        os.environ["SPARKDL_ROOT"] = root
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        kinds = {"spin": (spin, {"size": calibrated()}), "Keras": (fit, {})}
        for name, (train, more) in kinds.items():
            if given.only in (None, name):
                fixed = {"steps": given.steps, **more}
                result["rows"][name] = measure(train, fixed, given.pairs)
        spark.stop()
    result["machine"]["load_after"] = os.getloadavg()[0]
    print(f"{'':<8}{'steps':>8}{'ms/step':>9}{'wall':>8}{'CPU':>8}   with reports / without")
    for name, row in result["rows"].items():
        ratios = f"{row['wall_ratio']:>8.3f}{row['cpu_ratio']:>8.3f}"
        print(f"{name:<8}{row['steps']:>8}{row['ms_per_step']:>9.2f}{ratios}")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
