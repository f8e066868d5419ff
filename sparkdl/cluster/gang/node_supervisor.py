"""Runs in a process of its own that a task has forked; it keeps a node when that task has ended.

A task of a one-core executor returns, so that others can feed the node. What it would have done
until the end of its training process, the keeper does: it is forked by the same fork server, which
ends it with no task. It ends with its node, with its executor, or when the driver orders it.
"""

import contextlib
import functools
import hashlib
import json
import os
import pickle
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from pyspark import TaskContext

from sparkdl import storage
from sparkdl.cluster.gang.placement import Placed
from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.outcome import failed
from sparkdl.cluster.plan import Member, Plan
from sparkdl.cluster.process.child import become, receive
from sparkdl.cluster.process.fork_server import PACKET_BYTES
from sparkdl.cluster.process.training_process import Start, connect, dial, packet, private_folder
from sparkdl.cluster.process.trial_folder import again, local_folder
from sparkdl.os_processes import parent, process_start
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.states import Failure

__all__ = [
    "ALIVE",
    "FEED_OVER_FRAME",
    "Kept",
    "executor_of_task",
    "hand_over",
    "listening",
    "main",
    "node_folder",
]

# By a file of this name, behind its rank, a keeper shows that it lives, and for which executor.
ALIVE = ".alive"
BEAT_S = 1.0
BEAT_REMOTE_S = 3.0
# What nobody listens in is certainly not about to be listened in when it is so old.
OLD_S = 60.0

# What a node hears from its keeper when it gets no more rows: a frame of no body, see `tfos.wire`.
FEED_OVER_FRAME = b"F" + bytes(8)

_READY = b"k"


@dataclass(frozen=True)
class Kept:
    """What a keeper knows of the task that it goes on for.

    Attributes:
        executor: the process id of the task's executor, and when it started.
        resources: what Spark assigned to the task.
        feed_over: tells the node that it gets no more rows.
    """

    executor: tuple[int, int]
    resources: Any
    feed_over: Callable[[], None] | None = None

    @property
    def is_alone(self) -> bool:
        """Whether its executor is gone."""
        return process_start(self.executor[0]) != self.executor[1]


