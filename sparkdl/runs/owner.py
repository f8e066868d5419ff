"""Runs on the driver. Who runs a run directory now, so that two drivers never run the same one."""

import contextlib
import json
import os
import socket
import threading
import time
from typing import Any

from sparkdl import storage
from sparkdl.os_processes import process_start
from sparkdl.runs.layout import RunPaths

__all__ = ["Owner", "describe_owner", "living_owner"]

BEAT_S = 5.0


class Owner:
    """This process as the owner of a run, from `hold` until `release`."""

    def __init__(self, paths: RunPaths) -> None:
        self._url = paths.owner
        self._beat = 0
        self._released = threading.Event()

    def hold(self) -> None:
        """Own the run, and show every `BEAT_S` seconds that this process lives."""
        self._show()
        threading.Thread(target=self._beats, name="sparkdl-owner", daemon=True).start()

    def _beats(self) -> None:
        while not self._released.wait(BEAT_S):
            with contextlib.suppress(OSError):  # The store fails for a moment: the next beat.
                self._show()

    def _show(self) -> None:
        self._beat += 1
        owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": process_start(os.getpid()),
            "namespace": os.readlink("/proc/self/ns/pid"),
            "beat": self._beat,
        }
        storage.write(self._url, json.dumps(owner))

    def release(self) -> None:
        """Say that nobody runs it any more."""
        self._released.set()
        storage.write(self._url, json.dumps({}))


def living_owner(paths: RunPaths) -> dict[str, Any] | None:
    """The process that runs this run now, or None.

    On this host the process table decides. On another host its beats do: they are watched for
    three intervals, so no clocks are compared.
    """
    owner = _read(paths)
    if not owner:
        return None
    here = (socket.gethostname(), os.readlink("/proc/self/ns/pid"))
    if (owner["host"], owner.get("namespace")) == here:
        return owner if process_start(owner["pid"]) == owner["started"] else None
    deadline = time.monotonic() + 3 * BEAT_S
    while time.monotonic() < deadline:
        time.sleep(BEAT_S / 5)
        now = _read(paths)
        if not now:
            return None
        if now != owner:
            return now
    return None


def describe_owner(owner: dict[str, Any]) -> str:
    """An owner in words."""
    return f"process {owner['pid']} on host {owner['host']}"


def _read(paths: RunPaths) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(storage.read(paths.owner))
    except (FileNotFoundError, ValueError):
        return {}
    return found
