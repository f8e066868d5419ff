"""Compare `experiment.allreduce` with the same program started by hand, in one run.

Two workers train a dense Keras model with a global batch of 128, through `fit`. For each size of
the model, the contenders take turns in several rounds:

- no communication: two separate processes at once, half of the batch each; the floor
- allreduce: `experiment.allreduce` with `distribute.strategy()`
- by hand: two processes with TF_CONFIG, and the same strategy
- by hand, defaults: the same with a plain `tf.distribute.MultiWorkerMirroredStrategy()`, and the
  correction of Keras that `fit` needs under it
- gloo: PyTorch's all-reduce of as many bytes, without training; with `--torch-python` only

All contenders use the same numbers of threads. A step is timed inside the function, after warm-up
steps, from the end of a batch to the end of the next batch. The result is the best round of a
contender (its smallest median over steps) relative to that of `by hand`, since other load on the
machine only adds time. The ratios of each round show how much load there was.

The benchmark also measures the time from the call of `allreduce` to the first line of the function:
cold, for the first call in a new Spark session, and warm, for the calls after it. Gangs of several
sizes (`--sizes`) take turns there with a plain barrier job of as many tasks, in two executors.

    python benchmarks/gang.py --rounds 3 --params 1e6 25e6

The program prints a table, then one JSON document. Each aim is reported as met or not; the exit
code does not depend on the aims. gloo needs an environment of its own:

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch
    python benchmarks/gang.py --torch-python /tmp/torch/bin/python
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.gang_starts import measure_starts, size_rows
from lib.machine import machine
from pyspark.sql import SparkSession

from sparkdl import context, distribute, experiment
from sparkdl.cluster.environ import tf_config, thread_counts
from sparkdl.cluster.plan import Plan, Role
from sparkdl.distribute import keras3_patches

WORKERS = 2
GLOBAL_BATCH = 128
LAYERS = 6
WARM_UP = 10
AIM_BY_HAND = 1.02
AIM_DEFAULTS = 1.4
AIM_DEFAULTS_FROM = 25_000_000  # Parameters; fixed costs dominate the steps of smaller models.
AIM_FIRST_LINE_S = 0.4
TIMEOUT_S = 600.0

GLOO = """
import json, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
params, warm_up, steps = map(int, sys.argv[1:])
gradients, steps_s = torch.ones(params), []
for _ in range(warm_up + steps):
    began = time.perf_counter()
    dist.all_reduce(gradients)
    steps_s.append(time.perf_counter() - began)
print(json.dumps({"steps_s": steps_s[warm_up:]}))
dist.barrier()
dist.destroy_process_group()
"""

Row = dict[str, Any]
Contenders = Mapping[str, Callable[[int], Row]]


# ---- the training function


def num_steps(params: int) -> int:
    """Return the number of steps: more steps if a step is short."""
    return max(30, 200_000_000 // params)


def train(params: int, strategy: str) -> Row:
    """Run the training function of all contenders: steps of `fit` on one batch.

    Returns:
        `first_line_s` and `formed_s` (the workers are connected) on the wall clock, the seconds of
        each step, and the numbers of threads of the process.
    """
    first_line_s = time.time()
    import keras
    import tensorflow as tf

    if strategy == "default":
        chosen = tf.distribute.MultiWorkerMirroredStrategy()
        keras3_patches.apply()
    else:
        chosen = distribute.strategy()
    formed_s = time.time()
    width, ends = round((params / LAYERS) ** 0.5), []
    with chosen.scope():
        dense = [keras.layers.Dense(width, activation="relu") for _ in range(LAYERS)]
        model = keras.Sequential([keras.layers.Input((width,)), *dense])
        model.compile(keras.optimizers.SGD(1e-4), "mse")
    batch = GLOBAL_BATCH // WORKERS * chosen.num_replicas_in_sync
    rows = tf.random.stateless_normal((batch, width), (1, 2))
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )
    data = tf.data.Dataset.from_tensors((rows, rows)).repeat()
    steps = WARM_UP + num_steps(params)
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[watch])
    return {
        "first_line_s": first_line_s,
        "formed_s": formed_s,
        "steps_s": [after - before for before, after in pairwise(ends[WARM_UP - 1 :])],
        "threads": {name: os.environ.get(name) for name in thread_counts(1, {})},
    }


# ---- the contenders


def through_spark(spark: SparkSession, root: str, threads: Mapping[str, str], params: int) -> Row:
    """Return the numbers of the chief of a gang that Spark starts."""
    called_s = time.time()
    run = experiment.allreduce(
        partial(train, params, "tuned"),
        num_workers=WORKERS,
        env=threads,
        spark=spark,
        root=root,
        progress=False,
    )
    return {"called_s": called_s, **run.result}


def started_by_hand(command: list[str], environs: list[dict[str, str]]) -> Row:
    """Start a command in several processes; return the numbers that the first one prints last."""
    called_s = time.time()
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            text=True,
        )
        for environ in environs
    ]
    try:
        printed = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if failed := [process.args for process in processes if process.returncode]:
        raise RuntimeError(f"command failed, see above: {failed[0]}")
    return {"called_s": called_s, **json.loads(printed[0].splitlines()[-1])}


def by_hand(threads: Mapping[str, str], strategy: str, params: int) -> Row:
    """Start `train` without sparkdl: a process for each worker, with TF_CONFIG."""
    members = Plan(
        kind="allreduce", roles=(Role(name="worker", count=WORKERS),), is_gang=True
    ).members
    endpoints = [f"127.0.0.1:{port}" for port in free_ports()]
    environs: list[dict[str, str]] = [{**threads} for _ in members]
    if strategy != "none":
        for rank, environ in enumerate(environs):
            environ |= tf_config(members, endpoints, rank)
    return started_by_hand([sys.executable, __file__, "--train", str(params), strategy], environs)


def gloo(python: str, threads: Mapping[str, str], params: int) -> Row:
    """Run an all-reduce of one tensor with as many float32 as the model has parameters."""
    port = str(free_ports()[0])
    common = {**threads, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(WORKERS)}
    numbers = [str(n) for n in (params, WARM_UP, num_steps(params))]
    environs = [{**common, "RANK": str(rank)} for rank in range(WORKERS)]
    return started_by_hand([python, "-c", GLOO, *numbers], environs)


def free_ports() -> list[int]:
    """Return a free port for each worker."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS)]
    try:
        return [server.getsockname()[1] for server in sockets]
    finally:
        for server in sockets:
            server.close()


