"""Runs anywhere. Inspect and kill processes of this host."""

import contextlib
import ctypes
import os
import pwd
import signal
import socket
import time
from collections.abc import Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36

# Seconds after which `stop_descendants` gives up, and between two of its rounds.
STOP_S = 5.0
ROUND_S = 0.005

# Part of the memory of the host by which a process counts as larger when the kernel chooses a
# process to kill, in thousandths, see proc(5).
MORE_LIKELY = 300


def process_start(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; None if the process is gone.

    The start is field 22 in proc(5). A pid may be used again, but a pid and a start identify one
    process.
    """
    status = _status(pid)
    return None if status is None or status[0] == "Z" else int(status[19])


def process_state(pid: int) -> str:
    """Return the state of a process as a letter of proc(5), such as `D`; empty if it is gone."""
    status = _status(pid)
    return status[0] if status else ""


def parent(pid: int) -> int | None:
    """Return the pid of the parent of a process; None if the process is gone."""
    status = _status(pid)
    return int(status[1]) if status else None


def this_node() -> str:
    """Return a name of this host or container; its processes share a network and devices."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/net')}/{socket.gethostname()}"


def in_yarn_container() -> bool:
    """Return True in a process that YARN has started, and in all its descendants."""
    return "CONTAINER_ID" in os.environ


def user_name() -> str:
    """Return the name of the user whose rights this process has."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # A numeric user of a container has no name.
        return str(os.geteuid())


def _status(pid: int) -> list[str] | None:
    # The fields of /proc/<pid>/stat from the third field on: state, parent, group, session, ...
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def kill(leader: int) -> None:
    """Kill a process and its process group."""
    for send in (os.killpg, os.kill):  # The process may not lead a group yet.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(leader, signal.SIGKILL)


def kill_marked(variable: str, session: int) -> None:
    """Kill the processes that a process which is gone has left behind.

    Args:
        variable: an entry of the environment, as `NAME=value`, which programs that the process
            started have inherited.
        session: the session of the process, which its forks have inherited.
    """
    for pid in _all_pids():
        status = _status(pid)
        if pid == os.getpid() or status is None:
            continue
        if int(status[3]) == session or variable.encode() in _environment(pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def stop_descendants(spare: Collection[int] = ()) -> None:
    """Kill every descendant of this process, except some children and their descendants.

    A process may start others while it is being killed, so the search is repeated until no
    descendant is left. Descendants that do not end, as a process of another user or a process
    that waits for a disk, are given up after a moment.

    Args:
        spare: the pids of the children that are not killed.
    """
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline:
        pids = _descendants(spare) if _has_other_children(spare) else []
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(ROUND_S)


def _has_other_children(spare: Collection[int]) -> bool:
    """Return True if this process has, or may have, other children than `spare`."""
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:
        return True  # This kernel has no list of children: all processes must be searched.
    return any(int(child) not in spare for child in children)


def _descendants(spare: Collection[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        status = _status(pid)
        if status and status[0] != "Z":
            children.setdefault(int(status[1]), []).append(pid)
    descendants = [pid for pid in children.get(os.getpid(), []) if pid not in spare]
    for pid in descendants:
        descendants += children.get(pid, [])
    return descendants


def die_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # The parent ended before the call of prctl.


def prefer_for_memory_kill() -> None:
    """Let the kernel kill this process rather than its parent when memory runs out."""
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        path.write_text(str(min(1000, int(path.read_text()) + MORE_LIKELY)))


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that `stop_descendants` finds them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
