"""Runs on the driver. The workers of a model server: processes that answer on the same port.

The kernel spreads connections over the workers, each of which listens on the port with SO_REUSEPORT
and has the models in memory. This process takes no requests. It looks for versions, lets all
workers load them, and lets them take requests when all have them. It starts a worker that has ended
again. The workers end with this process.
"""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field, replace
from typing import Any, cast

from prometheus_client.multiprocess import mark_process_dead

from sparkdl.errors import ConfigError, SparkDLError
from sparkdl.files.polling import pause_s
from sparkdl.host import pickler
from sparkdl.serving.channel import Channel
from sparkdl.serving.child_process import start_child
from sparkdl.serving.loaded_version import LoadedVersion
from sparkdl.serving.model_set import ModelSet
from sparkdl.serving.served_model import ServedModel, Shown
from sparkdl.serving.settings import METRICS_FOLDER
from sparkdl.serving.signatures import Signature
from sparkdl.serving.worker import END_S, WorkerStart, main
from sparkdl.serving.worker_models import Loaded

# Seconds for short calls; a worker that does not answer is ended, and started again.
SHOW_S = 60.0
NOTE_S = 2.0
# Seconds between two looks at a worker, and without an answer after which it is ended; and the
# seconds for its first answer, before which it imports its modules.
LOOK_S = 10.0
HUNG_S = 60.0
FIRST_S = 600.0
# A worker that has lived for fewer seconds is started again after a pause, which grows.
LIVED_S = 10.0

_logger = logging.getLogger("sparkdl.serving")


@dataclass(frozen=True)
class _Version:
    """A version that all workers have loaded, as `ServedModel` needs it."""

    name: str
    version: int
    num_bytes: int
    is_warm: bool
    signatures: dict[str, Signature] = field(repr=False)

    def warm_up(self, sizes: Sequence[int]) -> bool:
        return self.is_warm


class _Process:
    """The process of a worker.

    Args:
        number: the number of the worker, from 1.
        folder: the folder of the metrics.
        functions: the functions that the worker may call.

    Attributes:
        has_answered: it has started, and answers within seconds from now on.
    """

    def __init__(self, number: int, folder: str, functions: dict[str, Any]) -> None:
        self.number = number
        self.has_answered = False
        self.begun = time.monotonic()
        # Several processes have a model on the same GPUs.
        environment = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ, METRICS_FOLDER: folder}
        self.process, connection = start_child(main, environment=environment)
        functions = {**functions, "log": self._log}
        self.channel = Channel(connection, functions, "sparkdl-serving-worker")
        self.channel.start()

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.process.pid})"

    def end(self, timeout_s: float = 0.0) -> None:
        """End the process; one that does not end by itself is killed."""
        if timeout_s:
            self.channel.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        # A worker that sees the end of the channel before it has ended believes that the server
        # was killed, and removes the folder of the metrics. One that the kernel holds ends late.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        self.channel.close()
        self.process.wait()

    def _log(self, name: str, level: int, message: str) -> None:
        logger = logging.getLogger(name)
        if logger.isEnabledFor(level):
            logger.log(level, "%s: %s", self, message)


