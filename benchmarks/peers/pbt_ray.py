"""Ray Tune's part of `pbt.py`, which starts this program in an environment of its own.

The program writes JSON lines: first the versions of its packages, then, for each name of a kind of
members that it reads, the result. It ends when its standard input is closed. An interval of time 1
takes `INTERVAL_S` seconds here, beside the time that Ray takes to copy a member.
"""

import importlib.metadata
import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

from lib.descent import MEMBERS, SPEEDS, begin, descend
from lib.peer import own_stdout

INTERVALS = 20
INTERVAL_S = 0.1
SEEDS = 1


def population(speed: str, seed: int, folder: str) -> dict[str, Any]:
    """Train a population by Ray's rule; return what its members have done."""
    import time

    import numpy as np
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    log = Path(folder, f"{seed}.jsonl")

    class Member(tune.Trainable):  # type: ignore[misc, name-defined]
        def setup(self, config: dict[str, Any]) -> None:
            self.weights = begin()

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.config = new_config
            return True

        def _member(self) -> int:
            return int(self.trial_id.rsplit("_", 1)[1])

        def step(self) -> dict[str, float]:
            rate, number = self.config["rate"], self._member()
            time.sleep(INTERVAL_S * SPEEDS[speed](number, rate, random.random()))
            self.weights, loss = descend(self.weights, rate, random.randrange(2**31))
            with log.open("a") as file:
                file.write(json.dumps({"member": number, "loss": loss}) + "\n")
            return {"loss": loss}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            state = {"weights": self.weights.tolist(), "member": self._member()}
            Path(checkpoint_dir, "state.json").write_text(json.dumps(state))

        def load_checkpoint(self, checkpoint: Any) -> None:
            state = json.loads(Path(checkpoint, "state.json").read_text())
            self.weights = np.array(state["weights"])
            if state["member"] != self._member():
                with log.open("a") as file:
                    file.write(json.dumps({"member": self._member(), "clone": True}) + "\n")

    chance = random.Random(seed)
    rule = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        hyperparam_mutations={"rate": tune.loguniform(1e-4, 1e-1)},
        quantile_fraction=0.25,
        resample_probability=0.25,
    )
    rates = [10 ** chance.uniform(-4, -1) for _ in range(MEMBERS)]
    tune.Tuner(
        tune.with_resources(Member, {"cpu": 1}),
        param_space={"rate": tune.grid_search(rates)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=rule, reuse_actors=True),
        run_config=tune.RunConfig(
            stop={"training_iteration": INTERVALS}, storage_path=folder, name=str(seed), verbose=0
        ),
    ).fit()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    counts = Counter(line["member"] for line in lines if "loss" in line)
    last = {line["member"]: line["loss"] for line in lines if "loss" in line}
    return {
        "clones": sum("clone" in line for line in lines),
        "continued": sum(counts.values()) - MEMBERS,
        "intervals": [min(counts.values()), max(counts.values())],
        "best": min(last.values()),
        "median": median(last.values()),
    }


def main() -> None:
    """Answer until the standard input is closed."""
    pipe = own_stdout()
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(num_cpus=MEMBERS, _node_ip_address="127.0.0.1", **quiet)
    print(json.dumps({"ray": importlib.metadata.version("ray")}), file=pipe)
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            rows = [population(line.strip(), seed, folder) for seed in range(SEEDS)]
        continued = sum(row["continued"] for row in rows)
        answer = {
            "members": line.strip(),
            "rule": "Ray Tune",
            "slots": MEMBERS,
            "clones_per_continuation": sum(row["clones"] for row in rows) / continued,
            "intervals_per_member": [
                min(row["intervals"][0] for row in rows),
                max(row["intervals"][1] for row in rows),
            ],
            "best_loss": median(row["best"] for row in rows),
            "median_loss": median(row["median"] for row in rows),
        }
        print(json.dumps(answer), file=pipe)
    ray.shutdown()


if __name__ == "__main__":
    main()
