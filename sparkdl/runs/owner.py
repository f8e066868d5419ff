"""Runs on the driver. The owner of a run directory, so that two drivers never run the same run.

Each driver that creates a run, or takes it over, claims the next number: it creates the file
`owner/<n>.json`, which only one driver can. The driver with the newest number owns the run. A
driver that finds a newer number, for example after its machine was suspended, stops.

Beside the claim are `<n>.beat`, which is replaced every few seconds, and `<n>.ended`, which is
written when the driver has released the run. A claim without a heartbeat is released, too, as a
file can be removed where the disk is full. Spark tasks read the heartbeat where Spark would not end
them with their driver.
"""

import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sparkdl.files import storage
from sparkdl.files.jsonl import object_of
from sparkdl.files.layout import RunPaths
from sparkdl.files.polling import Outages, create_once, retry
from sparkdl.host.os_processes import process_start

BEAT_S = 5.0

# A driver on another host that has been silent for so long, by the clocks of both hosts, is dead.
SILENT_S = 600.0

# How long a release waits for a heartbeat that is being written.
JOIN_S = 5.0
# How long a run is tried to be released in a store that fails.
RELEASE_S = 3600.0

_logger = logging.getLogger("sparkdl.runs")


@dataclass(frozen=True)
class Claim:
    """The newest claim of a run.

    Attributes:
        number: the number; 0 before the first claim.
        process: the driver process, or None if it has released the run.
    """

    number: int = 0
    process: dict[str, Any] | None = None