def train_here(params: int, strategy: str) -> None:
    """Run as a worker that was started by hand: activate its context, print its numbers."""
    if config := json.loads(os.environ.get("TF_CONFIG", "{}")):
        rank = config["task"]["index"]
        context.activate(
            context.Context(kind="allreduce", rank=rank, index=rank, world_size=WORKERS)
        )
    print(json.dumps(train(params, strategy)))


# ---- measuring


def session(master: str) -> SparkSession:
    """Return a new Spark session."""
    builder = SparkSession.builder.master(master).appName("gang")
    builder = builder.config("spark.ui.enabled", "false").config("spark.executor.memory", "1g")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure_round(options: argparse.Namespace, root: str, number: int) -> list[Row]:
    """Return a row for each size and contender; odd rounds run in reverse order."""
    threads = thread_counts(options.threads, {})
    spark = session(options.master)
    contenders: dict[str, Callable[[int], Row]] = {
        "no communication": partial(by_hand, threads, "none"),
        "allreduce": partial(through_spark, spark, root, threads),
        "by hand": partial(by_hand, threads, "tuned"),
        "by hand, defaults": partial(by_hand, threads, "default"),
    }
    if options.torch_python:
        contenders["gloo"] = partial(gloo, options.torch_python, threads)
    try:
        say(f"round {number + 1} of {options.rounds}, a new Spark session")
        cold = through_spark(spark, root, threads, options.params[0])
        rows = [{"name": "cold", "params": options.params[0], "round": number, **cold}]
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for params in options.params:
            for name in names:
                load = os.getloadavg()[0]
                measured = contenders[name](params)
                step_ms = median(measured["steps_s"]) * 1e3
                say(f"{params / 1e6:g} M parameters, {name}: {step_ms:.1f} ms, load {load:.1f}")
                rows.append(
                    {"name": name, "params": params, "round": number, "load": load, **measured}
                )
    finally:
        spark.stop()
    return rows


# ---- reporting


