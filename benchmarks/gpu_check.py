"""Check on one GPU what no machine without a GPU can show, with PyTorch and JAX.

No Spark and no TensorFlow are needed: the processes come from the fork server of an executor, and
two ranks join a ring as a gang does. It takes about two minutes. Each check raises an error if a
value is wrong; times are for comparison within one run.

- start: a child of the fork server that has imported the framework, against a fresh interpreter;
  the server itself must hold no context of CUDA
- fractions: two trials at once on one GPU, each with 0.3 of its memory
- nccl: a process group of one rank
- ring: the mean of 100 MB over two ranks that share the GPU, in its memory and in the host's
- training: 20 steps on two ranks, against one process with all rows, in three precisions
- predict: a model of PyTorch on the GPU and on one core
- busy: `devices.is_busy` while a process computes, and after it

    python benchmarks/gpu_check.py --output gpu.json

The program prints a table, then one JSON document.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from sparkdl import devices
from sparkdl.cluster.gang.rendezvous import listen
from sparkdl.cluster.process.server_connection import Start
from sparkdl.cluster.process.training_process import TrainingProcess
from sparkdl.distribute.invitation import Endpoint, Invitation, channel

PRELOADS = {"torch": ("torch",), "jax": ("jax", "jax.numpy")}
TIMEOUT_S = 120.0
FRACTION = 0.3
MEGABYTES = 100
STEPS = 20
# The two ranks' sums are in another order than those of one process.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3}


def start(framework: str) -> Start:
    """Return the conditions of a process whose framework the fork server has imported."""
    return Start(application="gpu_check", framework=framework, preload=PRELOADS[framework])


class Trial:
    """A training process on the first GPU.

    Args:
        framework: the framework that it uses.
        function: what it runs.
        folder: an empty folder for its log and files.
        env: further environment variables.
        sockets: see `TrainingProcess`.
        context: fields of its `Context`.
    """

    def __init__(
        self,
        framework: str,
        function: Callable[..., Any],
        folder: Path,
        env: dict[str, str] | None = None,
        sockets: Any = None,
        **context: Any,
    ) -> None:
        folder.mkdir(parents=True)
        self._log = folder / "log.txt"
        request = {
            "function": cloudpickle.dumps(function),
            "modules": {},
            "path": sys.path,
            "cwd": str(folder / "cwd"),
            "environ": {**os.environ, "CUDA_VISIBLE_DEVICES": "0", **(env or {})},
            "context": {"run": "gpu_check", "params": {}, "seed": 1, "folder": str(folder)}
            | context,
            "metrics": [None],
            "secrets": [],
        }
        self.begun = time.monotonic()
        self.process = TrainingProcess(
            start(framework), request, self._log, timeout_s=TIMEOUT_S, sockets=sockets or {}
        )

    def outputs(self) -> dict[str, Any]:
        """Return what the function returned.

        Raises:
            RuntimeError: if it failed.
        """
        with self.process as process:
            end = process.wait(TIMEOUT_S)
        if end.outcome is None or end.outcome.error:
            why = end.outcome.error if end.outcome else f"exit code {end.code}"
            raise RuntimeError(f"a process failed: {why}\n{self._log.read_text()[-3000:]}")
        return dict(end.outcome.outputs)


def expect(is_right: bool, what: str) -> None:
    """Raise an error unless a value is right."""
    if not is_right:
        raise AssertionError(what)


def use_torch() -> dict[str, float]:
    """Multiply on the GPU with PyTorch."""
    import torch

    had_context = torch.cuda.is_initialized()
    value = (torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")).sum()
    return {"sum": float(value), "had_context": float(had_context)}


def use_jax() -> dict[str, float]:
    """Add on the GPU with JAX."""
    import jax
    import jax.numpy as jnp
    from jax._src import xla_bridge

    had_context = bool(xla_bridge._backends)
    value = jnp.full((512, 512), 512.0).sum()
    return {
        "sum": float(value),
        "had_context": float(had_context),
        "on_gpu": float(jax.devices()[0].platform == "gpu"),
    }


def check_start(folder: Path) -> dict[str, Any]:
    """Time processes until they have used the GPU; the first one waits for the fork server."""
    found: dict[str, Any] = {}
    for framework, function in (("torch", use_torch), ("jax", use_jax)):
        times = []
        for number in range(3):
            trial = Trial(framework, function, folder / f"start-{framework}-{number}")
            outputs = trial.outputs()
            times.append(time.monotonic() - trial.begun)
            expect(outputs["sum"] == 512.0**3, f"{framework} computed {outputs['sum']}")
            expect(not outputs["had_context"], f"the fork server of {framework} has used the GPU")
            expect(bool(outputs.get("on_gpu", 1)), f"{framework} did not use the GPU")
        program = f"from gpu_check import {function.__name__} as f; assert f()['sum'] == 512.0**3"
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        begun = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path}
        )
        found[framework] = {
            "first_s": times[0],
            "warm_s": min(times[1:]),
            "fresh_interpreter_s": time.monotonic() - begun,
        }
    return found


def fill_torch() -> dict[str, float]:
    """Take as much memory as this trial may have with PyTorch, and once more than that."""
    import time

    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.3)
    held = torch.empty(int(total * 0.25), dtype=torch.uint8, device="cuda")
    time.sleep(3)  # Both trials hold their memory for a while.
    try:
        torch.empty(int(total * 0.1), dtype=torch.uint8, device="cuda")
        refused = 0.0
    except torch.OutOfMemoryError:
        refused = 1.0
    return {"held_gb": held.numel() / 1e9, "refused": refused}


def fill_jax() -> dict[str, float]:
    """Return the limit of JAX's memory."""
    import jax

    return {"limit_gb": jax.devices()[0].memory_stats()["bytes_limit"] / 1e9}


