"""Runs on the driver. SIGTERM, with which YARN, Kubernetes and others end a job, cancels its runs.

The handler only orders the runs of the program to end. It raises nothing while a run goes on: py4j
takes the answer to an interrupted call for the answer to the next call. When the last run has
ended, the program exits with code 143, as after a SIGTERM that is not handled.

The handler is installed by the first run that the main thread starts, unless the program has its
own, and removed when the last run has ended.
"""

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkdl.cluster.base import Cluster
from sparkdl.runs.states import RunState

_logger = logging.getLogger("sparkdl.runner")

EXIT_CODE = 128 + signal.SIGTERM
REASON = "terminated by SIGTERM"

# Seconds between two orders: a run may submit a job while the first order cancels its jobs.
ORDER_S = 0.2


@dataclass
class _State:
    """The runs of this program that SIGTERM ends.

    Attributes:
        runs: the runs that go on.
        has_received: SIGTERM has arrived while a run went on.
        has_left: the main thread was told to leave the program. A scheduler may send SIGTERM twice,
            as may spark-submit and the scheduler.
        all_ended: set while no run goes on.
        lock: held while `runs` changes, never by the handler.
        pid: the process of the runs. A process that it forks, as `multiprocessing` does, inherits
            handler and runs, and the connection to Java.
    """

    runs: list["RunningRun"] = field(default_factory=list)
    has_received: bool = False
    has_left: bool = False
    all_ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    pid: int = field(default_factory=os.getpid)


# Process-wide state, as a process has one handler of SIGTERM.
_state = _State()


class RunningRun:
    """A run that SIGTERM ends, from its preparation to its end.

    Args:
        cluster: the cluster, whose jobs the run has tagged.
        run_id: the id of the run.
    """

    def __init__(self, cluster: Cluster, run_id: str) -> None:
        self._cluster = cluster
        self._tag = f"sparkdl:{run_id}"
        self.stop_run: Callable[[RunState, str], object] | None = None

    def order(self) -> None:
        """Let the run end soon as CANCELLED, also while it waits for its preflight."""
        if self.stop_run:
            self.stop_run(RunState.CANCELLED, REASON)
        try:
            self._cluster.cancel(self._tag)
        except Exception as exc:  # noqa: BLE001 The scheduler may have ended Spark's JVM first.
            _logger.debug("Spark cannot cancel %s: %r", self._tag, exc)

    def close(self) -> None:
        """Give SIGTERM back its former effect after the last run.

        Raises:
            SystemExit: with code 143 if SIGTERM has arrived, in the main thread, and after the
                runs of other threads have ended.
        """
        with _state.lock:
            _state.runs.remove(self)
            if not _state.runs:
                _state.all_ended.set()
        if threading.current_thread() is threading.main_thread():
            _close_in_main_thread()
        elif _state.has_received and _state.all_ended.is_set():
            _end_main_thread()


def _close_in_main_thread() -> None:
    if _state.has_received:
        _state.all_ended.wait()
        _leave()
    if not _state.runs and signal.getsignal(signal.SIGTERM) is _handle:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_main_thread() -> None:
    main = threading.main_thread()
    if main.is_alive():
        # Interrupts what the main thread waits for; the handler then raises SystemExit there.
        signal.pthread_kill(main.ident or 0, signal.SIGTERM)
    else:
        atexit.register(exit_at_exit, EXIT_CODE)


def exit_at_exit(code: int) -> None:
    """Exit with a code, after all exit functions; the first of the exit functions calls this.

    The last exit function that was registered is called first; it cannot change the exit code of
    Python in another way.
    """
    atexit.unregister(exit_at_exit)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _leave() -> None:
    _state.has_left = True
    raise SystemExit(EXIT_CODE)


def running(cluster: Cluster, run_id: str) -> RunningRun:
    """Let SIGTERM end a run that begins; return the run, which `close` must follow."""
    new = RunningRun(cluster, run_id)
    with _state.lock:
        _state.all_ended.clear()
        _state.runs.append(new)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _handle)
    if _state.has_received:  # The program goes on after the end of its runs.
        _in_thread(_order_all)
    return new


def has_terminated() -> bool:
    """Return True if SIGTERM has ended the runs of this program."""
    return _state.has_received


def _handle(number: int, frame: Any) -> None:
    if _state.pid != os.getpid():
        _die()
    elif _state.runs and not _state.has_received:
        _state.has_received = True
        _in_thread(_order_all)
    elif _state.has_received:
        is_over = not _state.runs and threading.main_thread().is_alive()
        if is_over and not _state.has_left:
            _leave()
    else:  # The last run has ended in another thread, which cannot remove this handler.
        _die()


def _die() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _order_all() -> None:
    while True:
        for run in [*_state.runs]:
            run.order()
        if _state.all_ended.wait(ORDER_S):
            return


def _in_thread(function: Callable[[], None]) -> None:
    """Call a function in a thread, as the handler may have interrupted the holder of any lock."""
    try:
        threading.Thread(target=function, name="sparkdl-sigterm", daemon=True).start()
    except RuntimeError:  # Python starts no threads at its end, when the main thread holds no lock.
        for run in [*_state.runs]:
            run.order()
