"""Find the processes of a run, and wait for conditions."""

import time
from collections.abc import Callable
from pathlib import Path

from sparkdl.host.os_processes import process_start

__all__ = ["eventually", "is_alive", "jvm_of", "processes_of"]


def is_alive(pid: int) -> bool:
    return process_start(pid) is not None


def jvm_of(worker: int) -> int:
    """The executor above a Python worker: worker, daemon, executor."""
    for _ in range(2):
        worker = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return worker


def processes_of(run_id: str) -> list[int]:
    """The processes that carry a run's id in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            if f"SPARKDL_RUN={run_id}".encode() in variables.split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def eventually(condition: Callable[[], object], seconds: float = 120.0) -> object:
    """Wait for a condition; its last value is asserted on by the caller.

    The limit only ends a hang: all may take ten times as long beside other tests.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value