class Keepable(Protocol):
    """A task that can be handed over, see `node.NodeTask`."""

    @property
    def plan(self) -> Plan: ...
    @property
    def run_path(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def start(self) -> Start: ...
    @property
    def trial(self) -> TrialPaths: ...

    def in_keeper(self, kept: Kept) -> "Keepable":
        """The same task, as a keeper goes on with it."""

    def supervised(self, here: Placed) -> tuple[dict[str, Any], bytes | None]:
        """Run the node's process to its end."""

    def leave_row(
        self, here: Placed, said: dict[str, Any], exception: bytes | None
    ) -> tuple[dict[str, Any], bytes | None]:
        """Let all know what came out."""


def executor_of_task() -> tuple[int, int]:
    """The executor above this task's Python worker: its process id, and when it started."""
    pid = parent(os.getppid()) or os.getppid()
    return pid, process_start(pid) or 0


def node_folder(run_path: str, rank: int | str, executor: int | str) -> Path:
    """Where a node listens for those that feed it: a folder of this user's on its host."""
    name = hashlib.sha256(run_path.encode()).hexdigest()[:16]
    return private_folder() / f"node-{name}-{rank}-{executor}"


@dataclass(frozen=True)
class _Asked:
    """What a keeper is told: the task that it goes on for, and where that has come."""

    task: Keepable
    kept: Kept
    member: Member
    peers: Sequence[Peer]


def hand_over(task: Keepable, here: Placed) -> None:
    """Have a keeper go on with a node; return when it has taken over.

    Raises:
        OSError: it could not be started; its executor's log, or the node's, says why.
    """
    context = TaskContext.get()
    executor = executor_of_task()
    kept = Kept(executor, context.resources())
    asked = _Asked(task, kept, here.member, here.peers)
    told = pickle.dumps(
        {
            "asked": asked,
            "environ": dict(os.environ),
            "cwd": os.getcwd(),
            "path": list(sys.path),
            "secrets": list(task.plan.env.values()),
        }
    )
    sockets = {"held": here.held, "listener": here.listener}
    more = {name: one for name, one in sockets.items() if one}
    mine, theirs = socket.socketpair()
    with mine, theirs, connect(task.start) as server, _log_of(here) as log:
        # Gone with the keeper, however that ends.
        scratch = node_folder(task.run_path, here.rank, executor[0])
        wanted = {"fork": True, "entry": __name__, "kept": True, "more": [*more]}
        request = packet(task.start, **wanted, scratch=str(scratch))
        descriptors = [theirs.fileno(), log, *(one.fileno() for one in more.values())]
        socket.send_fds(server, [request], descriptors)
        server.settimeout(task.plan.start_timeout_s)
        answer = json.loads(server.recv(PACKET_BYTES) or b'{"error": "it ended"}')
        if "error" in answer:
            raise OSError(f"the fork server of this host could not serve: {answer['error']}")
        theirs.close()
        mine.sendall(len(told).to_bytes(8, "big") + told)
        if mine.recv(1) != _READY:
            raise OSError(f"the keeper of {here.member} has not come up; see {here.member.log}")


@contextlib.contextmanager
def _log_of(here: Placed) -> Iterator[int]:
    """The file for what a keeper itself prints: an error of ours, if anything."""
    folder = here.trial.folder
    path = storage.local_path(folder) / here.member.log if storage.is_local(folder) else os.devnull
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        yield log
    finally:
        os.close(log)


def main(channel: socket.socket, more: Mapping[str, int]) -> int:
    """Keep the node that `channel` tells of; return the exit code when that has ended."""
    told = receive(channel)
    become(told)
    asked: _Asked = told["asked"]
    sockets = {name: socket.socket(fileno=number) for name, number in more.items()}
    trial = asked.task.trial
    here = Placed(asked.member, asked.task.attempt, asked.peers, trial, Path(), None)
    here = replace(here, held=sockets.get("held"), listener=sockets.get("listener"))
    with _Beats(trial.told(here.attempt, here.rank, ALIVE[1:]), asked.kept.executor[0]):
        try:
            row = _keep(asked.task, asked.kept, here, channel)
        except Exception as exc:  # noqa: BLE001 Whatever it was, it is told to those who wait.
            traceback.print_exc()
            row = failed(f"{type(exc).__name__}: {exc}", Failure.LOST), None
            storage.write(trial.told(here.attempt, here.rank, "failed"), b"")
        again(functools.partial(asked.task.leave_row, here, *row))
    return 0


def _keep(
    task: Keepable, kept: Kept, here: Placed, channel: socket.socket
) -> tuple[dict[str, Any], bytes | None]:
    folder = node_folder(task.run_path, here.rank, kept.executor[0])
    _remove_old(folder.parent)
    folder.mkdir(mode=0o700)
    with local_folder(here.trial) as local, listening(folder) as inbox:
        channel.sendall(_READY)
        channel.close()
        kept = replace(kept, feed_over=lambda: _tell_feed_over(folder))
        return task.in_keeper(kept).supervised(replace(here, folder=local, inbox=inbox))


def _remove_old(private: Path) -> None:
    """Remove what nodes have left whose fork server was killed: nobody else would."""
    for folder in private.glob("node-*"):
        try:
            if time.time() - folder.stat().st_mtime > OLD_S:
                dial(folder, socket.SOCK_STREAM).close()
        except ConnectionRefusedError:
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # It comes or goes just now.


def listening(folder: Path) -> socket.socket:
    """A socket that listens in a folder; whoever may enter the folder may connect."""
    descriptor = os.open(folder, os.O_RDONLY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Through /proc, as a path in a socket address may have 107 bytes only, see unix(7).
        listener.bind(f"/proc/self/fd/{descriptor}/socket")
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(descriptor)
    return listener


def _tell_feed_over(folder: Path) -> None:
    with contextlib.suppress(OSError), dial(folder, socket.SOCK_STREAM) as node:
        node.sendall(FEED_OVER_FRAME)


class _Beats:
    """Shows that this keeper lives, while it is entered: a file whose text changes.

    Args:
        url: the file's.
        executor: the process id of the executor that it lives as long as.
    """

    def __init__(self, url: str, executor: int) -> None:
        self._url, self._place = url, f"{executor} {socket.gethostname()}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="sparkdl-beats", daemon=True)

    def _beat(self) -> None:
        beat_s, number = BEAT_S if storage.is_local(self._url) else BEAT_REMOTE_S, 0
        while True:
            with contextlib.suppress(Exception):  # The store fails for a moment: the next time.
                storage.write(self._url, f"{os.getpid()} {number} {self._place}")
            number += 1
            if self._over.wait(beat_s):
                return

    def __enter__(self) -> "_Beats":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
