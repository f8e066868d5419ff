"""Runs in the fork server, or in the training process. Call the function of `preload=`.

A process that is forked has one thread, whatever the process above had, and cannot use the CUDA
context of that process. What the function leaves is therefore looked at after the call.
"""

import contextlib
import importlib
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from sparkdl.cluster.process.monitor import fork
from sparkdl.cluster.process.seeds import seeded
from sparkdl.cluster.program.local_modules import install
from sparkdl.errors import FunctionError
from sparkdl.host.late_imports import after_import
from sparkdl.training.preloaded import latest

# jemalloc, in Arrow, stops this thread before a fork and starts it again afterwards.
_SURVIVES_FORK = "jemalloc_bg_thd"
_REMEDY = (
    "Return what the CPU holds, such as NumPy arrays or a model of PyTorch, and close pools and "
    "sessions in the function; or set SPARKDL_FORK_SERVER=0, by which each training process calls "
    "the function itself and nothing is shared"
)


def call(pickled: bytes, is_forked: bool) -> None:
    """Call the function, and keep what it returns or raises, see `training.preloaded`.

    Args:
        pickled: the pickled function, modules and seed.
        is_forked: processes are forked from this one afterwards.
    """
    result = latest()
    result.is_called, result.error = True, None
    try:
        request = pickle.loads(pickled)
        install(request["modules"])
        for name in request["loaded"]:  # In the program's own order.
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        function = cloudpickle.loads(request["function"])
        with seeded(request["seed"]), _one_thread() if is_forked else contextlib.nullcontext():
            result.value = function()
        if is_forked:
            _check()
    except BaseException as exc:  # noqa: BLE001 Errors of the user's function are values.
        add_note = getattr(exc, "add_note", lambda text: None)  # Since Python 3.11.
        add_note("(raised by the function of preload=, which is called before the trial)")
        result.value, result.error = None, exc
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch compute in this thread alone: OpenMP's threads would be missed after a fork."""
    counts: list[tuple[Any, int]] = []

    def limit(torch: Any) -> None:
        counts.append((torch, torch.get_num_threads()))
        torch.set_num_threads(1)

    after_import("torch", limit)
    # Without this, to ask PyTorch for a GPU makes GPUs unusable in forked processes.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    try:
        yield
    finally:
        for torch, count in counts:
            torch.set_num_threads(count)


def _check() -> None:
    """Validate that processes can be forked from this one.

    Raises:
        FunctionError: if there are threads beside this one, or a CUDA context.
    """
    if tqdm := sys.modules.get("tqdm"):
        monitor, tqdm.tqdm.monitor = tqdm.tqdm.monitor, None
        if monitor:
            monitor.exit()  # The thread that redraws progress bars.
    os.waitpid(fork(lambda: 0), 0)  # OpenBLAS ends its threads before a fork, and needs none.
    folder = Path("/proc/self/task")
    native = [(folder / name / "comm").read_text().strip() for name in os.listdir(folder)]
    num_threads = len([name for name in native if name != _SURVIVES_FORK]) - 1
    if num_threads:
        here = threading.current_thread()
        names = [thread.name for thread in threading.enumerate() if thread is not here]
        told = ", ".join(names) or "of native code, such as TensorFlow's or OpenMP's"
        raise FunctionError(
            f"the function of preload= left {num_threads} thread(s) running ({told}), which the "
            f"processes of the trials would miss. {_REMEDY}."
        )
    if _has_cuda():
        raise FunctionError(
            "the function of preload= left a CUDA context, which the processes of the trials "
            f"cannot use. {_REMEDY}."
        )


def _has_cuda() -> bool:
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        return True
    opened = (os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))
    return "/dev/nvidia-uvm" in opened
