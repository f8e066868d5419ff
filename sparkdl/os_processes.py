"""Runs anywhere. Processes of this host: is one alive, kill what was left behind."""

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Collection
from pathlib import Path

__all__ = [
    "adopt_orphans",
    "die_with",
    "kill",
    "parent",
    "process_start",
    "stop_descendants",
    "this_node",
]

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (field 22 in proc(5)); None if it is gone.

    Together with the pid it names one process for good: pids are used again.
    """
    status = _status(pid)
    return None if status is None or status[0] == "Z" else int(status[19])


def parent(pid: int) -> int | None:
    """The process id of a process's parent; None if it is gone."""
    status = _status(pid)
    return int(status[1]) if status else None


def this_node() -> str:
    """Names this host, or container, as processes in it see the same network and devices."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/net')}/{socket.gethostname()}"


def _status(pid: int) -> list[str] | None:
    # /proc/<pid>/stat from field 3 on: state, parent, group, session, ...
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def kill(leader: int) -> None:
    """Kill a process and its process group."""
    for send in (os.killpg, os.kill):  # It may not lead a group yet.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(leader, signal.SIGKILL)


def stop_descendants(spare: Collection[int]) -> None:
    """Kill every descendant of this process but some of its children and their descendants.

    Again and again until there are none: a process may start others while it is being killed.
    """
    for _ in range(100):
        found = _descendants(spare) if _has_strangers(spare) else []
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _has_strangers(spare: Collection[int]) -> bool:
    """Whether there are other children, from the kernel's own list where it keeps one."""
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:
        return True  # Not known so cheaply.
    return any(int(child) not in spare for child in children)


def _descendants(spare: Collection[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        status = _status(pid)
        if status and status[0] != "Z":
            children.setdefault(int(status[1]), []).append(pid)
    found = [pid for pid in children.get(os.getpid(), []) if pid not in spare]
    for pid in found:
        found += children.get(pid, [])
    return found


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # It ended before the kernel knew.


def adopt_orphans() -> None:
    """Become the parent of what a descendant leaves behind, so that it can be found."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