def check_fractions(folder: Path) -> dict[str, Any]:
    """Let two trials share the memory of the GPU, with PyTorch and with JAX."""
    both = [Trial("torch", fill_torch, folder / f"fraction-torch-{n}") for n in range(2)]
    of_torch = [trial.outputs() for trial in both]
    expect(all(one["refused"] for one in of_torch), "PyTorch took more than its fraction")
    env = {"XLA_PYTHON_CLIENT_MEM_FRACTION": str(FRACTION)}
    both = [Trial("jax", fill_jax, folder / f"fraction-jax-{n}", env) for n in range(2)]
    of_jax = [trial.outputs() for trial in both]
    expect(len({one["limit_gb"] for one in of_jax}) == 1, f"limits of JAX differ: {of_jax}")
    return {"torch_held_gb": of_torch[0]["held_gb"], "jax_limit_gb": of_jax[0]["limit_gb"]}


def use_nccl() -> dict[str, float]:
    """Reduce over a process group of one rank."""
    import time

    import torch
    import torch.distributed as dist

    begun = time.monotonic()
    store = dist.HashStore()
    dist.init_process_group("nccl", rank=0, world_size=1, store=store)
    value = torch.full((1000,), 3.0, device="cuda")
    dist.all_reduce(value)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return {"sum": float(value.sum()), "seconds": time.monotonic() - begun}


def gang(
    function: Callable[..., Any], folder: Path, name: str, count: int = 2
) -> list[dict[str, Any]]:
    """Run a function on ranks that have joined a ring, and return what each returned."""
    listeners = [listen("127.0.0.1") for _ in range(count)]
    endpoints = [Endpoint("127.0.0.1", one.getsockname()[1], "here") for one in listeners]
    secret, trials = secrets.token_bytes(32), []
    for rank, listener in enumerate(listeners):
        ours, theirs = channel()
        with ours:
            Invitation(rank, endpoints, secret).send(ours, listener)
        context = {"rank": rank, "world_size": count, "kind": "horovod", "index": rank}
        context |= {"local_rank": rank, "local_world_size": count, "num_readers": count}
        sockets = {"ring": theirs}
        trials.append(Trial("torch", function, folder / f"{name}-{rank}", None, sockets, **context))
    return [trial.outputs() for trial in trials]


def mean_of_tensors() -> dict[str, float]:
    """Time the mean of 100 MB in the memory of the GPU and in the memory of the host."""
    import time

    import torch

    import sparkdl.horovod.torch as hvd

    hvd.init()
    found = {}
    for place in ("cuda", "cpu"):
        value = torch.full((25_000_000,), float(hvd.rank()), device=place)
        times = []
        for _ in range(6):
            begun = time.monotonic()
            mean = hvd.allreduce(value)
            torch.cuda.synchronize()
            times.append(time.monotonic() - begun)
        assert mean.device.type == place and bool((mean == 0.5).all())
        found[f"{place}_ms"] = 1000 * min(times[1:])
    return found


def training(precision: str) -> Callable[[], dict[str, float]]:
    """Return a function that trains on its rank's rows, or on all rows outside a gang."""

    def train() -> dict[str, float]:
        import torch

        import sparkdl.horovod.torch as hvd

        hvd.init()
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.manual_seed(0)
        rows = torch.randn(512, 32)
        wanted = rows[:, :4].sum(1, keepdim=True).tanh()
        mine = slice(hvd.rank(), None, hvd.size())
        rows, wanted = rows[mine].cuda(), wanted[mine].cuda()
        model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        ).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        scaler = torch.amp.GradScaler("cuda", enabled=precision == "float16")
        dtype = getattr(torch, precision)
        for _ in range(20):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=dtype, enabled=precision != "float32"):
                loss = torch.nn.functional.mse_loss(model(rows).float(), wanted)
            scaler.scale(loss).backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(model(rows), wanted)
        weights = torch.cat([p.flatten() for p in model.parameters()])[None]
        everywhere = hvd.allgather(weights)
        assert bool((everywhere == weights).all()), "the ranks have other weights"
        return {
            "loss": float(hvd.allreduce(loss.reshape(1))[0]),
            "num_equal": len(everywhere),
        }

    return train


