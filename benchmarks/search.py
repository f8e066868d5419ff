"""Searches on real trainings: what is found in what time, and against Ray Tune, in one run.

A trial trains a small Keras network on scikit-learn's digits for 16 epochs; learning rate, units,
dropout and batch size are searched, on embedded Spark with two slots (`local[2]`).

1. `grid`, `random`, `tpe`, and `tpe` with the pruner `asha`, each with 24 trials, in turns for some
   rounds: wall seconds, best validation accuracy, and the share of the slots' time that no trial
   used: as the run says it, and by the clocks of its tasks.
2. What `context.report` costs in a trial of a search whose run directory is on a local disk.
3. The program as a whole, in a process of its own, from its start to its end, with 24 trials: of
   sparkdl, and of Ray Tune with Optuna's TPE and its ASHA. Ray Tune runs each trial in a new
   process, as sparkdl does, or with `reuse_actors=True` several trials one after the other in the
   same process.

    python benchmarks/search.py --quick

It prints a table, then one JSON document; what it kept on disk is removed. Nothing passes or fails
here: each aim is reported as met or not. Ray Tune is left out unless an environment of its own is
given:

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

# Before Spark is loaded: nothing here needs another host.
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
    """A trial."""

    def report(value: float, epoch: int) -> None:
        context.report({METRIC: value}, step=epoch)

    return {METRIC: fit(report, learning_rate, units, dropout, batch_size)}


def report_often(x: float) -> float:
    """Microseconds of one `context.report`: of chunks of them, the median."""
    chunks = []
    for _ in range(REPORTS // CHUNK):
        begun = time.perf_counter()
        for _ in range(CHUNK):
            context.report({"accuracy": x, "loss": 1.0 - x})
        chunks.append((time.perf_counter() - begun) / CHUNK)
    return 1e6 * median(chunks)


# ---- measuring


def search(spark: SparkSession, root: str, name: str, trials: int, seed: int) -> Run:
    """One search of the first part."""
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
    """The first part; every other round goes backwards."""
    search(spark, root, "random", 2, 0)  # The first trials of an application read the disk.
    runs: dict[str, list[Run]] = {name: [] for name in SEARCHES}
    for number in range(rounds):
        for name in runs if number % 2 == 0 else reversed(runs):
            say(f"round {number + 1} of {rounds}: {name}")
            runs[name].append(search(spark, root, name, trials, number))
    return [search_row(name, found) for name, found in runs.items()]


def measure_report(spark: SparkSession, root: str) -> float:
    """The second part."""
    space, options = {"x": Float(0.0, 1.0)}, {"spark": spark, "root": root, "progress": False}
    run = experiment.search(report_often, space, num_trials=2, direction="min", **options)
    run.raise_for_failures()
    return round(float(run.best.value or 0.0), 1)


def measure_programs(ray: str | None, trials: int, rounds: int) -> list[Row]:
    """The third part."""
    contenders: dict[str, tuple[str, list[str], bool]] = {
        "sparkdl": (sys.executable, ["search.py", "--peer"], False)
    }
    if ray:
        contenders["Ray Tune"] = (ray, ["peers/search_ray.py"], False)
        contenders["Ray Tune, processes reused"] = (ray, ["peers/search_ray.py"], True)
    rows = []
    for pruner in (None, "asha"):
        found: dict[str, list[Row]] = {name: [] for name in contenders}
        for seed in range(rounds):
            for name in contenders if seed % 2 == 0 else reversed(contenders):
                say(f"round {seed + 1} of {rounds}, whole program, {pruner or 'tpe'}: {name}")
                python, program, reuse = contenders[name]
                wanted = {"pruner": pruner, "trials": trials, "seed": seed, "reuse": reuse}
                found[name].append(run_program(python, program, wanted))
        rows += [program_row(name, pruner, each) for name, each in found.items()]
    return rows


def run_program(python: str, program: list[str], wanted: Row) -> Row:
    """A search by a program of its own, with the seconds from its start to its end."""
    begun = time.perf_counter()
    with Peer(python, *program) as peer:
        said = peer.ask(json.dumps(wanted))
    assert said["trials"] == wanted["trials"]
    versions = peer.versions
    return {"seconds": time.perf_counter() - begun, "best": said["best"], "versions": versions}


def be_peer() -> None:
    """The program of the third part that is sparkdl's: see `peers/search_ray.py`, its twin."""
    pipe = own_stdout()
    print(json.dumps(machine()["versions"]), file=pipe)
    for line in sys.stdin:
        wanted = json.loads(line)
        name = "tpe + asha" if wanted["pruner"] else "tpe"
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
            spark = session("search")
            run = search(spark, root, name, wanted["trials"], wanted["seed"])
            spark.stop()
        print(json.dumps({"best": run.best.value, "trials": len(run.trials)}), file=pipe)


# ---- reporting


def say(text: str) -> None:
    """Show that it goes on, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def idle_share(run: Run) -> float:
    """What the run says itself."""
    found = re.match(r"(\d+) % idle", run.idle or "")
    assert found, run.idle
    return int(found[1]) / 100


def unused_share(run: Run) -> float:
    """The same from the tasks' own clocks: the driver sees a start up to a look later."""
    begun = min(begin for trial in run.trials for begin, _ in trial.spans)
    ended = max(end or 0.0 for trial in run.trials for _, end in trial.spans)
    used_s = sum(trial.duration_s for trial in run.trials)
    return max(0.0, 1 - used_s / (SLOTS * (ended - begun)))


def search_row(name: str, runs: list[Run]) -> Row:
    """What one way of searching gave."""
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


def program_row(name: str, pruner: str | None, found: list[Row]) -> Row:
    """What one program gave."""
    return {
        "name": name,
        "pruner": pruner,
        "seconds": [round(one["seconds"], 2) for one in found],
        "best": [round(one["best"], 4) for one in found],
        "versions": found[0]["versions"],
    }


def aims(searches: list[Row], report_us: float, programs: list[Row]) -> list[Row]:
    """What was aimed at."""
    found = [(f"{r['name']}: idle share of slots", median(r["idle"]), AIM_IDLE) for r in searches]
    found += [("microseconds of context.report", report_us, AIM_REPORT_US)]
    seconds = {(row["name"], row["pruner"]): min(row["seconds"]) for row in programs}
    for (name, pruner), peer_s in seconds.items():
        if name != "sparkdl":
            ratio = round(seconds["sparkdl", pruner] / peer_s, 3)
            found.append((f"tpe{f' + {pruner}' if pruner else ''}: sparkdl / {name}", ratio, 1.0))
    return [
        {"aim": aim, "value": value, "at_most": most, "met": value <= most}
        for aim, value, most in found
    ]


def table(result: Row) -> str:
    """The result for a person."""
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
    """Everything, as the JSON document."""
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
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each takes its turn")
    parser.add_argument("--quick", action="store_true", help="one round of four trials")
    parser.add_argument("--ray", help="the python of an environment with Ray Tune")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        be_peer()
        return
    result = measure(options)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
