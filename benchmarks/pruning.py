"""Measure what early stopping saves: searches of a known function, simulated and on Spark.

The function is that of `lib/hartmann.py`, which has learning curves and training times, so that no
model is trained. There are two simulated comparisons, each on 2 and on 8 slots, with 24 seeds:

1. The simulated hours until a trial reports the target, for `random`, for `tpe`, and for `tpe` with
   the pruner `asha`.
2. A fixed set of random configurations, until all have ended:
   - asha: `search(algorithm="random", pruner="asha")`, which stops trials
   - promoting asha: the same with `{"asha": {"promote": True}}`: trials pause after 1, 4 and 16
     epochs, and the best quarter goes on
   - promoting asha, bohb: the same, with the sampler that learns from the rungs; its configurations
     are others
   - hyperband, 1 bracket: `{"hyperband": {"promote": True, "brackets": 1}}`, the bracket of 64
     configurations twice; the second does not wait for the first
   - stage by stage: the rungs of promoting asha; all configurations of a rung finish before the
     next rung starts, in which the best quarter continues
   - late stages: the same with the rungs of asha, one epoch later
   - wave by wave: no trial is stopped; trials run in waves of as many trials as slots, and a wave
     ends before the next wave starts. This is the baseline of maggy's authors (33 to 58 percent
     less time): Meister et al., Maggy, DistributedML 2020
   The results are the wall time until the last trial has ended, and the time at equal quality: the
   time until a trial has reported the value that both contenders reach in the end.

The seconds are simulated: a clock jumps from event to event. The study, the pruners and the number
of trials that are created ahead are those of sparkdl. A stopped trial continues until its next
report, or for as long as sparkdl waits for that report.

3. Three contenders of the second comparison on real Spark, with trials that sleep: the wall time
   relative to that of simulated slots with the same sleeps, and the number of epochs.

    python benchmarks/pruning.py --quick

The program prints a table, then one JSON document. Each aim is reported as met or not; the exit
code does not depend on the aims.
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

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.hartmann import EPOCHS, NAMES, curve
from lib.machine import machine
from lib.simulated import (
    ETA,
    SPACE,
    Found,
    Setting,
    configurations,
    in_stages,
    in_turns,
    simulate,
    simulate_promoting,
)
from pyspark.sql import SparkSession

from sparkdl import context, experiment

SLOTS = (2, 8)
SPREADS = (0.5, 1.0)
SEEDS = 24
EPOCH_S = 30.0
TARGET, MOST_TRIALS = 2.0, 400
TRIALS = 128
RUNGS = (1, 4, 16, EPOCHS)
LATE_RUNGS = (2, 5, 17, EPOCHS)  # Those of Optuna: after the steps 1, 4 and 16, counted from 0.
AIM_STAGES = 0.65
PROMOTING = {"asha": {"promote": True, "reduction": ETA, "max_reports": EPOCHS}}
BRACKET = {"hyperband": {"promote": True, "reduction": ETA, "max_reports": EPOCHS, "brackets": 1}}

# On Spark, trials sleep: seconds of the median epoch, and the spread.
MASTERS = {2: "local-cluster[2,1,1024]", 8: "local[8]"}
SPARK_TRIALS, SPARK_EPOCH_S, SPARK_SPREAD, SPARK_SEED = 32, 0.5, 0.5, 0

Row = dict[str, Any]


# ---- simulated


# Algorithm and pruner of each search of the first comparison.
SEARCHES: dict[str, tuple[str, str | None]] = {
    "random": ("random", None),
    "tpe": ("tpe", None),
    "tpe + asha": ("tpe", "asha"),
}
CONTENDERS: dict[str, Callable[[Setting], Found]] = {
    "asha": lambda setting: simulate("random", "asha", setting),
    "promoting asha": lambda setting: simulate_promoting("random", PROMOTING, setting),
    "promoting asha, bohb": lambda setting: simulate_promoting("bohb", PROMOTING, setting),
    "hyperband, 1 bracket": lambda setting: simulate_promoting("random", BRACKET, setting),
    "stage by stage": lambda setting: in_stages(setting, RUNGS, setting.trials),
    "late stages": lambda setting: in_stages(setting, LATE_RUNGS, setting.trials),
    "wave by wave": lambda setting: in_stages(setting, (EPOCHS,), setting.slots),
}


def target_rows(slots: int, seeds: int) -> list[Row]:
    """Run the first comparison."""
    setting = Setting(slots, MOST_TRIALS, EPOCH_S, SPREADS[0])
    rows = []
    for name, (algorithm, pruner) in SEARCHES.items():
        hours, epochs = [], []
        for seed in range(seeds):
            measured = simulate(algorithm, pruner, replace(setting, seed=seed), TARGET)
            hours.append(measured.time_to(TARGET) / 3600)
            epochs.append(measured.epochs)
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
    """Run the second comparison; ratios to `stage by stage` are medians over seeds."""
    setting = Setting(slots, trials, EPOCH_S, spread)
    each = {
        name: [run(replace(setting, seed=seed)) for seed in range(seeds)]
        for name, run in CONTENDERS.items()
    }
    rows = []
    for name, measured in each.items():
        pairs = list(zip(measured, each["stage by stage"], strict=True))
        equal = [_equal_quality(own, staged) for own, staged in pairs]
        rows.append(
            {
                "slots": slots,
                "spread": spread,
                "name": name,
                "hours": round(median(search.wall_s for search in measured) / 3600, 2),
                "best": round(median(search.best for search in measured), 3),
                "epochs": median(search.epochs for search in measured),
                "wall_ratio": round(median(a.wall_s / b.wall_s for a, b in pairs), 3),
                "equal_quality_ratio": round(median(equal), 3),
            }
        )
    return rows


def _equal_quality(own: Found, staged: Found) -> float:
    """Return the ratio of the times until each has reported the value that both reach."""
    both = min(own.best, staged.best)
    return own.time_to(both) / staged.time_to(both)


# ---- on Spark


def train(
    x0: float, x1: float, x2: float, x3: float, x4: float, x5: float, begin: int, end: int, s: float
) -> float:
    """Sleep for the epochs of a configuration, and report its learning curve."""
    made = curve(dict(zip(NAMES, (x0, x1, x2, x3, x4, x5), strict=True)), s, SPARK_SPREAD)
    for step in range(begin, end):
        time.sleep(made.epoch_s)
        context.report(made.scores[step], step)
    return made.scores[end - 1]


def climb(x0: float, x1: float, x2: float, x3: float, x4: float, x5: float, s: float) -> float:
    """Train to the end as `train` does, from the checkpoint of the last epoch."""
    from pathlib import Path

    made = curve(dict(zip(NAMES, (x0, x1, x2, x3, x4, x5), strict=True)), s, SPARK_SPREAD)
    before = context.get_checkpoint()
    begin = int(Path(before, "epoch").read_text()) + 1 if before else 0
    Path("state").mkdir(exist_ok=True)
    for step in range(begin, EPOCHS):
        time.sleep(made.epoch_s)
        Path("state", "epoch").write_text(str(step))
        context.report(made.scores[step], step, checkpoint="state")
    return made.scores[-1]


def promoting_on_spark(spark: SparkSession, root: str, setting: Setting) -> Row:
    """Run the search with `promote` on Spark."""
    run = experiment.search(
        partial(climb, s=setting.epoch_s),
        SPACE.dimensions,
        algorithm="random",
        pruner=PROMOTING,
        num_trials=setting.trials,
        seed=setting.seed,
        spark=spark,
        root=root,
        name="promoting",
        progress=False,
    )
    run.raise_for_failures()
    epochs = sum(len(trial.history) for trial in run.trials)
    simulated_s = CONTENDERS["promoting asha"](setting).wall_s
    return {"real_s": run.duration_s, "simulated_s": simulated_s, "epochs": epochs}


def search_on_spark(spark: SparkSession, root: str, setting: Setting) -> Row:
    """Run the search with `asha` on Spark, and simulate its trials.

    The stopped trials depend on the order of the reports, so no two runs have the same epochs. The
    simulation runs trials with the epochs of the real trials, one after the other on each slot.
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
    ended_s = max(begin + lasted_s for begin, lasted_s in zip(begins, each_s, strict=True))
    return {"real_s": run.duration_s, "simulated_s": ended_s, "epochs": sum(epochs)}