def check_training(folder: Path) -> dict[str, Any]:
    """Train on two ranks and in one process."""
    found = {}
    for precision, tolerance in TOLERANCE.items():
        ranks = gang(training(precision), folder, f"training-{precision}")
        [one] = gang(training(precision), folder, f"alone-{precision}", count=1)
        expect(ranks[0]["num_equal"] == 2, f"{precision}: {ranks[0]}")
        difference = abs(ranks[0]["loss"] - one["loss"]) / one["loss"]
        expect(difference < tolerance, f"{precision}: loss {ranks[0]} on two ranks, {one} on one")
        found[precision] = {"two_ranks": ranks[0]["loss"], "one_process": one["loss"]}
    return found


def predictor() -> Callable[[], dict[str, float]]:
    """Return a function that predicts on the GPU if it sees one, else on one core."""

    def run() -> dict[str, float]:
        import hashlib
        import pickle
        import time

        import numpy as np
        import torch

        from sparkdl.inference.model_file import StoredModel
        from sparkdl.inference.tensor_spec import TensorSpec
        from sparkdl.inference.torch_model import load_torch

        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1)
        )
        data = pickle.dumps(model)
        stored = StoredModel(
            name="model",
            library="torch",
            digest=hashlib.sha256(data).hexdigest(),
            data=data,
            outputs=(TensorSpec("y", (1,), "float32"),),
        )
        predict = load_torch(stored, [TensorSpec("x", (256,), "float32")], detect_gpus=True)
        rows = np.random.default_rng(0).random((4096, 256), np.float32)
        times = []
        for _ in range(20):
            begun = time.monotonic()
            outputs = predict([rows])["y"]
            times.append(time.monotonic() - begun)
        with torch.inference_mode():
            truth = model.double().cpu()(torch.tensor(rows).double()).numpy()
        error = float(np.abs(np.asarray(outputs).reshape(-1, 1) - truth).max())
        return {"rows_per_s": len(rows) / min(times), "error": error}

    return run


def check_predict(folder: Path) -> dict[str, Any]:
    """Compare predictions on the GPU and on one core with those in float64."""
    on_gpu = Trial("torch", predictor(), folder / "predict-gpu").outputs()
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    on_cpu = Trial("torch", predictor(), folder / "predict-cpu", hidden).outputs()
    for place, one in (("GPU", on_gpu), ("CPU", on_cpu)):
        expect(one["error"] < 1e-4, f"predictions on the {place} are off by {one['error']}")
    return {"gpu": on_gpu, "cpu_1_core": on_cpu}


def stay_busy() -> dict[str, float]:
    """Hold the GPU for a moment."""
    import time

    import torch

    value = torch.ones(1, device="cuda")
    time.sleep(4)
    return {"value": float(value[0])}


def check_busy(folder: Path) -> dict[str, Any]:
    """Ask whether the GPU is busy, while it is and afterwards."""
    trial = Trial("torch", stay_busy, folder / "busy")
    deadline = time.monotonic() + 20
    while not (seen := devices.is_busy("0")) and time.monotonic() < deadline:
        time.sleep(0.1)
    trial.outputs()
    return {"while_used": seen, "afterwards": devices.is_busy("0")}


def check_nccl(folder: Path) -> dict[str, Any]:
    """Reduce with NCCL."""
    outputs = Trial("torch", use_nccl, folder / "nccl").outputs()
    expect(outputs["sum"] == 3000.0, f"NCCL computed {outputs['sum']}")
    return outputs


CHECKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "start": check_start,
    "fractions": check_fractions,
    "nccl": check_nccl,
    "ring": lambda folder: gang(mean_of_tensors, folder, "ring")[0],
    "training": check_training,
    "predict": check_predict,
    "busy": check_busy,
}


def gpu_name() -> str:
    """Return the name of the GPU and the version of its driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the checks and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="write the JSON document to this file too")
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS))
    options = parser.parse_args(arguments)
    packages = ("torch", "jax", "numpy")
    result: dict[str, Any] = {
        "machine": {
            "gpu": gpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in packages},
        },
        "failed": {},
    }
    with tempfile.TemporaryDirectory(prefix="gpu_check") as folder:
        for name in options.checks:
            begun = time.monotonic()
            try:
                result[name] = CHECKS[name](Path(folder))
            except (AssertionError, OSError, RuntimeError) as exc:
                result["failed"][name] = str(exc)
            print(f"{name:10} {time.monotonic() - begun:5.1f} s  {result.get(name, 'FAILED')}")
    print(json.dumps(result, indent=2))
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(bool(result["failed"]))


if __name__ == "__main__":
    main()
