"""Compare memory and time of a training with a sharded optimizer and without shards.

Ranks train a dense Keras model with Adam by `fit`, one thread each, on one host. For each number of
ranks, both contenders take turns in several rounds. Reported are, of rank 0:

- the bytes of the optimizer's state that belong to weights
- the peak of the resident memory, less that of the process before it built the model
- the median of the seconds of a step in the best round

    python benchmarks/zero.py --ranks 2 4 --params 25e6

The program prints a table, then one JSON document. Each aim is reported as met or not: the state is
divided by the number of ranks, and a step takes at most 1.25 times as long.
"""

import argparse
import json
import os
import resource
import secrets
import socket
import subprocess
import sys
import time
from itertools import pairwise
from statistics import median
from typing import Any

from lib.machine import machine

from sparkdl import context
from sparkdl.cluster.environ import thread_counts
from sparkdl.distribute.invitation import Endpoint, Invitation, channel

GLOBAL_BATCH, LAYERS, WARM_UP, STEPS = 128, 6, 5, 30
TIMEOUT_S = 900.0

Row = dict[str, Any]


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(params: int, shard: bool) -> Row:
    """Run steps of `fit` on one batch; return what this rank has measured."""
    import keras
    import numpy as np
    import tensorflow as tf

    from sparkdl import distribute

    optimizer = distribute.optimizer(keras.optimizers.Adam(1e-4), shard=shard)
    width = round((params / LAYERS) ** 0.5)
    rows = tf.random.stateless_normal((GLOBAL_BATCH // context.world_size, width), (1, 2))
    begun = peak_bytes()
    dense = [keras.layers.Dense(width, activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.layers.Input((width,)), *dense])
    model.compile(optimizer, "mse")
    ends: list[float] = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )
    data = tf.data.Dataset.from_tensors((rows, rows)).repeat()
    model.fit(data, steps_per_epoch=WARM_UP + STEPS, verbose=0, callbacks=[watch])
    state = sum(np.prod(v.shape) * 4 for v in optimizer.variables if v.shape)
    seconds = [after - before for before, after in pairwise(ends[WARM_UP - 1 :])]
    return {
        "state_mb": round(float(state) / 1e6, 2),
        "peak_mb": round((peak_bytes() - begun) / 1e6, 1),
        "step_ms": round(median(seconds) * 1e3, 2),
    }


def run(params: int, count: int, shard: bool) -> Row:
    """Train on some ranks, and return what rank 0 has measured."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    endpoints = [Endpoint("127.0.0.1", server.getsockname()[1], "a") for server in servers]
    secret, processes = secrets.token_bytes(32), []
    for rank in range(count):
        end, theirs = channel()
        with end:
            Invitation(rank, endpoints, secret).send(end, servers[rank])
        me: Row = {"kind": "allreduce", "rank": rank, "index": rank, "world_size": count}
        me |= {"strategy": "multi_worker", "ring": theirs.fileno()}
        environ = {**os.environ, **thread_counts(1, {}), "CUDA_VISIBLE_DEVICES": ""}
        environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", context.VARIABLE: json.dumps(me)}
        command = [sys.executable, __file__, "--train", str(params), str(int(shard))]
        processes.append(
            subprocess.Popen(
                command,
                env=environ,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=(theirs.fileno(),),
            )
        )
        theirs.close()
    try:
        printed = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise RuntimeError("a rank failed, see above")
    found: Row = json.loads(printed[0].splitlines()[-1])
    return found


def measure(options: argparse.Namespace) -> list[Row]:
    """Return the best round of each contender, by number of ranks."""
    rows: list[Row] = []
    for count in options.ranks:
        best: dict[bool, Row] = {}
        for number in range(options.rounds):
            for shard in (False, True) if number % 2 == 0 else (True, False):
                seen = run(options.params, count, shard)
                others = best.get(shard, seen)
                best[shard] = {name: min(seen[name], others[name]) for name in seen}
                load = os.getloadavg()[0]
                print(f"{count} ranks, shard={shard}: {seen}, load {load:.1f}", file=sys.stderr)
        rows.append({"ranks": count, "whole": best[False], "sharded": best[True]})
    return rows


def aims(rows: list[Row]) -> list[Row]:
    """Compare the values with the aims."""
    compared = []
    for row in rows:
        whole, sharded, count = row["whole"], row["sharded"], row["ranks"]
        divided = sharded["state_mb"] * count / whole["state_mb"]
        slower = sharded["step_ms"] / whole["step_ms"]
        compared.append({"aim": f"{count} ranks: state x ranks", "value": divided, "at_most": 1.01})
        compared.append({"aim": f"{count} ranks: time of a step", "value": slower, "at_most": 1.25})
    for aim in compared:
        aim["value"] = round(aim["value"], 3)
        aim["met"] = aim["value"] <= aim["at_most"]
    return compared


def table(result: Row) -> str:
    """Return the result as a table to read."""
    lines = [f"{'ranks':<8}{'':<10}{'state MB':>10}{'peak MB':>10}{'step ms':>10}"]
    for row in result["rows"]:
        for name in ("whole", "sharded"):
            values = "".join(f"{value:>10}" for value in row[name].values())
            lines.append(f"{row['ranks']:<8}{name:<10}{values}")
    for aim in result["aims"]:
        met = "met   " if aim["met"] else "MISSED"
        lines.append(f"{met} {aim['aim']} {aim['value']} <= {aim['at_most']}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print the result; or run as a rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--params", type=lambda text: int(float(text)), default=25_000_000)
    parser.add_argument("--train", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.train[0], bool(options.train[1]))))
        return
    rows = measure(options)
    result = {"benchmark": "zero", "machine": machine(), "params": options.params, "rows": rows}
    result["aims"] = aims(rows)
    print(table(result), json.dumps(result, indent=1), sep="\n\n")


if __name__ == "__main__":
    main()
