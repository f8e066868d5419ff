"""Runs in a process of its own that a task has forked; supervises a node after the task has ended.

A task of a one-core executor returns, so that other tasks can feed the node. The node supervisor
does what the task would have done until the end of its training process. It is forked by the same
fork server, and ends with its node, with its executor, or when the driver orders the end.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import pickle
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from pyspark import TaskContext

from sparkdl.cluster.gang.placement import Placement
from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.gang.task import failed_outcome, supervise_rank
from sparkdl.cluster.gpus.assignment import spark_gpus
from sparkdl.cluster.outcome import Outcome
from sparkdl.cluster.plan import Member
from sparkdl.cluster.process.child import receive, set_up
from sparkdl.cluster.process.fork_server import PACKET_BYTES
from sparkdl.cluster.process.server_connection import connect, packet
from sparkdl.cluster.process.server_folder import dial, private_folder
from sparkdl.cluster.process.trial_folder import local_folder
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.files import storage
from sparkdl.files.polling import retry
from sparkdl.files.rank_files import RankFiles
from sparkdl.host.os_processes import parent, process_start
from sparkdl.runs.states import Failure
from sparkdl.tfos.cluster.node_files import ALIVE, beat_s
from sparkdl.tfos.cluster.node_policy import NodePolicy, Supervision

# A socket folder without a listener that is older than this is stale: no node starts in it.
STALE_S = 60.0

# The frame that tells a node that no more rows come: one without a body, see `tfos.feed.protocol`.
FEED_OVER_FRAME = b"F" + bytes(8)

_READY = b"k"

_logger = logging.getLogger("sparkdl.tfos")


def executor_of_task() -> tuple[int, int]:
    """Return the process id and the start time of the executor above this task's Python worker."""
    pid = parent(os.getppid()) or os.getppid()
    return pid, process_start(pid) or 0


def node_folder(run_path: str, rank: int | str, executor: int | str) -> Path:
    """Return the folder in which a node listens for the tasks that feed it, on its own host."""
    name = hashlib.sha256(run_path.encode()).hexdigest()[:16]
    return private_folder() / f"node-{name}-{rank}-{executor}"


@dataclass(frozen=True)
class _Request:
    """The message of a task to the supervisor of its node."""

    task: TrialTask
    supervision: Supervision
    member: Member
    peers: Sequence[Peer]


def hand_over(task: TrialTask, placement: Placement) -> None:
    """Start a supervisor for a node; return when it has taken over.

    Raises:
        OSError: if it could not be started; the log of its executor, or of the node, says why.
    """
    executor = executor_of_task()
    gpus = spark_gpus(TaskContext.get())
    supervision = Supervision(executor, None if gpus is None else tuple(gpus))
    data = pickle.dumps(
        {
            "request": _Request(task, supervision, placement.member, placement.peers),
            "environ": dict(os.environ),
            "cwd": os.getcwd(),
            "path": list(sys.path),
            "secrets": list(task.plan.secrets),
        }
    )
    sockets = {"held": placement.port_socket, "listener": placement.listener}
    more = {name: sock for name, sock in sockets.items() if sock}
    mine, theirs = socket.socketpair()
    with mine, theirs, connect(task.start) as server, _log_of(placement) as log:
        # The fork server removes the folder with the supervisor, however that ends.
        scratch = node_folder(task.run.path, placement.rank, executor[0])
        request = packet(
            task.start, fork=True, entry=__name__, kept=True, more=[*more], scratch=str(scratch)
        )
        descriptors = [theirs.fileno(), log, *(sock.fileno() for sock in more.values())]
        socket.send_fds(server, [request], descriptors)
        server.settimeout(task.plan.start_timeout_s)
        reply = b""
        with contextlib.suppress(ConnectionError):  # It was killed with the request unread.
            reply = server.recv(PACKET_BYTES)
        answer = json.loads(reply or b'{"error": "it was killed"}')
        if "error" in answer:
            raise OSError(f"the fork server of this host could not serve: {answer['error']}")
        theirs.close()
        mine.sendall(len(data).to_bytes(8, "big") + data)
        if mine.recv(1) != _READY:
            member = placement.member
            raise OSError(f"the supervisor of {member} did not start; see {member.log}")


