"""Where it runs: anywhere. Processes of this host: is one alive, kill one with all it started."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

__all__ = ["adopt_orphans", "die_with", "process_start", "stop_group"]

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (field 22 in proc(5)); None if it is gone.

    Together with the pid it names one process for good: pids are used again.
    """
    status = _status(pid)
    return None if status is None or status[0] == "Z" else int(status[19])


def _status(pid: int) -> list[str] | None:
    # /proc/<pid>/stat from field 3 on: state, parent, group, session, ...
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def stop_group(leader: int, marker: str) -> None:
    """Kill a process and all it started, also what has left its process group.

    Args:
        leader: the process id; it leads a session.
        marker: `NAME=value` in the environment of what it starts.
    """
    for kill in (os.killpg, os.kill):  # It may not lead a group yet.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(leader, signal.SIGKILL)
    orphanages = ("1", str(os.getpid()))  # The parents of a process whose own parent is gone.
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        status = _status(pid)
        if status and (
            status[3] == str(leader) or (status[1] in orphanages and _carries(pid, marker))
        ):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _carries(pid: int, marker: str) -> bool:
    try:
        return marker.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # It ended before the kernel knew.


def adopt_orphans() -> None:
    """Become the parent of what a child of this process leaves behind, so that it can be found."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
