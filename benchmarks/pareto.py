"""Measure what early stopping saves in searches of two metrics: simulated, on known functions.

The functions are those of `lib/fronts.py`, which have learning curves and training times, so that
no model is trained. The full search trains 128 configurations to their end, without a pruner. Each
contender gets 40 percent of the slot hours of the full search with the same seed and algorithm, on
the same number of slots, and begins as many configurations as it can. The figure is the
hypervolume of its complete trials, relative to that of the full search: the mean and the standard
deviation over seeds. The contenders are

- no pruner: a shorter search
- asha, median, hyperband: trials are stopped
- promoting asha, promoting hyperband: trials pause, and the best go on

The reference point is the worst value of each function, which all search points dominate.

The seconds are simulated: a clock jumps from event to event, see `lib/simulated.py`. The study and
the pruners are those of sparkdl.

    python benchmarks/pareto.py --quick

The program prints a table, then one JSON document. The aim is reported as met or not.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from lib.fronts import FUNCTIONS, FrontSetting
from lib.hartmann import EPOCHS
from lib.machine import machine
from lib.simulated import Found, simulate, simulate_promoting

from sparkdl.search.fronts import hypervolume

SLOTS, TRIALS, SHARE = 8, 128, 0.4
SEEDS = {"random": 12, "tpe": 4}
EPOCH_S, SPREAD = 30.0, 0.5
# More than any contender begins.
MOST_TRIALS = 4 * TRIALS * EPOCHS
# The full search's hypervolume is reached with 40 percent of its slot hours.
AIM = 1.0

WHOLE = {"max_reports": EPOCHS}
PRUNERS: dict[str, Any] = {
    "no pruner": None,
    "asha": "asha",
    "median": "median",
    "hyperband": {"hyperband": WHOLE},
    "promoting asha": {"asha": {"promote": True, **WHOLE}},
    "promoting hyperband": {"hyperband": {"promote": True, **WHOLE}},
}

Row = dict[str, Any]


def run(algorithm: str, pruner: Any, setting: FrontSetting) -> Found:
    """One search."""
    if isinstance(pruner, Mapping) and "promote" in next(iter(pruner.values())):
        return simulate_promoting(algorithm, pruner, setting)
    return simulate(algorithm, pruner, setting)


def rows(algorithm: str, function: str, seeds: int, trials: int) -> list[Row]:
    """Compare all contenders on one function."""
    ratios: dict[str, list[float]] = {name: [] for name in PRUNERS}
    complete: dict[str, list[int]] = {name: [] for name in PRUNERS}
    for seed in range(seeds):
        setting = FrontSetting(SLOTS, trials, EPOCH_S, SPREAD, seed, function=function)
        full = run(algorithm, None, setting)
        budget = replace(setting, trials=MOST_TRIALS, budget_s=SHARE * full.slot_s)
        for name, pruner in PRUNERS.items():
            found = run(algorithm, pruner, budget)
            volumes = [hypervolume(f.complete, setting.reference) for f in (found, full)]
            ratios[name].append(volumes[0] / volumes[1])
            complete[name].append(len(found.complete))
    return [
        {
            "algorithm": algorithm,
            "function": function,
            "name": name,
            "mean": round(mean(ratios[name]), 3),
            "spread": round(stdev(ratios[name]), 3),
            "complete": round(mean(complete[name]), 1),
        }
        for name in PRUNERS
    ]


def aims(measured: list[Row]) -> list[Row]:
    """Compare each pruner with the aim: the full hypervolume for 40 percent of the slot hours."""
    return [
        {**row, "at_least": AIM, "met": row["mean"] >= AIM}
        for row in measured
        if row["name"] != "no pruner"
    ]


def table(measured: list[Row]) -> str:
    """Return the result as a table to read: mean +- standard deviation."""
    functions = list(dict.fromkeys(row["function"] for row in measured))
    lines = [f"{f'{SHARE:.0%} of the slot hours':<30}" + "".join(f"{f:>18}" for f in functions)]
    for algorithm in dict.fromkeys(row["algorithm"] for row in measured):
        for name in PRUNERS:
            own = [r for r in measured if (r["algorithm"], r["name"]) == (algorithm, name)]
            cells = [f"{r['mean']:.3f} +- {r['spread']:.3f}" for r in own]
            lines += [f"{f'{algorithm}, {name}':<30}" + "".join(f"{c:>18}" for c in cells)]
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer seeds and trials")
    parser.add_argument("--algorithms", nargs="+", choices=SEEDS, default=["random"])
    options = parser.parse_args()
    seeds = dict.fromkeys(SEEDS, 2) if options.quick else SEEDS
    trials = 32 if options.quick else TRIALS
    result: Row = {
        "benchmark": "pareto",
        "machine": machine("optuna", "numpy"),
        "setting": {"slots": SLOTS, "trials": trials, "seeds": seeds, "share": SHARE},
        "rows": [],
    }
    for algorithm in options.algorithms:
        for function in FUNCTIONS:
            print(f"[{time.strftime('%H:%M:%S')}] {algorithm}, {function}", file=sys.stderr)
            result["rows"] += rows(algorithm, function, seeds[algorithm], trials)
    result["aims"] = aims(result["rows"])
    print(table(result["rows"]))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