@contextlib.contextmanager
def _log_of(placement: Placement) -> Iterator[int]:
    """Open the log file of a node for the output of its supervisor."""
    folder, log = placement.paths.folder, placement.member.log
    path = storage.local_path(folder) / log if storage.is_local(folder) else os.devnull
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def main(channel: socket.socket, more: Mapping[str, int]) -> int:
    """Supervise the node that `channel` names; return the exit code when the node has ended."""
    message = receive(channel)
    set_up(message)
    request: _Request = message["request"]
    task, supervision = request.task, request.supervision
    task = replace(task, start=replace(task.start, is_task=False))
    sockets = {name: socket.socket(fileno=number) for name, number in more.items()}
    placement = Placement(
        member=request.member,
        attempt=task.trial.attempt,
        peers=request.peers,
        paths=task.paths,
        port_socket=sockets.get("held"),
        listener=sockets.get("listener"),
    )
    policy = NodePolicy(supervision=supervision)
    pause_s = beat_s(placement.files.url, task.plan.size)
    with _Beats(placement.files, placement.rank, supervision.executor[0], pause_s):
        try:
            outcome = _supervise(task, supervision, placement, channel)
        except Exception as exc:  # noqa: BLE001 Whatever the error is, the driver must see it.
            traceback.print_exc()
            outcome = failed_outcome(f"{type(exc).__name__}: {exc}", Failure.LOST)
            post = functools.partial(placement.files.post, placement.rank, "failed")
            retry(post, "tell the other nodes that this node has failed")
        policy.concluded(task, placement, outcome)
    return 0


def _supervise(
    task: TrialTask, supervision: Supervision, placement: Placement, channel: socket.socket
) -> Outcome:
    folder = node_folder(task.run.path, placement.rank, supervision.executor[0])
    _remove_stale(folder.parent)
    folder.mkdir(mode=0o700)
    files = local_folder(placement.paths, placement.attempt, task.plan.size, task.at_once)
    with files as local, listening(folder) as inbox:
        channel.sendall(_READY)
        channel.close()
        feed_over = functools.partial(_send_feed_over, folder)
        policy = NodePolicy(supervision=replace(supervision, inbox=inbox, feed_over=feed_over))
        return supervise_rank(task, policy, placement, local)


def _remove_stale(private: Path) -> None:
    """Remove the folders of nodes whose fork server was killed: no other process would."""
    for folder in private.glob("node-*"):
        try:
            if time.time() - folder.stat().st_mtime > STALE_S:
                dial(folder, socket.SOCK_STREAM).close()
        except ConnectionRefusedError:
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # The folder comes or goes at this moment.


def listening(folder: Path) -> socket.socket:
    """Return a socket that listens in a folder; who may enter the folder may connect."""
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


def _send_feed_over(folder: Path) -> None:
    with contextlib.suppress(OSError), dial(folder, socket.SOCK_STREAM) as node:
        node.sendall(FEED_OVER_FRAME)


class _Beats:
    """Show that this supervisor lives, while it is entered: a message that changes.

    Args:
        files: the files of the attempt.
        rank: the rank of the node.
        executor: the process id of the executor that the supervisor lives as long as.
        pause_s: seconds between two messages.
    """

    def __init__(self, files: RankFiles, rank: int, executor: int, pause_s: float) -> None:
        self._pause_s = pause_s
        self._files = files
        self._rank = rank
        self._place = f"{executor} {socket.gethostname()}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="sparkdl-beats", daemon=True)

    def _beat(self) -> None:
        number = 0
        while True:
            try:
                self._files.post(self._rank, ALIVE, f"{os.getpid()} {number} {self._place}")
            except Exception as exc:  # noqa: BLE001 Each store's library raises its own.
                _logger.warning("failed to show that this node lives: %r. Trying again.", exc)
            number += 1
            if self._over.wait(self._pause_s):
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
