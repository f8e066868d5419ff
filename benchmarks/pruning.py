"""What stopping trials early saves: searches of a known function, simulated and on Spark.

The function is that of `hartmann.py`: published, with learning curves and training times, so that
nothing need be trained. Two comparisons, each on 2 and on 8 slots, with 24 seeds:

1. The simulated hours until some trial has reported the target, of `random`, `tpe`, and `tpe` with
   the pruner `asha`.
2. A fixed set of random configurations, to the end:
   - asha: `search(algorithm="random", pruner="asha")`, no trial waits for another
   - stage by stage: the same rungs; all configurations of a rung finish before the next one starts,
     which the best quarter enter and go on from where they were
   - wave by wave: nothing is stopped, and a wave of as many trials as slots ends before the next
     starts. That is what maggy's authors compare theirs with (33 to 58 percent less time): Meister
     et al., Maggy, DistributedML 2020
   What counts is the wall time until the last trial has ended; and the time until some trial has
   reported what both find in the end, the time at equal quality.

Simulated are the seconds: a clock jumps from event to event. The study, the pruners and the number
of trials that are made ahead are the package's own, and a trial that is stopped goes on until its
next report, or for as long as the package waits for that.

3. Two ways of the second comparison on real Spark, with trials that sleep: what the wall time is
   against that of simulated slots with the same sleeps, and how many epochs there were.

    python benchmarks/pruning.py --quick

It prints a table, then one JSON document. Nothing passes or fails here: each aim is reported as
met or not.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

# Before Spark is loaded: nothing here needs another host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.hartmann import EPOCHS, NAMES, curve
from lib.machine import machine
from pyspark.sql import SparkSession
from simulated import ETA, SPACE, Found, Setting, configurations, in_stages, in_turns, simulate

from sparkdl import context, experiment

SLOTS = (2, 8)
SPREADS = (0.5, 1.0)
SEEDS = 24
EPOCH_S = 30.0
TARGET, MOST_TRIALS = 2.0, 400
TRIALS = 128
RUNGS = (2, 5, 17, EPOCHS)  # Optuna's: after the steps 1, 4 and 16, where the first step is 0.
AIM_STAGES = 0.65

# On Spark: sleeps, which need no CPU; seconds of the median epoch, and the spread.
MASTERS = {2: "local-cluster[2,1,1024]", 8: "local[8]"}
SPARK_TRIALS, SPARK_EPOCH_S, SPARK_SPREAD, SPARK_SEED = 32, 0.5, 0.5, 0

Row = dict[str, Any]


# ---- simulated


# Each search of the first comparison, and its pruner.
SEARCHES: dict[str, tuple[str, str | None]] = {
    "random": ("random", None),
    "tpe": ("tpe", None),
    "tpe + asha": ("tpe", "asha"),
}
CONTENDERS: dict[str, Callable[[Setting], Found]] = {
    "asha": lambda setting: simulate("random", "asha", setting),
    "stage by stage": lambda setting: in_stages(setting, RUNGS, setting.trials),
    "wave by wave": lambda setting: in_stages(setting, (EPOCHS,), setting.slots),
}


def target_rows(slots: int, seeds: int) -> list[Row]:
    """The first comparison."""
    setting = Setting(slots, MOST_TRIALS, EPOCH_S, SPREADS[0])
    rows = []
    for name, (algorithm, pruner) in SEARCHES.items():
        hours, epochs = [], []
        for seed in range(seeds):
            found = simulate(algorithm, pruner, replace(setting, seed=seed), TARGET)
            hours.append(found.time_to(TARGET) / 3600)
            epochs.append(found.epochs)
        reached = sum(map(math.isfinite, hours))
        middle = median(hours)
        rows.append(
            {
                "slots": slots,
                "name": name,
                "hours": round(middle, 2) if math.isfinite(middle) else None,
                "epochs": median(epochs),
                "reached": reached / seeds,
            }
        )
    return rows


def stage_rows(slots: int, spread: float, trials: int, seeds: int) -> list[Row]:
    """The second comparison: medians, and of ratios to `stage by stage` those for each seed."""
    setting = Setting(slots, trials, EPOCH_S, spread)
    each = {
        name: [run(replace(setting, seed=seed)) for seed in range(seeds)]
        for name, run in CONTENDERS.items()
    }
    rows = []
    for name, found in each.items():
        pairs = list(zip(found, each["stage by stage"], strict=True))
        equal = [_equal_quality(one, staged) for one, staged in pairs]
        rows.append(
            {
                "slots": slots,
                "spread": spread,
                "name": name,
                "hours": round(median(one.wall_s for one in found) / 3600, 2),
                "best": round(median(one.best for one in found), 3),
                "epochs": median(one.epochs for one in found),
                "wall_ratio": round(median(a.wall_s / b.wall_s for a, b in pairs), 3),
                "equal_quality_ratio": round(median(equal), 3),
            }
        )
    return rows


def _equal_quality(one: Found, staged: Found) -> float:
    """When each has first reported what both find in the end, as a ratio."""
    both = min(one.best, staged.best)
    return one.time_to(both) / staged.time_to(both)


# ---- on Spark


def train(
    x0: float, x1: float, x2: float, x3: float, x4: float, x5: float, begin: int, end: int, s: float
) -> float:
    """Sleep through some epochs of a configuration, and report as if it had trained."""
    made = curve(dict(zip(NAMES, (x0, x1, x2, x3, x4, x5), strict=True)), s, SPARK_SPREAD)
    for step in range(begin, end):
        time.sleep(made.epoch_s)
        context.report(made.scores[step], step)
    return made.scores[end - 1]


def search_on_spark(spark: SparkSession, root: str, setting: Setting) -> Row:
    """The run with `asha`.

    Which trials are stopped depends on who reports first, so no two runs have the same epochs. What
    is simulated here are trials of as many epochs as they had, one after the other on each slot.
    """
    run = experiment.search(
        partial(train, begin=0, end=EPOCHS, s=setting.epoch_s),
        SPACE.dimensions,
        algorithm="random",
        pruner="asha",
        num_trials=setting.trials,
        seed=setting.seed,
        spark=spark,
        root=root,
        name="asha",
        progress=False,
    )
    run.raise_for_failures()
    trials = sorted(run.trials, key=lambda trial: trial.spans[0][0])
    epochs = [len(trial.history) for trial in trials]
    each_s = [n * setting.curve(t.params).epoch_s for t, n in zip(trials, epochs, strict=True)]
    begins = in_turns(each_s, setting.slots)
    ended_s = max(begin + one for begin, one in zip(begins, each_s, strict=True))
    return {"real_s": run.duration_s, "simulated_s": ended_s, "epochs": sum(epochs)}


def stages_on_spark(spark: SparkSession, root: str, setting: Setting) -> Row:
    """A run for each rung."""
    left, before, spent_s = configurations(setting), 0, 0.0
    for end in RUNGS:
        run = experiment.launch(
            partial(train, begin=before, end=end, s=setting.epoch_s),
            {name: [params[name] for params in left] for name in NAMES},
            combine="zip",
            spark=spark,
            root=root,
            name="rung",
            progress=False,
        )
        run.raise_for_failures()
        spent_s += run.duration_s
        left, before = [trial.params for trial in run.top(max(1, len(left) // ETA))], end
    found = CONTENDERS["stage by stage"](setting)
    return {"real_s": spent_s, "simulated_s": found.wall_s, "epochs": found.epochs}


def spark_rows(slots: int, trials: int, epoch_s: float) -> list[Row]:
    """The third part, on one master."""
    setting = Setting(slots, trials, epoch_s, SPARK_SPREAD, SPARK_SEED)
    ways = {"asha": search_on_spark, "stage by stage": stages_on_spark}
    builder = SparkSession.builder.master(MASTERS[slots]).appName("pruning")
    builder = builder.config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    rows = []
    try:
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
            search_on_spark(spark, root, replace(setting, trials=slots, epoch_s=0.0))  # Warm up.
            for name, way in ways.items():
                say(f"on {MASTERS[slots]}: {name}")
                found = way(spark, root, setting)
                ratio = found["real_s"] / found["simulated_s"]
                would = CONTENDERS[name](setting).epochs
                row = {key: round(value, 2) for key, value in found.items()}
                row |= {"ratio": round(ratio, 3), "simulated_epochs": would}
                rows.append({"master": MASTERS[slots], "name": name, **row})
    finally:
        spark.stop()
    return rows


# ---- reporting


def say(text: str) -> None:
    """Show that it goes on, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def aims(stages: list[Row]) -> list[Row]:
    """What was aimed at: 35 percent less time than stage by stage."""
    found = []
    for row in stages:
        if row["name"] == "asha":
            waves = _named(stages, row, "wave by wave")["hours"]
            for what, value in (
                ("stage by stage, wall", row["wall_ratio"]),
                ("stage by stage, equal quality", row["equal_quality_ratio"]),
                ("wave by wave, wall", round(row["hours"] / waves, 3)),
            ):
                where = f"{row['slots']} slots, spread {row['spread']:g}: asha / {what}"
                aim = {"aim": where, "value": value, "at_most": AIM_STAGES}
                found.append({**aim, "met": value <= AIM_STAGES})
    return found