class Owner:
    """The ownership of a run by this process, from `claim` until `release`.

    Args:
        paths: the files of the run.

    Attributes:
        number: the number of this owner; 0 before `claim`.
        is_taken_over: another driver owns the run now.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._beat = 0
        self._release = threading.Event()
        self._outages = Outages("write the heartbeat of the run's owner")
        self._calls: list[Callable[[], object]] = []
        self._thread: threading.Thread | None = None
        self.number = 0
        self.is_taken_over = False

    def claim(self, number: int, timeout_s: float | None = None) -> None:
        """Own the run, and write a heartbeat every `BEAT_S` seconds.

        Args:
            number: the number after that of the newest claim.
            timeout_s: how long a store that fails is tried again, see `polling.retry`.

        Raises:
            FileExistsError: if another driver has claimed this number.
            OSError: if the store still fails then; the run is not owned.
        """
        process = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": process_start(os.getpid()),
            "namespace": _namespace(),
            "token": secrets.token_hex(8),  # So that a claim that was sent twice is recognised.
        }
        # The heartbeat comes first: without one the run counts as released.
        self._write_beat(number)
        url = _file(self._paths, number, "json")
        try:
            is_own = create_once(url, json.dumps(process), "claim a run", timeout_s)
        except OSError:
            with suppress(OSError):  # The claim may have been written nevertheless.
                storage.remove(_file(self._paths, number, "beat"))
            raise
        if not is_own:
            raise FileExistsError(url)
        self.number = number
        self._thread = threading.Thread(target=self._keep, name="sparkdl-owner", daemon=True)
        self._thread.start()

    def when_taken_over(self, call: Callable[[], object]) -> None:
        """Call a function, in another thread, as soon as another driver has taken the run over."""
        self._calls.append(call)
        if self.is_taken_over:
            call()

    def _keep(self) -> None:
        has_successor = False
        while not has_successor:
            if self._release.wait(BEAT_S):
                return
            with self._outages.tolerated():
                has_successor = _read(self._paths, self.number + 1, "json") is not None
                if not has_successor:
                    self._write_beat(self.number)
        self.is_taken_over = True
        _logger.warning("another driver has taken over the run %s", self._paths.folder)
        for call in self._calls:
            call()

    def _write_beat(self, number: int) -> None:
        self._beat += 1
        beat = {"beat": self._beat, "time": round(time.time(), 1)}
        storage.write(_file(self._paths, number, "beat"), json.dumps(beat))

    def release(self) -> None:
        """Give up the ownership, so that another driver may resume the run.

        Where the disk is full, the heartbeat is removed instead. A store that fails now is tried
        again in the background.
        """
        if not self.number or self._release.is_set():
            return
        self._release.set()
        # A thread that is inside `hdfs-native` when Python ends aborts the process.
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)
        try:
            self._write_end()
        except OSError:
            with suppress(OSError):
                storage.remove(_file(self._paths, self.number, "beat"))
            activity = f"release the run {self._paths.folder}"
            threading.Thread(
                target=lambda: retry(self._write_end, activity, RELEASE_S),
                name="sparkdl-release",
                daemon=True,
            ).start()

    def _write_end(self) -> None:
        storage.write(_file(self._paths, self.number, "ended"), "{}")


def newest_claim(paths: RunPaths) -> Claim:
    """Return the newest claim of a run.

    Raises:
        OSError: if the store cannot be read now.
    """
    names = storage.list_names(paths.owners)
    claims = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    number = max((int(claim) for claim in claims if claim.isdigit()), default=0)
    if number == 0 or f"{number}.ended" in names:
        return Claim(number)
    # A store may show a file before its content; the heartbeats decide then.
    process = object_of(_read(paths, number, "json") or b"")
    return Claim(number, process or {"host": "unknown", "pid": 0, "started": 0})


def living_owner(paths: RunPaths, claim: Claim | None = None) -> dict[str, Any] | None:
    """Return the process that runs the run now; None if there is none.

    An owner on this host is looked up in the process table. The heartbeats of an owner on another
    host are watched for three intervals, so that the clocks of two hosts are never compared.

    Args:
        paths: the files of the run.
        claim: the newest claim, if it was read already.
    """
    claim = claim or newest_claim(paths)
    owner = claim.process
    if owner is None:
        return None
    before = _read(paths, claim.number, "beat")
    if before is None:
        return None
    if is_here(owner):
        return owner if process_start(owner["pid"]) == owner["started"] else None
    _logger.warning(
        "looking for %g s whether %s still runs %s", 3 * BEAT_S, describe_owner(owner), paths.folder
    )
    deadline = time.monotonic() + 3 * BEAT_S
    while time.monotonic() < deadline:
        time.sleep(BEAT_S / 5)
        if _read(paths, claim.number, "ended") is not None:
            return None
        if _read(paths, claim.number, "beat") != before:
            return owner
    return None


def is_here(owner: dict[str, Any]) -> bool:
    """Return True if the process table of this host knows the owner, if it lives."""
    return (owner["host"], owner.get("namespace")) == (socket.gethostname(), _namespace())


class OwnerWatch:
    """Tell from one look to the next whether a driver runs a run, without waiting.

    Args:
        paths: the files of the run.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._last_beat: tuple[int, bytes] | None = None
        self._since_s = 0.0

    def sees_driver(self) -> bool:
        """Return True if a driver runs the run now.

        An owner on this host is looked up in the process table. The heartbeat of an owner on
        another host may be the same for as long as `living_owner` watches it. At the first look it
        may have any age up to `SILENT_S`.

        Raises:
            OSError: if the store cannot be read now.
        """
        claim = newest_claim(self._paths)
        if claim.process is None or is_here(claim.process):
            return living_owner(self._paths, claim) is not None
        beat = read_beat(self._paths, claim.number)
        if not beat:
            return False
        now_s = time.monotonic()
        beat_of_claim = (claim.number, beat)
        if beat_of_claim != self._last_beat:
            age_s = 0.0 if self._last_beat else heartbeat_age_s(self._paths, claim) or 0.0
            self._last_beat = beat_of_claim
            self._since_s = now_s if age_s <= SILENT_S else -math.inf
        return now_s - self._since_s <= 3 * BEAT_S


def heartbeat_age_s(paths: RunPaths, claim: Claim) -> float | None:
    """Return the age of the last heartbeat by the clock of this host; None without a heartbeat."""
    beat = object_of(_read(paths, claim.number, "beat") or b"")
    return max(0.0, time.time() - float(beat["time"])) if "time" in beat else None


def read_beat(paths: RunPaths, number: int) -> bytes | None:
    """Return what the heartbeat of an owner contains; None if the owner has released the run.

    Args:
        paths: the files of the run.
        number: the number of the owner.

    Raises:
        OSError: if the store cannot be read now.
    """
    if _read(paths, number, "ended") is not None:
        return None
    return _read(paths, number, "beat") or b""


def describe_owner(owner: dict[str, Any]) -> str:
    """Return an owner in words, such as `process 17 on host a`."""
    return f"process {owner['pid']} on host {owner['host']}"


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _file(paths: RunPaths, number: int, kind: str) -> str:
    return storage.join(paths.owners, f"{number}.{kind}")


def _read(paths: RunPaths, number: int, kind: str) -> bytes | None:
    try:
        return storage.read(_file(paths, number, kind))
    except FileNotFoundError:
        return None
