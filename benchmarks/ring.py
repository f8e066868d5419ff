"""Compare the cost of a step with gradients averaged by sparkdl's ring and by others, in one run.

Two workers train a dense Keras model with a global batch of 128, through `fit`, one thread each.
For each size of the model, the contenders take turns in several rounds:

- no communication: two separate processes at once, half of the batch each; the floor
- ring, Unix and ring, TCP: `distribute.optimizer`
- MWMS tuned and MWMS default: `MultiWorkerMirroredStrategy` with `distribute.strategy()`'s options,
  and with TensorFlow's, both with the correction of Keras that `fit` needs under it
- one process: the whole batch in one process, with the machine to itself
- Horovod: `hvd.DistributedGradientTape` in a loop; with `--horovod-python` only, as it needs an
  environment of its own

A step is timed inside the function, after warm-up steps, from the end of a batch to the end of the
next batch. The result is the best round of a contender, since other load on the machine only adds
time.

The benchmark also measures the reduction alone, of 25 million float32, on 2, 4 and 8 ranks that
share the cores, in buckets of 8 MB; and single collectives of `sparkdl.horovod` on 2 ranks, for
short and long tensors, against the same program with Horovod. With `--torch-python`, both stand
beside PyTorch's gloo.

    python benchmarks/ring.py --rounds 3 --params 6e3 25e6

The program prints a table, then one JSON document. Each aim is reported as met or not.
"""

import argparse
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from lib.machine import machine

from sparkdl import context
from sparkdl.cluster.environ import tf_config, thread_counts
from sparkdl.cluster.plan import Plan, Role
from sparkdl.distribute import keras3_patches
from sparkdl.distribute.invitation import Endpoint, Invitation, channel

GLOBAL_BATCH = 128
LAYERS = 6
WARM_UP = 10
SMALL, LARGE = 100_000, 10_000_000  # Numbers of parameters for which the aims differ.
FLOATS = [1_600, 1_000_000, 4_000_000]  # Sizes of the tensors of single collectives.
TIMEOUT_S = 600.0
PARTS = ("steps", "reductions", "collectives")

HOROVOD = """
import json, sys, time
import tensorflow as tf, horovod.tensorflow as hvd
params, batch, warm_up, steps, layers = map(int, sys.argv[1:])
hvd.init()
width = round((params / layers) ** 0.5)
weights = [tf.Variable(tf.random.normal((width, width)) * 0.01) for _ in range(layers)]
rows, optimizer = tf.random.normal((batch // hvd.size(), width)), tf.keras.optimizers.SGD(1e-4)
@tf.function
def step():
    with tf.GradientTape() as tape:
        x = rows
        for w in weights:
            x = tf.nn.relu(x @ w)
        loss = tf.reduce_mean((x - rows) ** 2)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
    for w, g in zip(weights, gradients):
        w.assign_sub(1e-4 * g)
ends = []
for _ in range(warm_up + steps):
    step()
    ends.append(time.perf_counter())
if hvd.rank() == 0:
    print(json.dumps([b - a for a, b in zip(ends[warm_up - 1:], ends[warm_up:])]))
"""

COLLECTIVES = """
import json, sys, time
from statistics import median
import tensorflow as tf, MODULE as hvd
sizes, warm_up, steps = json.loads(sys.argv[1]), *map(int, sys.argv[2:])
hvd.init()
results = {}
for floats in sizes:
    x = tf.ones([floats])
    parts = tf.split(x, 16)
    calls = {
        "allreduce": lambda: hvd.allreduce(x, op=hvd.Sum, name="allreduce"),
        "grouped": lambda: hvd.grouped_allreduce(parts, op=hvd.Sum),
        "allgather": lambda: hvd.allgather(x, name="allgather"),
        "alltoall": lambda: hvd.alltoall(x, name="alltoall"),
        "reducescatter": lambda: hvd.reducescatter(x, op=hvd.Sum, name="reducescatter"),
        "broadcast": lambda: hvd.broadcast(x, 0, name="broadcast"),
    }
    for name, call in calls.items():
        seconds = []
        for _ in range(warm_up + steps):
            hvd.allreduce(tf.constant(0.0), name="barrier")
            begun = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begun)
        results[f"{name}, {floats} floats"] = median(seconds[warm_up:]) * 1e3
if hvd.rank() == 0:
    print(json.dumps([results]))
"""