class Workers:
    """The workers of a model server.

    Args:
        num_workers: how many there are.
        start: what they need to start.
    """

    def __init__(self, num_workers: int, start: WorkerStart) -> None:
        self._num_workers = num_workers
        self._start = start
        self._folder = tempfile.mkdtemp(prefix="sparkdl-serving-")
        self._lock = threading.Lock()
        self._stop = threading.Event()
        # All processes that have not ended, and those that take requests, by number.
        self._processes: set[_Process] = set()
        self._live: dict[int, _Process] = {}
        self._shown: dict[str, Shown] = {}
        self._address: tuple[Any, ...] = ()
        # The versions whose loading has ended a worker.
        self._fatal: set[str] = set()

    def start(self, models: ModelSet) -> None:
        """Start the processes.

        Raises:
            ConfigError: if the inference log cannot be written, or its sink cannot be sent.
            SparkDLError: if a process ends.
        """
        self._models = models
        settings = self._settings()
        processes = [self._begin(number + 1) for number in range(self._num_workers)]
        calls = [(p, p.channel.begin("prepare", settings)) for p in processes]
        for process, call in calls:
            self._result(process, call, "started")
        self._live = {process.number: process for process in processes}

    def listen(self, host: str, port: int, grpc_port: int | None) -> None:
        """Answer requests from now on, and start workers again that end.

        Raises:
            SparkDLError: if a process ends.
        """
        self._address = (host, port, grpc_port)
        calls = [(p, p.channel.begin("listen", *self._address)) for p in self._live.values()]
        for process, call in calls:
            self._result(process, call, "began to listen")
        for process in [*self._live.values()]:
            name = f"sparkdl-serving-worker-{process.number}"
            threading.Thread(target=self._keep, args=(process,), name=name, daemon=True).start()

    def stop(self, timeout_s: float) -> None:
        """Let the workers answer all requests that have come, and end them.

        Args:
            timeout_s: seconds after which requests that were not answered are given up.
        """
        with self._lock:
            self._stop.set()
            processes = [*self._processes]
        wait_for([p.channel.begin("drain", timeout_s) for p in processes], timeout_s + END_S)
        enders = [threading.Thread(target=p.end, args=(END_S,)) for p in processes]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- versions, under the lock of their model

    def load(self, url: str, name: str, version: int) -> LoadedVersion:
        """Let all workers load a version; it is one in this process only in name.

        Raises:
            OSError: if its files cannot be read.
            ValueError: if a worker cannot load it.
        """
        with self._lock:
            processes = [p for p in self._live.values() if not p.channel.is_closed.is_set()]
        is_whole = len(processes) == self._num_workers
        if not processes or (url in self._fatal and not is_whole):
            raise OSError("workers are being started")
        self._shown.pop(name, None)  # The workers have more than they were told of.
        # A version that ends the process takes one worker with it: the one that was started last.
        processes.reverse()
        num_first = 1 if self._address else len(processes)
        parts: list[Loaded] = []
        for group in (processes[:num_first], processes[num_first:]):
            calls = [(p, p.channel.begin("load", url, name, version)) for p in group]
            for process, call in calls:
                self._wait_for(process, call)
            ended = [p for p, call in calls if isinstance(call.exception(), ConnectionError)]
            if ended and not parts:
                self._fatal.add(url)
                raise ValueError(f"{ended[0]} has ended while it loaded the version")
            parts += [call.result() for p, call in calls if p not in ended]
        self._fatal.discard(url)
        found = _Version(
            *(name, version),
            sum(part.num_bytes for part in parts),
            all(part.is_warm for part in parts),
            dict(parts[0].signatures),
        )
        return cast(LoadedVersion, found)

    def show(self, model: ServedModel) -> None:
        """Let the versions of a model take requests in all workers."""
        shown = model.shown()
        if self._shown.get(model.name) == shown:
            return
        with self._lock:
            processes = [*self._live.values()]
        calls = [(p, p.channel.begin("show", shown)) for p in processes]
        deadline = time.monotonic() + SHOW_S
        for process, call in calls:
            try:
                call.result(max(0.0, deadline - time.monotonic()))
            except ConnectionError:
                pass  # It is started again.
            except Exception as exc:  # noqa: BLE001
                _logger.error("%s does not change its versions, and is ended: %r", process, exc)
                process.end()
        self._shown[model.name] = shown

    def use_times(self) -> dict[str, float]:
        """Return the time of the last request of each model, on the clock `time.monotonic`."""
        times: dict[str, float] = {}
        for answer in self._ask("use_times"):
            for name, last in answer.items():
                times[name] = max(last, times.get(name, 0.0))
        return times

    # ---- calls of workers

    def _note_all(self) -> None:
        self._ask("note")

    def _ask(self, function: str) -> list[Any]:
        """Return what the workers answer in a short time."""
        with self._lock:
            processes = [*self._live.values()]
        done, _ = wait_for([p.channel.begin(function) for p in processes], NOTE_S)
        return [call.result() for call in done if not call.exception()]

    # ---- processes

    def _settings(self) -> bytes:
        loggers = ("", "sparkdl")
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in loggers}
        try:
            return pickler.dumps(replace(self._start, levels=levels))
        except Exception as exc:
            raise ConfigError(
                f"the log cannot be sent to a worker: {exc}. Each worker writes with a copy of the "
                "sink, which must be one that can be pickled."
            ) from exc

    def _begin(self, number: int) -> _Process:
        with self._lock:
            if self._stop.is_set():
                raise ConnectionError("the server is being stopped")
            functions = {"want": self._models.load, "note_all": self._note_all}
            process = _Process(number, self._folder, functions)
            self._processes.add(process)
            return process

    def _result(self, process: _Process, call: "Future[Any]", activity: str) -> Any:
        """Return the result of a call, however long it takes, unless the process hangs.

        Raises:
            SparkDLError: if the process ends.
        """
        self._wait_for(process, call)
        try:
            result = call.result()
        except ConnectionError:
            process.end()
            raise SparkDLError(
                f"{process} has ended with the code {process.process.returncode} when it "
                f"{activity}; the output of this program has the reason."
            ) from None
        process.has_answered = True
        return result

    def _wait_for(self, process: _Process, call: "Future[Any]") -> None:
        """Wait for the end of a call; end a process that hangs."""
        while not wait_for([call], LOOK_S).done:
            self._look_at(process)

    def _end_of(self, process: _Process) -> int:
        """Return the code with which a process ends; one that hangs is ended."""
        while not process.channel.is_closed.wait(LOOK_S):
            self._look_at(process)
        return process.process.wait()

    def _look_at(self, process: _Process) -> None:
        """End a process that does not answer."""
        limit_s = HUNG_S if process.has_answered else FIRST_S
        try:
            process.channel.call("ping", timeout_s=limit_s)
            process.has_answered = True
        except ConnectionError:
            pass  # It ends.
        except FutureTimeoutError:
            # An answer that this process has not read yet is no fault of the worker.
            if not (self._stop.is_set() or process.channel.has_unread()):
                _logger.error("%s has not answered for %g s, and is ended", process, limit_s)
                process.end()

    def _keep(self, process: _Process) -> None:
        """Start a worker again whenever it ends."""
        num_failures = 0
        while True:
            code = self._end_of(process)
            with self._lock:
                self._live.pop(process.number, None)
                self._processes.discard(process)
            process.channel.close()
            if self._stop.is_set():
                return
            mark_process_dead(  # type: ignore[no-untyped-call]
                process.process.pid, self._folder
            )
            _logger.error("%s has ended with the code %d; it is started again", process, code)
            is_short = time.monotonic() - process.begun < LIVED_S
            num_failures = num_failures + 1 if is_short else 0
            if num_failures and self._stop.wait(pause_s(num_failures)):
                return
            if (started := self._start_again(process.number)) is None:
                return
            process = started

    def _start_again(self, number: int) -> _Process | None:
        """Return a worker that takes requests; None if the server is stopped before."""
        reason = ""
        num_failures = 0
        while not self._stop.is_set():
            process = None
            try:
                process = self._begin(number)
                self._admit(process)
                return process
            except Exception as exc:  # noqa: BLE001
                if process is not None:
                    process.end()
                    with self._lock:
                        self._processes.discard(process)
                if str(exc) != reason and not self._stop.is_set():
                    reason = str(exc)
                    _logger.error("worker %d cannot be started: %s", number, reason)
                num_failures += 1
                self._stop.wait(pause_s(num_failures))
        return None

    def _admit(self, process: _Process) -> None:
        """Let a process load what the others have, and take requests."""
        channel = process.channel
        self._result(process, channel.begin("prepare", self._settings()), "started")
        self._load_shown(process, self._models.shown())
        with self._models.unchanged():
            # In the meantime, versions may have changed.
            shown = self._models.shown()
            self._load_shown(process, shown)
            for model in shown:
                channel.call("show", model, timeout_s=SHOW_S)
            channel.call("listen", *self._address, timeout_s=SHOW_S)
            with self._lock:
                self._live[process.number] = process
        _logger.info("%s takes requests", process)

    def _load_shown(self, process: _Process, models: Sequence[Shown]) -> None:
        for model in models:
            for version, url in model.urls.items():
                call = process.channel.begin("load", url, model.name, version)
                self._result(process, call, f"loaded version {version} of the model {model.name}")
