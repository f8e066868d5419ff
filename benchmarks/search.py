"""Measure searches on real trainings: time, best value, and Ray Tune beside them, in one run.

A trial trains a small Keras network on scikit-learn's digits for 16 epochs; learning rate, units,
dropout and batch size are searched, on embedded Spark with two slots (`local[2]`).

1. `grid`, `random`, `tpe`, and `tpe` with the pruner `asha`, each with 24 trials, in turns in
   several rounds: wall seconds, best validation accuracy, and the idle share of the slots, as the
   run reports it and by the clocks of its tasks.
2. The cost of `context.report` in a trial of a search whose run directory is on a local disk.
3. The whole program in a process of its own, from start to end, with 24 trials: sparkdl, and Ray
   Tune with Optuna's TPE and its own ASHA. Ray Tune runs each trial in a new process, as sparkdl
   does, or, with `reuse_actors=True`, several trials one after the other in the same process.

    python benchmarks/search.py --quick

The program prints a table, then one JSON document, and removes its files. Each aim is reported as
met or not; the exit code does not depend on the aims. Ray Tune needs an environment of its own, and
is left out without it:

    python3 -m venv /tmp/ray
    /tmp/ray/bin/pip install "ray[tune]" optuna==<that of sparkdl> tensorflow-cpu==<the same> \\
        keras==<the same> scikit-learn==<the same>
    python benchmarks/search.py --ray /tmp/ray/bin/python
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from statistics import median
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.floor import session
from lib.machine import machine
from lib.peer import Peer, own_stdout
from peers.search_ray import METRIC, SLOTS, fit
from pyspark.sql import SparkSession

from sparkdl import context, experiment
from sparkdl.runs import Run
from sparkdl.search import Float, Int

TRIALS, ROUNDS = 24, 3
REPORTS, CHUNK = 20_000, 100
AIM_IDLE, AIM_REPORT_US = 0.05, 50.0

SPACE: dict[str, Any] = {
    "learning_rate": Float(1e-4, 1e-1, log=True),
    "units": Int(8, 128, log=True),
    "dropout": Float(0.0, 0.6),
    "batch_size": [16, 32, 64, 128],
}
GRID: dict[str, Any] = {
    "learning_rate": [1e-4, 3e-3, 1e-1],
    "units": [16, 128],
    "dropout": [0.0, 0.4],
    "batch_size": [16, 128],
}
SEARCHES: dict[str, dict[str, Any]] = {
    "grid": {"space": GRID, "algorithm": "grid"},
    "random": {"space": SPACE, "algorithm": "random"},
    "tpe": {"space": SPACE, "algorithm": "tpe"},
    "tpe + asha": {"space": SPACE, "algorithm": "tpe", "pruner": "asha"},
}

Row = dict[str, Any]


def train(learning_rate: float, units: int, dropout: float, batch_size: int) -> dict[str, float]:
    """Run a trial; return its validation accuracy."""

    def report(value: float, epoch: int) -> None:
        context.report({METRIC: value}, step=epoch)

    return {METRIC: fit(report, learning_rate, units, dropout, batch_size)}


def report_often(x: float) -> float:
    """Return the microseconds of one `context.report`, as the median over chunks of reports."""
    chunks = []
    for _ in range(REPORTS // CHUNK):
        begun = time.perf_counter()
        for _ in range(CHUNK):
            context.report({"accuracy": x, "loss": 1.0 - x})
        chunks.append((time.perf_counter() - begun) / CHUNK)
    return 1e6 * median(chunks)


# ---- measuring


def search(spark: SparkSession, root: str, name: str, trials: int, seed: int) -> Run:
    """Run one search."""
    run = experiment.search(
        train,
        num_trials=trials,
        metric=METRIC,
        seed=seed,
        spark=spark,
        root=root,
        progress=False,
        **SEARCHES[name],
    )
    run.raise_for_failures()
    return run


def measure_searches(spark: SparkSession, root: str, trials: int, rounds: int) -> list[Row]:
    """Run the first part; odd rounds run in reverse order."""
    search(
        spark, root, "random", 2, 0
    )  # The first trials of an application read modules from disk.
    runs: dict[str, list[Run]] = {name: [] for name in SEARCHES}
    for number in range(rounds):
        for name in runs if number % 2 == 0 else reversed(runs):
            say(f"round {number + 1} of {rounds}: {name}")
            runs[name].append(search(spark, root, name, trials, number))
    return [search_row(name, measured) for name, measured in runs.items()]


def measure_report(spark: SparkSession, root: str) -> float:
    """Run the second part; return microseconds."""
    space, options = {"x": Float(0.0, 1.0)}, {"spark": spark, "root": root, "progress": False}
    run = experiment.search(report_often, space, num_trials=2, direction="min", **options)
    run.raise_for_failures()
    return round(float(run.best.value or 0.0), 1)


def measure_programs(ray: str | None, trials: int, rounds: int) -> list[Row]:
    """Run the third part."""
    contenders: dict[str, tuple[str, list[str], bool]] = {
        "sparkdl": (sys.executable, ["search.py", "--peer"], False)
    }
    if ray:
        contenders["Ray Tune"] = (ray, ["peers/search_ray.py"], False)
        contenders["Ray Tune, processes reused"] = (ray, ["peers/search_ray.py"], True)
    rows = []
    for pruner in (None, "asha"):
        measured: dict[str, list[Row]] = {name: [] for name in contenders}
        for seed in range(rounds):
            for name in contenders if seed % 2 == 0 else reversed(contenders):
                say(f"round {seed + 1} of {rounds}, whole program, {pruner or 'tpe'}: {name}")
                python, program, reuse = contenders[name]
                settings = {"pruner": pruner, "trials": trials, "seed": seed, "reuse": reuse}
                measured[name].append(run_program(python, program, settings))
        rows += [program_row(name, pruner, each) for name, each in measured.items()]
    return rows


def run_program(python: str, program: list[str], settings: Row) -> Row:
    """Run a search in a program of its own; return its result and its wall seconds."""
    begun = time.perf_counter()
    with Peer(python, *program) as peer:
        result = peer.ask(json.dumps(settings))
    seconds = time.perf_counter() - begun
    assert result["trials"] == settings["trials"]
    return {"seconds": seconds, "best": result["best"], "versions": peer.versions}


def run_as_peer() -> None:
    """Run as the sparkdl program of the third part; `peers/search_ray.py` is that of Ray Tune."""
    pipe = own_stdout()
    print(json.dumps(machine()["versions"]), file=pipe)
    for line in sys.stdin:
        settings = json.loads(line)
        name = "tpe + asha" if settings["pruner"] else "tpe"
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
            spark = session("search")
            run = search(spark, root, name, settings["trials"], settings["seed"])
            spark.stop()
        print(json.dumps({"best": run.best.value, "trials": len(run.trials)}), file=pipe)


# ---- reporting


def say(text: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def idle_share(run: Run) -> float:
    """Return the idle share that the run reports."""
    match = re.match(r"(\d+) % idle", run.idle or "")
    assert match, run.idle
    return int(match[1]) / 100


def unused_share(run: Run) -> float:
    """Return the idle share by the clocks of the tasks: the driver sees a start with a delay."""
    begun = min(begin for trial in run.trials for begin, _ in trial.spans)
    ended = max(end or 0.0 for trial in run.trials for _, end in trial.spans)
    used_s = sum(trial.duration_s for trial in run.trials)
    return max(0.0, 1 - used_s / (SLOTS * (ended - begun)))


def search_row(name: str, runs: list[Run]) -> Row:
    """Return the results of one way of searching."""
    return {
        "name": name,
        "seconds": [round(run.duration_s, 2) for run in runs],
        "best": [round(float(run.best.value or 0.0), 4) for run in runs],
        "idle": [idle_share(run) for run in runs],
        "unused": [round(unused_share(run), 3) for run in runs],
        "why_idle": [run.idle for run in runs],
        "pruned": [run.counts().get("PRUNED", 0) for run in runs],
        "starting_s": median(t.usage.starting_s for run in runs for t in run.trials),
        "running_s": median(t.usage.running_s for run in runs for t in run.trials),
    }


def program_row(name: str, pruner: str | None, measured: list[Row]) -> Row:
    """Return the results of one program."""
    return {
        "name": name,
        "pruner": pruner,
        "seconds": [round(turn["seconds"], 2) for turn in measured],
        "best": [round(turn["best"], 4) for turn in measured],
        "versions": measured[0]["versions"],
    }


def aims(searches: list[Row], report_us: float, programs: list[Row]) -> list[Row]:
    """Compare the values with the aims."""
    compared = [
        (f"{r['name']}: idle share of slots", median(r["idle"]), AIM_IDLE) for r in searches
    ]
    compared += [("microseconds of context.report", report_us, AIM_REPORT_US)]
    seconds = {(row["name"], row["pruner"]): min(row["seconds"]) for row in programs}
    for (name, pruner), peer_s in seconds.items():
        if name != "sparkdl":
            ratio = round(seconds["sparkdl", pruner] / peer_s, 3)
            compared.append(
                (f"tpe{f' + {pruner}' if pruner else ''}: sparkdl / {name}", ratio, 1.0)
            )
    return [
        {"aim": aim, "value": value, "at_most": most, "met": value <= most}
        for aim, value, most in compared
    ]


def table(result: Row) -> str:
    """Return the result as a table to read."""
    setting = result["setting"]
    title = f"{setting['trials']} trials on {SLOTS} slots"
    lines = [f"{title:<33}{'median':>9}{'best':>9}{'idle':>8}{'by tasks':>10}"]
    for row in result["searches"]:
        lines += [
            f"{row['name']:<33}{median(row['seconds']):>7.1f} s{median(row['best']):>9.4f}"
            f"{median(row['idle']):>8.0%}{median(row['unused']):>10.1%}"
        ]
    lines += ["", f"context.report: {result['report_us']:.1f} microseconds", ""]
    lines += [f"{'whole programs':<40}{'best round':>12}{'best':>9}"]
    for row in result["programs"]:
        label = f"{row['name']}, tpe{' + ' + row['pruner'] if row['pruner'] else ''}"
        lines += [f"{label:<40}{min(row['seconds']):>10.1f} s{median(row['best']):>9.4f}"]
    if len(result["programs"]) == 2:
        lines += ["Ray Tune: not installed (--ray)"]
    lines += [""]
    for aim in result["aims"]:
        met = "met" if aim["met"] else "NOT MET"
        lines += [f"{aim['aim']}: {aim['value']:.3g}, at most {aim['at_most']}: {met}"]
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> Row:
    """Measure everything; return the JSON document."""
    about = machine("optuna", "scikit-learn")
    trials, rounds = (4, 1) if options.quick else (TRIALS, options.rounds)
    programs = measure_programs(options.ray, trials, rounds)
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
        spark = session("search")
        try:
            searches = measure_searches(spark, root, trials, rounds)
            report_us = measure_report(spark, root)
        finally:
            spark.stop()
    return {
        "benchmark": "search",
        "machine": about,
        "setting": {"trials": trials, "rounds": rounds},
        "searches": searches,
        "report_us": report_us,
        "programs": programs,
        "aims": aims(searches, report_us, programs),
    }


def main() -> None:
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of rounds")
    parser.add_argument("--quick", action="store_true", help="one round of four trials")
    parser.add_argument("--ray", help="path of the python of an environment with Ray Tune")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        run_as_peer()
        return
    result = measure(options)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