def say(text: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def step_rows(rows: list[Row], params: int) -> list[Row]:
    """Return the time per step of each contender, and its ratios to `by hand`."""
    here = [row for row in rows if row["params"] == params and row["name"] != "cold"]
    medians = {(row["name"], row["round"]): median(row["steps_s"]) for row in here}

    def best(name: str) -> float:
        return min(seconds for (whose, _), seconds in medians.items() if whose == name)

    rows_of_size = []
    for name in dict.fromkeys(row["name"] for row in here):
        mine = [row for row in here if row["name"] == name]
        ratios = [medians[name, r["round"]] / medians["by hand", r["round"]] for r in mine]
        rows_of_size.append(
            {
                "name": name,
                "params": params,
                "median_s": [round(median(row["steps_s"]), 5) for row in mine],
                "min_s": [round(min(row["steps_s"]), 5) for row in mine],
                "ratios": [round(ratio, 4) for ratio in ratios],
                "best_ratio": round(best(name) / best("by hand"), 4),
                "load_before": [round(row["load"], 2) for row in mine],
            }
        )
    return rows_of_size


def start_rows(rows: list[Row]) -> list[Row]:
    """Return the seconds from the call to the first line, and to a strategy of all workers."""
    names = {"cold": "allreduce, cold", "allreduce": "allreduce, warm", "by hand": "by hand"}
    starts = []
    for name, shown in names.items():
        mine = [row for row in rows if row["name"] == name]
        starts.append(
            {
                "name": shown,
                "first_line_s": round(median(r["first_line_s"] - r["called_s"] for r in mine), 3),
                "formed_s": round(median(r["formed_s"] - r["called_s"] for r in mine), 3),
                "calls": len(mine),
            }
        )
    return starts


def aims(steps: list[Row], sizes: list[Row]) -> list[Row]:
    """Compare the ratios with the aims, for each size of the model and of the gang."""
    compared: list[Row] = [
        {"aim": row["name"], "value": row["first_line_s"], "at_most": AIM_FIRST_LINE_S}
        for row in sizes
        if row["name"].startswith("allreduce")
    ]
    for params in dict.fromkeys(row["params"] for row in steps):
        ratio = {row["name"]: row["best_ratio"] for row in steps if row["params"] == params}
        size, mine = f"{params / 1e6:g} M", ratio["allreduce"]
        gain = round(ratio["by hand, defaults"] / mine, 4)
        compared += [{"aim": f"{size}: allreduce / by hand", "value": mine, "at_most": AIM_BY_HAND}]
        if params >= AIM_DEFAULTS_FROM:
            aim = {"aim": f"{size}: defaults / allreduce", "value": gain, "at_least": AIM_DEFAULTS}
            compared += [aim]
    for aim in compared:
        high, low = aim.get("at_most", float("inf")), aim.get("at_least", 0.0)
        aim["met"] = low <= aim["value"] <= high
    return compared


def table(result: Row) -> str:
    """Return the result as a table to read."""
    lines = [f"{'step':<28}{'best round':>13}{'/ by hand':>11}  in each round"]
    for row in result["steps"]:
        label = f"{row['params'] / 1e6:g} M, {row['name']}"
        best_ms = min(row["median_s"]) * 1e3
        each = " ".join(f"{ratio:.3f}" for ratio in row["ratios"])
        lines.append(f"{label:<28}{best_ms:>10.1f} ms{row['best_ratio']:>11.3f}  {each}")
    lines += ["", f"{'start':<28}{'first line':>12}{'formed':>12}"]
    for row in result["starts"]:
        lines.append(f"{row['name']:<28}{row['first_line_s']:>10.2f} s{row['formed_s']:>10.2f} s")
    lines += [f"{row['name']:<28}{row['first_line_s']:>10.2f} s" for row in result["sizes"]]
    lines += [""]
    for aim in result["aims"]:
        rule = f"at most {aim['at_most']}" if "at_most" in aim else f"at least {aim['at_least']}"
        lines.append(
            f"{aim['aim']}: {aim['value']:.3f}, {rule}: {'met' if aim['met'] else 'NOT MET'}"
        )
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> Row:
    """Measure everything; return the JSON document."""
    about, rows, starts = machine(), [], []
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
        for number in range(options.rounds):
            if options.params:
                rows += measure_round(options, root, number)
            starts += measure_starts(session, options.sizes, root, number)
    threads = [row["threads"] for row in rows if "threads" in row]
    if any(counts != threads[0] for counts in threads):
        raise RuntimeError(f"the contenders ran with different numbers of threads: {threads}")
    steps = [row for params in options.params for row in step_rows(rows, params)]
    sizes = size_rows(starts)
    return {
        "benchmark": "gang",
        "machine": about,
        "setting": {
            "master": options.master,
            "workers": WORKERS,
            "global_batch": GLOBAL_BATCH,
            "rounds": options.rounds,
            "threads": threads[0] if threads else None,
        },
        "steps": steps,
        "starts": start_rows(rows) if rows else [],
        "sizes": sizes,
        "aims": aims(steps, sizes),
    }


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    parser.add_argument(
        "--params",
        type=lambda text: int(float(text)),
        nargs="*",
        default=[1_000_000, 25_000_000],
        help="sizes of the models; without any, only the starts are measured",
    )
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[2, 8], help="sizes of the gangs that are started"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of each process, in every pool"
    )
    parser.add_argument(
        "--master", default=f"local-cluster[{WORKERS},1,1024]", help="the Spark master"
    )
    parser.add_argument("--torch-python", help="path of the python of an environment with PyTorch")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)  # Runs a worker.
    return parser.parse_args()


def main() -> None:
    """Measure and print the result; or run as a worker that was started by hand."""
    options = parse()
    if options.train:
        train_here(int(options.train[0]), options.train[1])
        return
    result = measure(options)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
