"""The faults of the soak: kills and stops of all kinds of processes, and full disks."""

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.s3_server import S3Server

__all__ = ["STOP_S", "Fault", "Faults", "Processes", "alive"]

# How often each kind is chosen. A driver costs the machine many seconds to start again.
WEIGHTS = {
    "training process": 26,
    "Python worker": 16,
    "executor": 8,
    "fork server": 12,
    "monitor": 8,
    "driver": 2,
    "Java of the driver": 1,
    "stopped training process": 8,
    "stopped Python worker": 5,
    "stopped executor": 5,
    "stopped fork server": 4,
    "stopped driver": 3,
    "full disk": 2,
    "store outage": 2,
}
STOP_S = (0.5, 8.0)
FULL_S = (1.0, 4.0)
# The client of the store tries for some seconds by itself.
OUTAGE_S = (4.0, 30.0)


def alive(pid: int) -> bool:
    """Return True if a process exists and is no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


class Processes:
    """The processes of a driver and of all that it has started, found by a variable.

    Args:
        driver: the value of `SOAK_DRIVER` in their environment.
    """

    def __init__(self, driver: str) -> None:
        self._mark = f"SOAK_DRIVER={driver}".encode()

    def all(self) -> list[int]:
        """Return the ids of all living processes."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if self._is_ours(pid) and alive(pid)]

    def _is_ours(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False

    def by_kind(self, training: set[int]) -> dict[str, list[int]]:
        """Return the processes of each kind.

        Args:
            training: the ids of the training processes so far.
        """
        found: dict[str, list[int]] = {}
        for pid in self.all():
            if kind := self._kind(pid, training):
                found.setdefault(kind, []).append(pid)
        return found

    @staticmethod
    def _kind(pid: int, training: set[int]) -> str | None:
        command, parent = _command(pid), _command(_parent(pid))
        if pid in training and "fork_server" in command:  # Process ids are used again.
            return "training process"
        if "CoarseGrainedExecutorBackend" in command:
            return "executor"
        if "org.apache.spark.deploy.SparkSubmit" in command:
            return "Java of the driver"
        if "pyspark.daemon" in command:
            return "Python worker" if "pyspark.daemon" in parent else None
        if "fork_server" in command:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            with contextlib.suppress(OSError):
                begat = {int(child) for child in children.read_text().split()}
                return "monitor" if begat & training else "fork server"
        return None


@dataclass
class Fault:
    """One fault.

    Attributes:
        kind: a key of `WEIGHTS`.
        driver: the driver whose process it hit.
        at: seconds since the epoch.
        pid: the process.
        run: the run of the process, if it is known.
        trial: its trial.
    """

    kind: str
    driver: str
    at: float
    pid: int
    run: str | None = None
    trial: int | None = None


@dataclass
class Faults:
    """Makes faults.

    Args:
        seed: decides the kinds and victims.
        notes: the file in which training processes note their begin.
        disk: the disk to fill; None if there is none.
        store: the server of the store.

    Attributes:
        made: the faults so far.
    """

    seed: int
    notes: Path
    disk: Path | None
    store: S3Server
    made: list[Fault] = field(default_factory=list)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def training(self) -> dict[int, dict[str, Any]]:
        """Return what each training process has noted at its begin, by process id."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        notes = [json.loads(line) for line in lines]
        return {note["pid"]: note for note in notes if note["what"] == "begin"}

    def make(self, drivers: dict[str, int]) -> Fault | None:
        """Make a fault; return None if there was no process of the kind that was chosen.

        Args:
            drivers: the process id of each driver, by its name, which begins with that of its root.
        """
        kind = self._chance.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        if kind == "full disk":
            return self._fill(_on("disk", drivers)) if self.disk else None
        if kind == "store outage":
            self.store.fail_for(self._chance.uniform(*OUTAGE_S))
            return self._note(Fault(kind, _on("s3", drivers), time.time(), 0))
        name = self._chance.choice([*drivers])
        training = self.training()
        victims = Processes(name).by_kind(set(training))
        victims["driver"] = [drivers[name]]
        sort = kind.removeprefix("stopped ")
        if not victims.get(sort):
            return None
        pid = self._chance.choice(sorted(victims[sort]))
        note = training.get(pid, {})
        fault = Fault(kind, name, time.time(), pid, note.get("run"), note.get("trial"))
        with contextlib.suppress(ProcessLookupError):
            if kind == sort:
                os.kill(pid, signal.SIGKILL)
            else:
                self._stop(pid)
            return self._note(fault)
        return None

    def _note(self, fault: Fault) -> Fault:
        self.made.append(fault)
        return fault

    def _stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._later(self._chance.uniform(*STOP_S), lambda: os.kill(pid, signal.SIGCONT))

    @staticmethod
    def _later(after_s: float, call: Callable[[], Any]) -> None:
        def guarded() -> None:
            with contextlib.suppress(OSError):
                call()

        timer = threading.Timer(after_s, guarded)
        timer.start()

    def _fill(self, driver: str) -> Fault:
        assert self.disk
        other = self.disk / "other"
        with other.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 14))
        self._later(self._chance.uniform(*FULL_S), other.unlink)
        return self._note(Fault("full disk", driver, time.time(), 0))


def _on(root: str, drivers: dict[str, int]) -> str:
    """Return the name of the driver of a root."""
    return next(name for name in drivers if name.startswith(root))
