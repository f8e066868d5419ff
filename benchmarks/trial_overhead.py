"""Measure the overhead of a trial, against plain Spark and against peers, in one run.

The benchmark has two parts.

1. 40 trials that sleep 0.2 s, on embedded Spark with two slots (`local[2]`), so ideally 4 s:
   - floor: one plain Spark job of 40 tasks, each sleeping; no process, no file, no trial
   - sparkdl: `experiment.launch`, a fresh process and a folder for each trial, in a session of the
     user and, in a program of its own, in one that sparkdl has started
   - joblib-spark: `joblib.Parallel` on its `spark` backend, a Spark job for each trial
   - hyperopt: `fmin` with `SparkTrials(parallelism=2)`, a Spark job for each trial
   - MLflow: its `MlflowSparkStudy`, a Spark job of as many tasks as trials
   - Ray Tune: in a cluster of `setup_ray_cluster` on the two slots, with a process for each trial,
     and with trials that share processes

   The contenders take turns in several rounds, each after a small call to warm up. The result is
   the ratio to the floor of the same round and process, which cancels the speed of the machine.
   The start of Ray's cluster is not part of it, and is given on its own.

2. Trials of a tiny Keras model in a warm Spark application, with and without the fork server: the
   time from the start of the Spark task to the first line of the function, and to the end of the
   trial.

Run it with `make bench`, or `python benchmarks/trial_overhead.py --rounds 3`. The program prints a
table, then one JSON document, and removes its files. Each aim is reported as met or not; the exit
code does not depend on the aims.

The peers need environments of their own, and are left out without them:

    for name in trials mlflow ray; do benchmarks/peers/environment.sh $name; done
    python benchmarks/trial_overhead.py
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.floor import (
    IDEAL_S,
    SLEEP_S,
    SLOTS,
    TRIALS,
    session,
    sleep_in_one_job,
    time_round,
)
from lib.machine import machine
from lib.peer import Peer, add_option, started

from sparkdl import experiment
from sparkdl.runs import Trial

KERAS_TRIALS = 6
# The contenders of each environment.
OWN = "sparkdl, own session"
PEERS = {
    "session": (OWN,),
    "trials": ("joblib-spark", "hyperopt"),
    "mlflow": ("MLflow",),
    "ray": ("Ray Tune", "Ray Tune, reused"),
}
PROGRAM = "peers/trial_overhead_{}.py"
AIM_RATIO = 1.1
AIM_STARTING_S = 0.1

Rounds = list[dict[str, float]]
Row = dict[str, Any]


def sleep(i: int) -> None:
    """Run a trial of the first part: sleep."""
    time.sleep(SLEEP_S)


def fit(i: int) -> float:
    """Run a trial of the second part: train a network of 18 weights for one step."""
    import keras
    import numpy

    model = keras.Sequential([keras.layers.Input(shape=(8,)), keras.layers.Dense(2)])
    model.compile(optimizer="sgd", loss="mse")
    x, y = numpy.ones((4, 8)), numpy.ones((4, 2))
    return float(model.fit(x, y, batch_size=4, epochs=1, verbose=0).history["loss"][0])


# ---- measuring


def run_sleeps(spark: Any, root: str, trials: int) -> None:
    """Run sparkdl in the first part."""
    args = {"i": list(range(trials))}
    run = experiment.launch(sleep, args, spark=spark, root=root, progress=False)
    run.raise_for_failures()


def run_fits(spark: Any, root: str, trials: int, fork_server: bool) -> list[Trial]:
    """Run the trials of the second part; return them."""
    with environment("SPARKDL_FORK_SERVER", "1" if fork_server else "0"):
        args = {"i": list(range(trials))}
        run = experiment.launch(fit, args, spark=spark, root=root, progress=False)
    run.raise_for_failures()
    return run.trials


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, and restore its old value afterwards."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def measure_sleeps(spark: Any, root: str, peers: dict[str, Peer], rounds: int) -> dict[str, Rounds]:
    """Return the seconds of each contender by round: of this process, and of each environment."""
    contenders = {
        "floor": partial(sleep_in_one_job, spark),
        "sparkdl": partial(run_sleeps, spark, root),
    }
    measured: dict[str, Rounds] = {name: [] for name in ("sparkdl", *PEERS)}
    for number in range(rounds):
        say(f"sleeping trials, round {number + 1} of {rounds}")
        measured["sparkdl"].append(time_round(contenders, number))
        for name, peer in peers.items():
            if times := peer.ask_while_running(number):
                measured[name].append(times)
    return measured


def measure_fits(spark: Any, root: str, rounds: int) -> dict[str, list[Trial]]:
    """Return warm Keras trials, with the fork server and without it."""
    variants = {"with fork server": True, "without fork server": False}
    for shared in variants.values():
        run_fits(
            spark, root, SLOTS, shared
        )  # The first trials of an application read modules from disk.
    trials: dict[str, list[Trial]] = {name: [] for name in variants}
    for number in range(rounds):
        say(f"Keras trials, round {number + 1} of {rounds}")
        order = list(variants.items())
        for name, shared in order if number % 2 == 0 else reversed(order):
            trials[name] += run_fits(spark, root, KERAS_TRIALS, shared)
    return trials


# ---- reporting


def say(text: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def spread(values: list[float]) -> dict[str, float]:
    """Return the median, the smallest and the largest of some values."""
    numbers = {"median": median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 4) for name, value in numbers.items()}


def sleeping_row(name: str, rounds: Rounds) -> Row:
    """Return the times of a contender; empty if it did not run."""
    if not rounds:
        return {"name": name, "seconds": [], "ratios": []}
    seconds = [times[name] for times in rounds]
    ratios = [times[name] / times["floor"] for times in rounds]
    return {
        "name": name,
        "seconds": [round(s, 4) for s in seconds],
        "floor_seconds": [round(times["floor"], 4) for times in rounds],
        "ratios": [round(r, 4) for r in ratios],
        "median_s": round(median(seconds), 4),
        "median_ratio": round(median(ratios), 4),
        "overhead_per_trial_s": round((median(seconds) - IDEAL_S) * SLOTS / TRIALS, 4),
    }


def keras_row(name: str, trials: list[Trial]) -> Row:
    """Return where the time of Keras trials went."""
    return {
        "name": name,
        "trials": len(trials),
        "starting_s": spread([t.usage.starting_s for t in trials]),
        "duration_s": spread([t.duration_s for t in trials]),
        "cpu_s": spread([t.usage.cpu_s for t in trials]),
    }


def aims(sleeping: list[Row], keras: list[Row]) -> list[Row]:
    """Compare the values with the aims; `met` is None if a value could not be measured."""
    ratio = {row["name"]: row.get("median_ratio") for row in sleeping}
    compared = [
        ("sparkdl / floor, sleeping trials", ratio["sparkdl"], AIM_RATIO),
        ("sparkdl / floor, session of its own", ratio[OWN], AIM_RATIO),
        *(
            (f"sparkdl / floor, against {peer} / its floor", ratio["sparkdl"], ratio[peer])
            for peers in PEERS.values()
            for peer in peers
            if peer != OWN
        ),
        ("starting_s of a warm Keras trial", keras[0]["starting_s"]["median"], AIM_STARTING_S),
    ]
    return [
        {
            "aim": aim,
            "value": value,
            "at_most": most,
            "met": None if None in (value, most) else value <= most,
        }
        for aim, value, most in compared
    ]


def table(result: Row) -> str:
    """Return the result as a table to read."""
    lines = [f"{TRIALS} trials of {SLEEP_S} s on {SLOTS} slots, ideally {IDEAL_S:.1f} s"]
    lines += [f"{'':<22}{'median':>9}{'min .. max':>18}{'/ floor':>9}{'per trial':>11}"]
    for row in result["contenders"]:
        if not row["seconds"]:
            lines += [f"{row['name']:<22}  not measured, see peers/environment.sh"]
            continue
        span = f"{min(row['seconds']):.2f} .. {max(row['seconds']):.2f} s"
        lines += [
            f"{row['name']:<22}{row['median_s']:>7.2f} s{span:>18}{row['median_ratio']:>9.2f}"
            f"{row['overhead_per_trial_s'] * 1000:>8.0f} ms"
        ]
    lines += ["", f"{'warm Keras trials':<22}{'to its first line':>20}{'to its end':>14}"]
    lines += [
        f"{row['name']:<22}{row['starting_s']['median']:>18.3f} s"
        f"{row['duration_s']['median']:>12.3f} s"
        for row in result["keras"]
    ]
    words = {True: "met", False: "NOT MET", None: "not measured"}
    lines += ["", *(f"{a['aim']}: {words[a['met']]}" for a in result["aims"])]
    return "\n".join(lines)


def measure(rounds: int, peers: dict[str, Peer]) -> Row:
    """Measure everything; return the JSON document."""
    versions = {name: peer.versions for name, peer in peers.items()}
    about = {**machine("pyarrow"), "peers": versions}
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
        spark = session("trial_overhead")
        try:
            sleeps = measure_sleeps(spark, root, peers, rounds)
            fits = measure_fits(spark, root, rounds)
        finally:
            spark.stop()
    sleeping = [sleeping_row(name, sleeps["sparkdl"]) for name in ("floor", "sparkdl")]
    sleeping += [sleeping_row(name, sleeps[where]) for where in PEERS for name in PEERS[where]]
    keras = [keras_row(name, trials) for name, trials in fits.items()]
    return {
        "benchmark": "trial_overhead",
        "machine": about,
        "setting": {"trials": TRIALS, "sleep_s": SLEEP_S, "slots": SLOTS, "rounds": rounds},
        "contenders": sleeping,
        "ray_cluster_start_s": [round(times["cluster_start"], 2) for times in sleeps["ray"]],
        "keras": keras,
        "aims": aims(sleeping, keras),
    }


def main() -> None:
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    add_option(parser)
    options = parser.parse_args()
    with ExitStack() as stack:
        own = Peer(sys.executable, PROGRAM.format("session"))
        peers = {"session": stack.enter_context(own)}
        programs = {name: PROGRAM.format(name) for name in PEERS if name not in peers}
        peers |= started(stack, options.peers, programs)
        result = measure(options.rounds, peers)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
