"""Measure what a host of half the speed costs a gang, with and without `move_slow_ranks`.

Three hosts, which are Linux namespaces as in the tests of clusters, have an executor of one core
each; so the program needs root. Two ranks train with an elastic ring, each with 0.1 s of work a
step, on two of the hosts. After some seconds, the work on the host of rank 1 takes twice as long.
For each contender, in several rounds:

- stays: the rank stays there, as in every other system
- moves: `move_slow_ranks=True`; the third host has the spare slot

The result is the median step of rank 0 in the last seconds, from a minute after the host became
slow, relative to the median step before. The aim is a cost of less than 10 percent; a rank that
stays costs 50 percent of the speed. The program also prints how long it took until the rank had
moved.

    python -m benchmarks.straggler --rounds 3

The program starts in the folder of the repository, whose tests have the hosts. Two cores are
enough, if nothing else runs. It prints a table, then one JSON document.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from benchmarks.lib.machine import machine
from tests.clusters.standalone import Cluster, Driver, hosts_cluster
from tests.helpers.processes import eventually

ROOT = Path(__file__).parents[1]
TRAIN = "benchmarks.lib.slow_rank:train"
AIM = 0.10
START_S = 180.0

Row = dict[str, Any]


def steps_of(path: Path) -> list[float]:
    """Return the times at which a rank has ended its steps, in seconds since 1970."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [float(line) for line in lines]


def step_s(times: list[float], begin_s: float, end_s: float) -> float:
    """Return the median length of the steps in a span of time."""
    return median(b - a for a, b in pairwise(times) if begin_s <= a and b <= end_s)


def measure(
    cluster: Cluster, driver: Driver, folder: Path, moves: bool, options: argparse.Namespace
) -> Row:
    """Train once, and return the lengths of the steps before and after the host became slow."""
    call = driver.start(TRAIN, folder=str(folder), moves=moves)
    if not eventually(lambda: len(list(folder.glob("[01]@*"))) == 2, START_S):
        raise RuntimeError(f"the ranks have not started after {START_S:g} s: {call.wait(60)}")
    (first,), (slow,) = folder.glob("0@*"), folder.glob("1@*")
    time.sleep(options.before_s)
    slow_s = time.time()
    (folder / f"slow@{slow.name.split('@')[1]}").touch()
    time.sleep(options.slow_s)
    end_s = time.time()
    (folder / "go").touch()
    told = call.wait()
    times = steps_of(first)
    others = [path for path in folder.glob("1@*") if path != slow]
    moved = [steps_of(path)[0] - slow_s for path in others]
    before_s = step_s(times, slow_s - options.before_s / 2, slow_s)
    after_s = step_s(times, slow_s + options.grace_s, end_s)
    return {
        "before_s": before_s,
        "after_s": after_s,
        "cost": 1 - before_s / after_s,  # The share of the speed that is lost.
        "moved_after_s": moved[0] if moved else None,
        **told,
    }


def main() -> None:
    """Measure both contenders in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before-s", type=float, default=20.0, help="seconds at full speed")
    parser.add_argument("--slow-s", type=float, default=90.0, help="seconds with a slow host")
    parser.add_argument("--grace-s", type=float, default=60.0, help="seconds that do not count")
    parser.add_argument("--folder", default=str(ROOT / "build"), help="a folder not below /tmp")
    options = parser.parse_args()
    about = machine()
    rounds: dict[str, list[Row]] = {"stays": [], "moves": []}
    os.makedirs(options.folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        (Path(name) / "hosts").mkdir()
        with hosts_cluster(Path(name) / "hosts") as cluster:
            driver = cluster.start_driver()
            for number in range(options.rounds):
                for contender, rows in rounds.items():
                    folder = cluster.folder / f"{contender}-{number}"
                    folder.mkdir()
                    row = measure(cluster, driver, folder, contender == "moves", options)
                    print(f"round {number}, {contender}: {json.dumps(row)}", file=sys.stderr)
                    rows.append(row)
    print(table(rounds))
    cost = min(row["cost"] for row in rounds["moves"])
    aims = {"cost after a minute": {"value": cost, "aim": AIM, "met": cost < AIM}}
    print(json.dumps({"machine": about, "rounds": rounds, "aims": aims}))


def table(rounds: dict[str, list[Row]]) -> str:
    """Return the best round of each contender: other load on the machine only adds time."""
    lines = [f"{'':8} {'step before':>12} {'step after':>12} {'cost':>6} {'moved after':>12}"]
    for contender, rows in rounds.items():
        best = min(rows, key=lambda row: float(row["cost"]))
        moved = f"{best['moved_after_s']:.0f} s" if best["moved_after_s"] is not None else "-"
        steps = f"{best['before_s']:>10.3f} s {best['after_s']:>10.3f} s"
        lines.append(f"{contender:8} {steps} {best['cost']:>6.1%} {moved:>12}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