GLOO = """
import json, os, sys, time
from statistics import median
import torch, torch.distributed as dist
torch.set_num_threads(1)
sizes, warm_up, steps = json.loads(sys.argv[1]), *map(int, sys.argv[2:])
dist.init_process_group("gloo")
results = {}
for floats in sizes:
    x, size = torch.ones(floats), dist.get_world_size()
    parts, rows = list(torch.ones(floats).split(floats // 16)), torch.empty(floats * size)
    out, half = torch.empty(floats), torch.empty(floats // size)
    calls = {
        "allreduce": lambda: dist.all_reduce(x),
        "grouped": lambda: [w.wait() for w in [dist.all_reduce(p, async_op=True) for p in parts]],
        "allgather": lambda: dist.all_gather_into_tensor(rows, x),
        "alltoall": lambda: dist.all_to_all_single(out, x),
        "reducescatter": lambda: dist.reduce_scatter_tensor(half, x),
        "broadcast": lambda: dist.broadcast(x, 0),
    }
    for name, call in calls.items():
        seconds = []
        try:
            for _ in range(warm_up + steps):
                dist.barrier()
                begun = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - begun)
        except RuntimeError as exc:  # Older versions do not have all of them.
            print(name, exc)
            continue
        results[f"{name}, {floats} floats"] = median(seconds[warm_up:]) * 1e3
if dist.get_rank() == 0:
    print(json.dumps([results]))
dist.barrier()
"""

GLOO_REDUCTION = """
import json, sys, time
from statistics import median
import torch, torch.distributed as dist
torch.set_num_threads(1)
params, warm_up, steps = map(int, sys.argv[1:])
dist.init_process_group("gloo")
x, results = torch.ones(params), []
for parts in (x.split(2 << 20), [x]):
    seconds = []
    for _ in range(warm_up + steps):
        dist.barrier()
        begun = time.perf_counter()
        for part in parts:
            dist.all_reduce(part)
        x.mul_(1 / dist.get_world_size())
        seconds.append(time.perf_counter() - begun)
    results.append(median(seconds[warm_up:]) * 1e3)
if dist.get_rank() == 0:
    print(json.dumps(results))
dist.barrier()
"""

Row = dict[str, Any]


def num_steps(params: int) -> int:
    """Return the number of steps: more steps if a step is short."""
    return max(30, min(2000, 200_000_000 // params))


# ---- the work of a worker


def train(params: int, how: str) -> list[float]:
    """Run steps of `fit` on one batch; return the seconds of each step."""
    import keras
    import tensorflow as tf

    from sparkdl import distribute

    chosen, ends = None, list[float]()  # A strategy must exist before any variable.
    if how == "tuned":
        chosen = distribute.strategy()
        if chosen.num_replicas_in_sync == 1:
            raise RuntimeError("the workers do not train together")
    elif how == "default":
        chosen = tf.distribute.MultiWorkerMirroredStrategy()
        keras3_patches.apply()
    optimizer = keras.optimizers.SGD(1e-4)
    if how == "ring":
        optimizer = distribute.optimizer(optimizer)
    width = round((params / LAYERS) ** 0.5)
    with chosen.scope() if chosen else contextlib.nullcontext():
        dense = [keras.layers.Dense(width, activation="relu") for _ in range(LAYERS)]
        model = keras.Sequential([keras.layers.Input((width,)), *dense])
        model.compile(optimizer, "mse")
    batch = GLOBAL_BATCH // (1 if how in ("alone", "tuned", "default") else 2)
    rows = tf.random.stateless_normal((batch, width), (1, 2))
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )
    data = tf.data.Dataset.from_tensors((rows, rows)).repeat()
    steps = WARM_UP + num_steps(params)
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[watch])
    return [after - before for before, after in pairwise(ends[WARM_UP - 1 :])]


