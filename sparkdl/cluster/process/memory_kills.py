"""Runs beside a training process. Find out whether the kernel killed a process for its memory.

The kernel counts the processes that it killed: per control group, and for the whole host. A count
that rose within the last seconds before a process died of SIGKILL explains that death; one that
rose days ago, or in the container of another program, does not.

Only the standard library is imported here: this module is loaded before any framework.
"""

import contextlib
import time
from collections import deque
from pathlib import Path

# Seconds before the end of a process in which the count must have risen. A large process takes
# some seconds to end.
RECENT_S = 10.0

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
HOST = Path("/proc/vmstat")


class MemoryKills:
    """The count of processes that the kernel killed for their memory, sampled over time.

    The count is that of this process's own control group, and that of the host where the group has
    no count.
    """

    def __init__(self) -> None:
        self._file = next((file for file in _group_files() if _count(file) is not None), HOST)
        self._samples: deque[tuple[float, int]] = deque()
        self.sample()

    def sample(self) -> None:
        """Note the present count; call this method every few seconds."""
        now = time.monotonic()
        self._samples.append((now, _count(self._file) or 0))
        # One sample before the window stays, to compare with.
        while len(self._samples) > 1 and self._samples[1][0] < now - RECENT_S:
            self._samples.popleft()

    def rose(self) -> bool:
        """Return True if the count rose within the last seconds."""
        self.sample()
        return self._samples[-1][1] > self._samples[0][1]


def _group_files() -> list[Path]:
    """Return the files that may hold the count of this process's control group, best first."""
    files = []
    with contextlib.suppress(OSError):
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own = path.strip("/")
            if not controllers:  # Version 2 of control groups.
                folders = [CGROUPS / own, CGROUPS / "unified" / own, CGROUPS]
                files += [folder / "memory.events" for folder in folders]
            elif "memory" in controllers.split(","):
                # In a container, the path may be that on the host, and only the own group visible.
                folders = [CGROUPS / "memory" / own, CGROUPS / "memory"]
                files += [folder / "memory.oom_control" for folder in folders]
    return files


def _count(file: Path) -> int | None:
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