def _named(rows: list[Row], like: Row, name: str) -> Row:
    keys = ("slots", "spread")
    return next(r for r in rows if r["name"] == name and all(r[k] == like[k] for k in keys))


def table(result: Row) -> str:
    """The result for a person."""
    lines = [f"until {TARGET:g} is reported{'':<20}{'hours':>8}{'epochs':>9}{'reached':>9}"]
    for row in result["target"]:
        hours = "never" if row["hours"] is None else f"{row['hours']:.2f}"
        label = f"{row['slots']} slots, {row['name']}"
        lines += [f"{label:<41}{hours:>8}{row['epochs']:>9.0f}{row['reached']:>9.0%}"]
    title = f"{result['setting']['trials']} configurations to the end"
    lines += [
        "",
        f"{title:<42}{'hours':>8}{'best':>8}{'epochs':>8}{'/ stages':>10}{'equal q.':>10}",
    ]
    for row in result["stages"]:
        label = f"{row['slots']} slots, spread {row['spread']:g}, {row['name']}"
        lines += [
            f"{label:<46}{row['hours']:>6.2f}{row['best']:>8.3f}{row['epochs']:>8.0f}"
            f"{row['wall_ratio']:>9.2f}{row['equal_quality_ratio']:>10.2f}"
        ]
    lines += ["", f"{'on Spark':<50}{'real':>9}{'simulated':>11}{'ratio':>7}{'epochs':>8}"]
    for row in result["spark"]:
        label = f"{row['master']}, {row['name']}"
        lines += [
            f"{label:<50}{row['real_s']:>7.1f} s{row['simulated_s']:>9.1f} s{row['ratio']:>7.2f}"
            f"{row['epochs']:>8} of {row['simulated_epochs']} simulated"
        ]
    lines += [""]
    for aim in result["aims"]:
        met = "met" if aim["met"] else "NOT MET"
        lines += [f"{aim['aim']}: {aim['value']:.2f}, at most {aim['at_most']}: {met}"]
    return "\n".join(lines)


def measure(quick: bool) -> Row:
    """Everything, as the JSON document."""
    about = machine("optuna", "numpy")
    seeds, trials = (4, 32) if quick else (SEEDS, TRIALS)
    targets: list[Row] = []
    stages: list[Row] = []
    for slots in SLOTS:
        say(f"simulated, {slots} slots")
        targets += target_rows(slots, seeds)
        for spread in SPREADS:
            stages += stage_rows(slots, spread, trials, seeds)
    size = (8, 0.1) if quick else (SPARK_TRIALS, SPARK_EPOCH_S)
    real = [row for slots in SLOTS for row in spark_rows(slots, *size)]
    return {
        "benchmark": "pruning",
        "machine": about,
        "setting": {"seeds": seeds, "trials": trials, "target": TARGET, "on_spark": size},
        "target": targets,
        "stages": stages,
        "spark": real,
        "aims": aims(stages),
    }


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few seeds, few trials")
    result = measure(parser.parse_args().quick)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
