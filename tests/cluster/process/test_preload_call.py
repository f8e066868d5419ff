"""The function of `preload=`: called in the fork server, its result shared by the processes."""

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl import context
from sparkdl.cluster.process.server_connection import PreloadCall, Start
from sparkdl.cluster.process.training_process import PreloadError, TrainingProcess
from sparkdl.cluster.program.packaging import pack
from tests.cluster.process.test_training_process import outputs_of, payload
from tests.helpers.processes import eventually, is_alive

NUM_PROCESSES = 3
NUM_BYTES = 200 << 20


def start_with(preload: Callable[[], Any], **fields: Any) -> Start:
    """Return conditions of a server that lives as long as its processes."""
    pickled = pack(lambda: None, preload).preload_request(seed=1)
    assert pickled is not None
    return Start(application="test", call=PreloadCall("run", pickled), is_task=False, **fields)


@contextlib.contextmanager
def started(start: Start, train: Any, folder: Path) -> Iterator[TrainingProcess]:
    with TrainingProcess(start, payload(train, folder), folder / "log.txt") as process:
        yield process


def test_processes_share_a_large_array(tmp_path: Path) -> None:
    def load() -> Any:
        return {"array": np.ones(NUM_BYTES // 8), "pid": os.getpid(), "random": np.random.rand()}

    def train() -> Any:
        base = context.preloaded
        total = base["array"].sum()
        gc.collect()
        own = tmp_path / str(os.getpid())
        own.touch()
        deadline = time.monotonic() + 120  # Until all have the array in memory.
        while len(list(tmp_path.glob("[0-9]*"))) < NUM_PROCESSES and time.monotonic() < deadline:
            time.sleep(0.01)
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        pss = next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
        own.with_name(f"measured{os.getpid()}").touch()
        while len(list(tmp_path.glob("measured*"))) < NUM_PROCESSES and time.monotonic() < deadline:
            time.sleep(0.01)
        return {"pss": pss, "sum": total, "server": base["pid"], "random": base["random"]}

    start = start_with(load)
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(started(start, train, tmp_path)) for _ in range(NUM_PROCESSES)
        ]
        found = [outputs_of(process.wait()) for process in processes]
    assert {one["sum"] for one in found} == {NUM_BYTES // 8}
    assert len({one["server"] for one in found}) == len({one["random"] for one in found}) == 1
    assert found[0]["random"] == np.random.RandomState(1).rand()
    assert sum(one["pss"] for one in found) < 2 * NUM_BYTES
    # The memory is given back with the last process.
    assert eventually(lambda: not is_alive(int(found[0]["server"])))


def test_an_exception_is_that_of_each_process_and_the_output_is_in_its_log(tmp_path: Path) -> None:
    def load() -> Any:
        print("reading the weights")
        raise FileNotFoundError(2, "no weights", "/nowhere")

    with started(start_with(load), lambda: 1, tmp_path) as process:
        outcome = process.wait().outcome
    assert outcome and outcome.error and outcome.traceback and outcome.exception
    assert "no weights" in outcome.error
    assert "in load" in outcome.traceback and "sparkdl/cluster" not in outcome.traceback
    assert "reading the weights\n" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("shared", [True, False])
def test_threads_that_would_be_missed_are_refused_where_processes_are_forked(
    tmp_path: Path, shared: bool
) -> None:
    def load() -> int:
        import tqdm

        list(tqdm.tqdm(range(2)))  # Starts a thread, which is ended.
        threading.Thread(target=threading.Event().wait, name="reader", daemon=True).start()
        return 5

    with started(start_with(load, shared=shared), lambda: context.preloaded, tmp_path) as process:
        outcome = process.wait().outcome
    assert outcome is not None
    if shared:
        assert outcome.error and "left 1 thread(s) running (reader)" in outcome.error
        assert "SPARKDL_FORK_SERVER=0" in outcome.error
    else:
        assert outcome.outputs == {"value": 5}


def test_a_function_that_kills_its_process_fails_the_trial(tmp_path: Path) -> None:
    def load() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(PreloadError, match="preload= killed its process"):
        TrainingProcess(start_with(load), payload(lambda: 1, tmp_path), tmp_path / "log.txt")


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_frozen_model_of_pytorch_is_trained_with_adapters(tmp_path: Path) -> None:
    """Its parallel operations leave no threads of OpenMP in the server, and work in the child."""

    def load() -> Any:
        import torch

        layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
        model = torch.nn.Sequential(*layers).requires_grad_(False)
        model(torch.ones(64, 1024)).mul(2).sum()
        return model

    def train() -> Any:
        import torch

        torch.set_num_threads(2)
        down, up = torch.nn.Linear(1024, 4), torch.nn.Linear(4, 1024)
        optimizer = torch.optim.SGD([*down.parameters(), *up.parameters()], lr=0.1)
        inputs = torch.ones(64, 1024)
        loss = (context.preloaded(inputs) + up(down(inputs))).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.isfinite()) + float(up.bias.grad.abs().sum() > 0)

    with started(start_with(load, env={"OMP_NUM_THREADS": "4"}), train, tmp_path) as process:
        assert outputs_of(process.wait()) == {"value": 2.0}