def stages_on_spark(spark: SparkSession, root: str, setting: Setting) -> Row:
    """Run a grid on Spark for each rung."""
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
    measured = CONTENDERS["stage by stage"](setting)
    return {"real_s": spent_s, "simulated_s": measured.wall_s, "epochs": measured.epochs}


def spark_rows(slots: int, trials: int, epoch_s: float) -> list[Row]:
    """Run the third part on one Spark master."""
    setting = Setting(slots, trials, epoch_s, SPARK_SPREAD, SPARK_SEED)
    ways = {
        "asha": search_on_spark,
        "promoting asha": promoting_on_spark,
        "stage by stage": stages_on_spark,
    }
    builder = SparkSession.builder.master(MASTERS[slots]).appName("pruning")
    builder = builder.config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    rows = []
    try:
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
            search_on_spark(spark, root, replace(setting, trials=slots, epoch_s=0.0))  # Warm up.
            for name, way in ways.items():
                say(f"on {MASTERS[slots]}: {name}")
                measured = way(spark, root, setting)
                ratio = measured["real_s"] / measured["simulated_s"]
                would = CONTENDERS[name](setting).epochs
                row = {key: round(value, 2) for key, value in measured.items()}
                row |= {"ratio": round(ratio, 3), "simulated_epochs": would}
                rows.append({"master": MASTERS[slots], "name": name, **row})
    finally:
        spark.stop()
    return rows


# ---- reporting


def say(text: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def aims(stages: list[Row]) -> list[Row]:
    """Compare with the aim: 35 percent less time than stage by stage."""
    compared = []
    for row in stages:
        if row["name"].startswith(("asha", "promoting")):
            waves = _named(stages, row, "wave by wave")["hours"]
            for what, value in (
                ("stage by stage, equal quality", row["equal_quality_ratio"]),
                ("wave by wave, wall", round(row["hours"] / waves, 3)),
            ):
                where = f"{row['slots']} slots, spread {row['spread']:g}: {row['name']} / {what}"
                aim = {"aim": where, "value": value, "at_most": AIM_STAGES}
                compared.append({**aim, "met": value <= AIM_STAGES})
    return compared


def _named(rows: list[Row], like: Row, name: str) -> Row:
    keys = ("slots", "spread")
    return next(r for r in rows if r["name"] == name and all(r[k] == like[k] for k in keys))


def table(result: Row) -> str:
    """Return the result as a table to read."""
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
    """Measure everything; return the JSON document."""
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
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few seeds, few trials")
    result = measure(parser.parse_args().quick)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
