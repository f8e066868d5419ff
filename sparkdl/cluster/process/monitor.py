"""Runs in a process of its own between the fork server and each training process.

The monitor forks the training process, adopts and reaps the orphans of it, and reports the exit to
the task. It samples the use of CPU, memory and GPUs. It ends the training process with all that the
process has started when the task is gone, and removes the temporary folder of the process. A
process that was requested as `kept` goes on when its task is gone. The monitor does not need the
fork server: a training process goes on when the server was killed.

Only the standard library is imported here: this module is loaded before any framework.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl.cluster.process.memory_kills import MemoryKills
from sparkdl.cluster.process.use_samples import sampling
from sparkdl.host.os_processes import (
    adopt_orphans,
    die_with,
    kill,
    prefer_for_memory_kill,
    stop_descendants,
)

# The module that a training process runs, unless the request names another one.
_CHILD = "sparkdl.cluster.process.child"

SAMPLE_S = 2.0
# A process that was killed and still has not ended after this time waits for a disk, a network
# file system or a driver. Then its monitor gives up, and the fork server reaps the process.
GIVE_UP_S = 120.0


class Wakeup:
    """A descriptor that becomes readable when a child ends, for a selector."""

    def __init__(self) -> None:
        self.end, self._other = socket.socketpair()
        self.end.setblocking(False)
        self._other.setblocking(False)
        signal.set_wakeup_fd(self._other.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def drain(self) -> None:
        """Forget the children that have ended so far."""
        with contextlib.suppress(BlockingIOError):
            self.end.recv(4096)

    def close(self) -> None:
        """Restore the default, in a forked process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.end.close()
        self._other.close()


def fork(run: Callable[[], int]) -> int:
    """Fork a process that exits with the code that `run` returns; return its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Threads of native libraries.
        pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = run()
    except BaseException:  # noqa: BLE001 No exception may return into the process that forked.
        traceback.print_exc()
    finally:
        os._exit(code)


def answer(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message to a task, if it is still there."""
    with contextlib.suppress(OSError):
        connection.send(json.dumps(message).encode())


def remove_folders(request: Mapping[str, Any], with_scratch: bool) -> None:
    """Remove the folders of a training process.

    Args:
        request: the request of the task.
        with_scratch: remove `scratch` too, as no task does.
    """
    if temporary := request.get("temporary"):
        remove_temporary(temporary)
    if with_scratch and request["scratch"]:
        shutil.rmtree(request["scratch"], ignore_errors=True)


def remove_temporary(path: str) -> None:
    """Remove the folder for temporary files of a training process."""
    # The name may be a short link to a folder on another disk.
    shutil.rmtree(os.path.realpath(path), ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(path)


def monitor(connection: socket.socket, request: Mapping[str, Any], received: Sequence[int]) -> int:
    """Run a training process and watch it until it has ended; return the exit code.

    Args:
        connection: the connection to the task.
        request: the request of the task.
        received: the descriptors for the training process: the channel to its task, its log, those
            that `more` names, and those that it only holds.
    """
    os.setsid()
    adopt_orphans()
    try:
        _make_temporary(request)
        own = os.getpid()
        wakeup = Wakeup()
        fault = os.memfd_create("sparkdl-fault")
        pid = fork(lambda: _become_child(own, connection, wakeup, request, received, fault))
    except OSError as exc:
        remove_folders(request, with_scratch=False)
        answer(connection, {"error": repr(exc)})
        return 1
    for descriptor in received:
        os.close(descriptor)
    answer(connection, {"pid": pid})
    watched = _Watched(pid, connection, wakeup, fault, request.get("kept", False))
    with sampling(pid, request.get("use")):
        message = watched.wait()
    stop_descendants()
    if message:
        answer(connection, message)
    remove_folders(request, with_scratch=watched.is_kept or watched.is_abandoned)
    return 0


def _make_temporary(request: Mapping[str, Any]) -> None:
    """Create the folder for temporary files, and a short link to it if it is on another disk."""
    if not (temporary := request.get("temporary")):
        return
    link = Path(temporary)
    if link.parent == Path(request["disk"]):
        link.mkdir(mode=0o700)
    else:
        link.symlink_to(tempfile.mkdtemp(prefix=f"{link.name}-", dir=request["disk"]))


def _become_child(
    parent: int,
    connection: socket.socket,
    wakeup: Wakeup,
    request: Mapping[str, Any],
    received: Sequence[int],
    fault: int,
) -> int:
    os.setsid()
    die_with(parent)
    faulthandler.enable(fault, all_threads=False)
    prefer_for_memory_kill()
    wakeup.close()
    connection.close()
    channel, log, *others = received
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # The descriptors beyond the named ones are only held: the kernel releases their locks with the
    # process, and programs that the process starts must not hold them.
    more = dict(zip(request["more"], others, strict=False))
    for descriptor in others[len(more) :]:
        os.set_inheritable(descriptor, False)
    entry = importlib.import_module(request.get("entry", _CHILD))
    code: int = entry.main(socket.socket(fileno=channel), more)
    return code


class _Watched:
    """A training process, until its end.

    Args:
        pid: the process id.
        connection: the connection to the task.
        wakeup: becomes readable when a child of this process ends.
        fault: the file in which the process leaves a traceback when a fault kills it.
        is_kept: the process goes on without its task.

    Attributes:
        is_abandoned: the task is gone.
    """

    def __init__(
        self, pid: int, connection: socket.socket, wakeup: Wakeup, fault: int, is_kept: bool
    ) -> None:
        self._pid = pid
        self._fault = fault
        self._connection = connection
        self._wakeup = wakeup
        self._memory_kills = MemoryKills()
        self.is_kept = is_kept
        self.is_abandoned = False

    def wait(self) -> dict[str, Any] | None:
        """Return the message about the exit; None if the process cannot be ended."""
        give_up_s = float("inf")
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup.end, selectors.EVENT_READ)
            selector.register(self._connection, selectors.EVENT_READ)
            while (message := self._reap()) is None and time.monotonic() < give_up_s:
                ready = {key.fileobj for key, _ in selector.select(SAMPLE_S)}
                self._memory_kills.sample()
                if self._wakeup.end in ready:
                    self._wakeup.drain()
                if self._connection in ready and self._task_is_gone():
                    selector.unregister(self._connection)
                    if not self.is_kept:
                        self.is_abandoned = True
                        kill(self._pid)  # The task was killed or cancelled, or its executor lost.
                        give_up_s = time.monotonic() + GIVE_UP_S
        return message

    def _task_is_gone(self) -> bool:
        try:
            return not self._connection.recv(1)
        except ConnectionError:
            return True

    def _reap(self) -> dict[str, Any] | None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, used = os.wait4(-1, os.WNOHANG)
                if pid == self._pid:
                    return self._exit(status, used)
                if pid == 0:
                    return None
        return None

    def _exit(self, status: int, used: resource.struct_rusage) -> dict[str, Any]:
        return {
            "code": os.waitstatus_to_exitcode(status),
            "cpu_s": used.ru_utime + used.ru_stime,
            "peak_memory_mb": used.ru_maxrss / 1024,
            "out_of_memory": self._memory_kills.rose(),
            "fault": self._traceback() if os.WIFSIGNALED(status) else "",
        }

    def _traceback(self) -> str:
        # Of at most 100 frames; the answer has to fit into a packet.
        return os.pread(self._fault, 16 << 10, 0).decode(errors="replace")
