"""Compare population based training with random search, with the same number of training steps.

A trial descends a quadratic function of ten parameters, whose gradients are noisy, by stochastic
gradient descent. A large learning rate comes near the minimum fast, but the noise keeps it away
from it; a small one comes nearer, but slowly. A schedule that begins large and becomes small is
better than any constant learning rate. The gradients of two directions differ by a factor of 100,
as in networks.

* Population based training: 8 members, 10 intervals of 30 steps each: 80 trials.
* Random search: 8 constant learning rates, 300 steps each.
* The best of 40 constant learning rates with 300 steps each, five times the budget.

The winner of each population is replayed: its metrics must be the same again.

Before, populations with as many slots as members are simulated, whose members differ in speed, or
fail: the share of the continuations that copy another member, the intervals of each member, and
from where a member continues that has failed. With an environment for Ray (`peers/environment.sh
ray`), Ray Tune's own rule trains the same function.

    python benchmarks/pbt.py --rounds 5
    python benchmarks/pbt.py --rounds 0 --seeds 40   # only the simulation

The program runs on embedded Spark with two slots, prints tables, then one JSON document, and
removes its files. Each aim is reported as met or not; the exit code depends on the replays only.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib import peer
from lib.descent import SPEEDS
from lib.floor import session
from lib.machine import machine
from lib.populations import simulated

from sparkdl import experiment
from sparkdl.runs import Run
from sparkdl.search import Float

MEMBERS, INTERVALS, STEPS = 8, 10, 30
MORE = 40
SPACE = {"rate": Float(1e-4, 1e-1, log=True)}

Row = dict[str, Any]


def descend(rate: float, steps: int) -> dict[str, float]:
    """Continue for some steps from the checkpoint, if there is one; return the loss."""
    import json
    from pathlib import Path

    import numpy as np

    from sparkdl import context

    curvature = np.geomspace(0.1, 10.0, 10)
    before = context.get_checkpoint()
    x = np.array(json.loads(Path(before, "x.json").read_text())) if before else np.ones(10)
    noise = np.random.default_rng(context.seed)
    for _ in range(steps):
        x = x - rate * curvature * (x + noise.normal(0.0, 1.0, 10))
    Path("state").mkdir()
    Path("state", "x.json").write_text(json.dumps(x.tolist()))
    loss = float(0.5 * np.sum(curvature * x**2))
    context.report({"loss": loss}, checkpoint="state")
    return {"loss": loss}


def interval(rate: float) -> dict[str, float]:
    """Train one interval."""
    return descend(rate, STEPS)


def whole(rate: float) -> dict[str, float]:
    """Train as long as a member of the population."""
    return descend(rate, STEPS * INTERVALS)


def search(train: Any, root: str, seed: int, num_trials: int, algorithm: Any) -> tuple[Run, float]:
    """Run a search; return it and its seconds."""
    begun = time.perf_counter()
    run = experiment.search(
        train,
        SPACE,
        algorithm=algorithm,
        num_trials=num_trials,
        metric="loss",
        direction="min",
        seed=seed,
        root=root,
        progress=False,
    )
    return run, time.perf_counter() - begun


def final(run: Run) -> float:
    """Return the best loss of the members at the end of their last interval."""
    last = {trial.member: trial for trial in run.trials}
    return min(trial.value for trial in last.values() if trial.value is not None)


def one_round(root: str, seed: int) -> Row:
    """Return the best losses of the searches, and what the replay gave."""
    pbt = {"pbt": {"population": MEMBERS}}
    population, seconds = search(interval, root, seed, MEMBERS * INTERVALS, pbt)
    constant, constant_s = search(whole, root, seed, MEMBERS, "random")
    more, _ = search(whole, root, seed, MORE, "random")
    winner = min(population.trials[-MEMBERS:], key=lambda trial: trial.value or float("inf"))
    replayed = experiment.replay(winner, progress=False)
    return {
        "seed": seed,
        "pbt": final(population),
        "random": constant.best.value,
        "random x 5": more.best.value,
        "pbt_s": seconds,
        "random_s": constant_s,
        "replayed": replayed.trials[-1].metrics == winner.metrics,
        "schedule": [trial.params["rate"] for trial in replayed.trials],
    }


def ray_rows(environments: Path) -> list[Row]:
    """Return what Ray Tune's rule gives for members of each kind; nothing without Ray."""
    with ExitStack() as stack:
        peers = peer.started(stack, environments, {"ray": "peers/pbt_ray.py"})
        answers = [p.ask_while_running(name) for p in peers.values() for name in SPEEDS]
    return [answer for answer in answers if answer]


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=40, help="of the simulation")
    parser.add_argument("--quick", action="store_true", help="one round, and four seeds")
    peer.add_option(parser)
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    populations = simulated(4 if args.quick else args.seeds)
    rays = ray_rows(args.peers)
    for row in [*populations, *rays]:
        print(json.dumps(row))
    if not rounds:
        print(json.dumps({"machine": machine(), "populations": populations, "ray": rays}))
        return 0
    with tempfile.TemporaryDirectory() as root, session("pbt"):
        rows = [one_round(root, seed) for seed in range(rounds)]
    print("seed       pbt    random random x5  pbt s rand s  replay")
    for row in rows:
        print(
            f"{row['seed']:>4} {row['pbt']:>9.4f} {row['random']:>9.4f} {row['random x 5']:>9.4f} "
            f"{row['pbt_s']:>6.1f} {row['random_s']:>6.1f}  "
            f"{'the same' if row['replayed'] else 'DIFFERS'}"
        )
        print("     schedule", " ".join(f"{rate:.2g}" for rate in row["schedule"]))
    ratio = median(row["random"] / row["pbt"] for row in rows)
    is_better = ratio > 1
    print(f"median of random / pbt: {ratio:.2f} (aim: above 1, {'met' if is_better else 'missed'})")
    result = {"machine": machine(), "rounds": rows, "ratio": ratio}
    print(json.dumps({**result, "populations": populations, "ray": rays}))
    return 0 if all(row["replayed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