def reduce(params: int, how: str) -> list[float]:
    """Run the reduction alone, in buckets of 8 MB; return the seconds of each reduction."""
    from sparkdl.distribute.world import ring

    world, array, seconds = ring(), np.ones(params, np.float32), list[float]()
    out = np.empty_like(array)
    for _ in range(WARM_UP + 20):
        world.barrier()
        began = time.perf_counter()
        for begin in range(0, params, 2 << 20):
            part = slice(begin, min(begin + (2 << 20), params))
            world.allreduce(array[part], "mean", out=out[part])
        seconds.append(time.perf_counter() - began)
    return seconds[WARM_UP:]


# ---- the contenders


def workers(what: str, how: str, nodes: str, count: int, params: int) -> list[Any]:
    """Return the list of rank 0. Ranks with the same letter in `nodes` share a host."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 * count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers[count:]:
        server.close()
    endpoints = [Endpoint("127.0.0.1", ports[rank], nodes[rank]) for rank in range(count)]
    secret = secrets.token_bytes(32)
    pairs = [channel() for _ in range(count)]
    for rank, (end, _) in enumerate(pairs):
        with end:
            Invitation(rank, endpoints, secret).send(end, servers[rank])
    channels = [theirs for _, theirs in pairs]
    members = Plan(
        kind="allreduce", roles=(Role(name="worker", count=count),), is_gang=True
    ).members
    processes = []
    for rank, invitation in enumerate(channels):
        environ = {**os.environ, **thread_counts(1, {}), "CUDA_VISIBLE_DEVICES": ""}
        environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
        if how in ("tuned", "default"):
            environ |= tf_config(members, [f"127.0.0.1:{p}" for p in ports[count:]], rank)
        me: dict[str, Any] = {"kind": "allreduce", "rank": rank, "index": rank}
        me |= {"world_size": count, "strategy": "multi_worker"}
        environ[context.VARIABLE] = json.dumps({**me, "ring": invitation.fileno()})
        if how in ("alone", "none"):
            environ.pop(context.VARIABLE)
        command = [sys.executable, __file__, f"--{what}", str(params), how]
        descriptors, pipe = (invitation.fileno(),), subprocess.PIPE
        process = subprocess.Popen(
            command, env=environ, stdout=pipe, text=True, pass_fds=descriptors
        )
        processes.append(process)
        invitation.close()
    return first_result(processes)


def launcher(python: str) -> list[str]:
    """Return the words that start two ranks of Horovod on the loopback interface."""
    program = os.path.join(os.path.dirname(python), "horovodrun")
    return [program, "-np", "2", "--gloo", "--network-interfaces", "lo"]


def horovod(python: str, params: int) -> list[float]:
    """Run the steps with Horovod, started by its own launcher; return their seconds."""
    numbers = [params, GLOBAL_BATCH, WARM_UP, num_steps(params), LAYERS]
    command = [*launcher(python), python, "-c", HOROVOD, *map(str, numbers)]
    environ = {**os.environ, **thread_counts(1, {}), "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    return first_result([process])


def collect(params: int, how: str) -> None:
    """Run single collectives of `sparkdl.horovod`; print their milliseconds."""
    sys.argv = ["collectives", *collective_arguments()]
    exec(COLLECTIVES.replace("MODULE", "sparkdl.horovod.tensorflow"), {})  # noqa: S102 See above.


def collective_arguments() -> list[str]:
    """Return the arguments of the programs that run single collectives."""
    return [json.dumps(FLOATS), str(WARM_UP), "30"]


def collectives_of_horovod(python: str) -> dict[str, float]:
    """Return the milliseconds of Horovod's collectives."""
    program = COLLECTIVES.replace("MODULE", "horovod.tensorflow")
    words = [*launcher(python), python, "-c", program, *collective_arguments()]
    environ = {**os.environ, **thread_counts(1, {}), "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True)
    return first_result([process])[0]


def by_gloo(python: str, program: str, arguments: list[str], count: int = 2) -> list[Any]:
    """Return the list that rank 0 of a program with PyTorch's gloo prints."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = []
    for rank in range(count):
        environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "GLOO_SOCKET_IFNAME": "lo"}
        words, pipe = [python, "-c", program, *arguments], subprocess.PIPE
        processes.append(subprocess.Popen(words, env=environ, stdout=pipe, text=True))
    return first_result(processes)


def measure_reductions(options: argparse.Namespace) -> dict[str, float]:
    """Return the best round of the reduction of 100 MB in milliseconds, by contender."""
    best: dict[str, float] = {}
    for number in range(options.rounds):
        for count in (2, 4, 8) if number % 2 == 0 else (8, 4, 2):
            found: dict[str, float] = {}
            for kind, nodes in (("Unix", "aaaaaaaa"), ("TCP", "abcdefgh")):
                measured = workers("reduce", "ring", nodes, count, 25_000_000)
                found[f"{kind}, {count} ranks"] = median(measured) * 1e3
            if options.torch_python:
                words = ["25000000", str(WARM_UP), "20"]
                ms = by_gloo(options.torch_python, GLOO_REDUCTION, words, count)
                found |= {f"gloo, {count} ranks": ms[0], f"gloo whole, {count} ranks": ms[1]}
            for name, value in found.items():
                best[name] = min(best.get(name, value), value)
                say(f"100 MB, {name}: {value:.1f} ms, load {os.getloadavg()[0]:.1f}")
    return dict(sorted(best.items()))


def measure_collectives(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the best round of each collective in milliseconds, by contender."""
    running: dict[str, Callable[[], dict[str, float]]] = {
        "sparkdl, Unix": lambda: workers("collect", "ring", "aa", 2, 0)[0],
        "sparkdl, TCP": lambda: workers("collect", "ring", "ab", 2, 0)[0],
    }
    if options.horovod_python:
        running["Horovod"] = partial(collectives_of_horovod, options.horovod_python)
    if options.torch_python:
        running["gloo"] = lambda: by_gloo(options.torch_python, GLOO, collective_arguments())[0]
    best: dict[str, dict[str, float]] = {name: {} for name in running}
    for number in range(options.rounds):
        for name in list(running) if number % 2 == 0 else list(running)[::-1]:
            for call, ms in running[name]().items():
                best[name][call] = round(min(best[name].get(call, ms), ms), 3)
            say(f"collectives, {name}: load {os.getloadavg()[0]:.1f}")
    return best


def first_result(processes: list[Any]) -> list[Any]:
    """Return the list in the last line that the first process prints."""
    try:
        printed = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if failed := [process.args for process in processes if process.returncode]:
        raise RuntimeError(f"command failed, see above: {failed[0]}")
    last: str = printed[0].splitlines()[-1]
    found: list[Any] = json.loads(last[last.rindex("[") :])  # Horovod prefixes the rank.
    return found


def contenders(options: argparse.Namespace) -> dict[str, Callable[[int], list[float]]]:
    """Return the contenders by name."""
    running: dict[str, Callable[[int], list[float]]] = {
        "no communication": partial(workers, "train", "none", "ab", 2),
        "ring, Unix": partial(workers, "train", "ring", "aa", 2),
        "ring, TCP": partial(workers, "train", "ring", "ab", 2),
        "MWMS tuned": partial(workers, "train", "tuned", "aa", 2),
        "MWMS default": partial(workers, "train", "default", "aa", 2),
        "one process": partial(workers, "train", "alone", "a", 1),
    }
    if options.horovod_python:
        running["Horovod"] = partial(horovod, options.horovod_python)
    return running


# ---- measuring and reporting


def say(text: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def measure(options: argparse.Namespace) -> Row:
    """Return the median of the best round of each contender in milliseconds, by size."""
    sizes = options.params if "steps" in options.parts else []
    steps: dict[int, dict[str, float]] = {params: {} for params in sizes}
    for number in range(options.rounds):
        names = list(contenders(options).items())
        for params, best in steps.items():
            for name, run in names if number % 2 == 0 else names[::-1]:
                step_ms = median(run(params)) * 1e3
                best[name] = min(best.get(name, step_ms), step_ms)
                say(f"{params / 1e6:g} M, {name}: {step_ms:.2f} ms, load {os.getloadavg()[0]:.1f}")
    alone = measure_reductions(options) if "reductions" in options.parts else {}
    collectives = measure_collectives(options) if "collectives" in options.parts else {}
    return {"steps_ms": steps, "reduction_ms": alone, "collectives_ms": collectives}


def aims(steps: dict[int, dict[str, float]]) -> list[Row]:
    """Compare the values with the aims, for each size of the model."""
    compared: list[Row] = []
    for params, ms in steps.items():
        size, ring = f"{params / 1e6:g} M", ms["ring, Unix"]
        floor = ring / ms["no communication"]
        if params <= SMALL:
            compared.append({"aim": f"{size}: ring / floor", "value": floor, "at_most": 1.25})
        if params >= LARGE:
            compared.append({"aim": f"{size}: ring / floor", "value": floor, "at_most": 1.2})
            gain = ms["MWMS tuned"] / ring
            compared.append({"aim": f"{size}: MWMS tuned / ring", "value": gain, "at_least": 2.0})
            if "Horovod" in ms:
                gain = ms["Horovod"] / ring
                compared.append({"aim": f"{size}: Horovod / ring", "value": gain, "at_least": 1.4})
    for aim in compared:
        aim["value"] = round(aim["value"], 3)
        high, low = aim.get("at_most", float("inf")), aim.get("at_least", 0.0)
        aim["met"] = low <= aim["value"] <= high
    return compared


def table(result: Row) -> str:
    """Return the result as a table to read."""
    lines = [f"{'step, best round':<32}{'ms':>10}{'/ floor':>10}"]
    for params, ms in result["steps_ms"].items():
        for name, value in ms.items():
            label = f"{params / 1e6:g} M, {name}"
            lines.append(f"{label:<32}{value:>10.2f}{value / ms['no communication']:>10.2f}")
    lines += ["", f"{'reduction of 100 MB':<32}{'ms':>10}"]
    lines += [f"{name:<32}{value:>10.1f}" for name, value in result["reduction_ms"].items()]
    names = list(result["collectives_ms"])
    lines += ["", f"{'collective, 2 ranks, ms':<32}" + "".join(f"{name:>15}" for name in names)]
    for call in result["collectives_ms"][names[0]] if names else ():
        values = [result["collectives_ms"][name].get(call, "-") for name in names]
        lines.append(f"{call:<32}" + "".join(f"{value:>15}" for value in values))
    lines += [""]
    for aim in result["aims"]:
        bound = f"<= {aim['at_most']}" if "at_most" in aim else f">= {aim['at_least']}"
        lines.append(f"{'met   ' if aim['met'] else 'MISSED'} {aim['aim']} {aim['value']} {bound}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print the result; or run as a worker."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument(
        "--params", type=lambda t: int(float(t)), nargs="+", default=[6000, 25_000_000]
    )
    parser.add_argument(
        "--horovod-python", help="path of the python of an environment with Horovod"
    )
    parser.add_argument("--torch-python", help="path of the python of an environment with PyTorch")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--collect", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--reduce", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(int(options.train[0]), options.train[1])))
    elif options.reduce:
        print(json.dumps(reduce(int(options.reduce[0]), options.reduce[1])))
    elif options.collect:
        collect(int(options.collect[0]), options.collect[1])
    else:
        result = {"benchmark": "ring", "machine": machine(), **measure(options)}
        result["aims"] = aims(result["steps_ms"])
        print(table(result), json.dumps(result, indent=1), sep="\n\n")


if __name__ == "__main__":
    main()
