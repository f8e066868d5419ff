"""Runs on the driver. The owner of a run directory, so that two drivers never run the same run."""

import json
import os
import socket
import threading
import time
from typing import Any

from sparkdl import storage
from sparkdl.os_processes import process_start
from sparkdl.polling import Outages
from sparkdl.runs.layout import RunPaths

__all__ = ["Owner", "describe_owner", "living_owner"]

BEAT_S = 5.0


class Owner:
    """The ownership of a run by this process, from `hold` until `release`.

    Args:
        paths: the files of the run.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._url = paths.owner
        self._beat = 0
        self._released = threading.Event()

    def hold(self) -> None:
        """Own the run, and write a heartbeat every `BEAT_S` seconds."""
        self._write_beat()
        threading.Thread(target=self._write_beats, name="sparkdl-owner", daemon=True).start()

    def _write_beats(self) -> None:
        outages = Outages("write the heartbeat of the run's owner")
        while not self._released.wait(BEAT_S):
            with outages.tolerated():
                self._write_beat()

    def _write_beat(self) -> None:
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
        """Give up the ownership, so that another driver may resume the run."""
        self._released.set()
        storage.write(self._url, json.dumps({}))


def living_owner(paths: RunPaths) -> dict[str, Any] | None:
    """Return the process that runs the run now; None if there is none.

    An owner on this host is looked up in the process table. The heartbeats of an owner on another
    host are watched for three intervals, so that the clocks of two hosts are never compared.
    """
    owner = _read(paths)
    if not owner:
        return None
    this_host = (socket.gethostname(), os.readlink("/proc/self/ns/pid"))
    if (owner["host"], owner.get("namespace")) == this_host:
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
    """Return an owner in words, such as `process 17 on host a`."""
    return f"process {owner['pid']} on host {owner['host']}"


def _read(paths: RunPaths) -> dict[str, Any]:
    try:
        owner: dict[str, Any] = json.loads(storage.read(paths.owner))
    except (FileNotFoundError, ValueError):
        return {}
    return owner
