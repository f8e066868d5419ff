"""Runs in a worker of a model server. Answer requests on the port that all workers share."""

import contextlib
import logging
import os
import pickle
import shutil
import signal
import threading
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from logging.handlers import QueueHandler, QueueListener
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any

from sparkdl.host.tensorflow_noise import without_noise
from sparkdl.serving.channel import Channel
from sparkdl.serving.inference_log import InferenceLog, log_of
from sparkdl.serving.loaded_version import LoadedVersion, load
from sparkdl.serving.local_server import LocalServer
from sparkdl.serving.metrics import Metrics
from sparkdl.serving.settings import METRICS_FOLDER, Settings
from sparkdl.serving.sockets import listen
from sparkdl.serving.worker_models import Loaded, WorkerModels

# Messages for the log of the server that may wait; further ones are told on the standard error.
MAX_MESSAGES = 10_000
# Seconds that a scrape of metrics waits for the other workers.
NOTE_S = 5.0
# Seconds in which requests are answered after SIGTERM, and for what is left to do after them.
DRAIN_S = 30.0
END_S = 15.0


@dataclass(frozen=True, kw_only=True)
class WorkerStart:
    """All that a worker needs to start.

    Attributes:
        settings: the settings of the server.
        names: the names of the models.
        loads_on_demand: models are loaded at their first request.
        has_grpc: requests may come by gRPC.
        levels: the levels of loggers by name.
    """

    settings: Settings
    names: list[str]
    loads_on_demand: bool
    has_grpc: bool
    levels: dict[str, int] = field(default_factory=dict)


def main(fd: int) -> None:
    """Answer requests until the server ends, or until SIGTERM.

    Args:
        fd: the end of a private socket to the server.
    """
    end = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The server ends this process.
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    worker = Worker(Connection(fd))
    # A signal interrupts a wait with a time limit only.
    while not end.is_set() and not worker.channel.is_closed.wait(1.0):
        pass
    worker.end(DRAIN_S if end.is_set() else 0.0)


class Worker:
    """A worker: the functions that the server calls.

    Args:
        connection: the socket to the server.
    """

    def __init__(self, connection: Connection) -> None:
        names = ("ping", "prepare", "load", "show", "use_times", "listen", "note", "drain")
        functions = {name: getattr(self, name) for name in names}
        self.channel = Channel(connection, functions, "sparkdl-serving-channel")
        self._local: LocalServer | None = None
        self._log: InferenceLog | None = None
        self._draining = threading.Lock()
        self._is_drained = False
        self.channel.start()

    def ping(self) -> None:
        """Tell that this process does not hang, by the answer."""

    def prepare(self, start: bytes) -> None:
        """Take the settings, which are pickled, as a sink of the log may be of the user's program.

        Raises:
            ConfigError: if the log cannot be written.
        """
        self._start: WorkerStart = pickle.loads(start)
        self._messages = _send_messages(self.channel, self._start.levels)
        self._log = log_of(self._start.settings.log)
        self._models = WorkerModels(
            self._start.names,
            self._load,
            self._start.settings.warm_up_sizes,
            (lambda name: self.channel.call("want", name)) if self._start.loads_on_demand else None,
        )
        log = self._log
        self._metrics = Metrics(
            self._models.loaded,
            lambda: self._local.num_open if self._local else 0,
            lambda: log.num_dropped if log else 0,
            folder=os.environ[METRICS_FOLDER],
            note_all=self._note_all,
        )

    def load(self, url: str, name: str, version: int) -> Loaded:
        """Load a version, see `WorkerModels`."""
        with without_noise():
            return self._models.load(url, name, version)

    def show(self, shown: Any) -> None:
        """Let versions take requests, see `WorkerModels`."""
        self._models.show(shown)

    def use_times(self) -> dict[str, float]:
        """Return the time of the last request of each model."""
        return self._models.use_times()

    def listen(self, host: str, port: int, grpc_port: int | None) -> None:
        """Answer requests from now on.

        Raises:
            ConfigError: if the address cannot be used.
        """
        settings = self._start.settings
        with contextlib.ExitStack() as stack:
            bound = stack.enter_context(listen(host, port, is_shared=True))
            grpc = None
            if grpc_port is not None:
                from sparkdl.serving.grpc_server import GrpcServer

                grpc = GrpcServer(host, grpc_port, settings.max_bytes, is_shared=True)
            local = LocalServer(bound, grpc, settings)
            local.start(self._models, self._metrics, self._log)
            self._local = local
            stack.pop_all()

    def note(self) -> None:
        """Note the metrics that are those of a moment."""
        self._metrics.note()

    def drain(self, timeout_s: float) -> None:
        """Answer the requests that have come, free the ports, and write the log; once."""
        with self._draining:
            if self._is_drained:
                return
            self._is_drained = True
            if self._local:
                self._local.drain(timeout_s)
            elif self._log:
                self._log.close()

    def end(self, timeout_s: float) -> None:
        """Drain, end the processes of models, and then this one, whatever its threads do."""
        guard = threading.Timer(timeout_s + END_S, lambda: os._exit(1))
        guard.daemon = True
        guard.start()
        is_orphan = self.channel.is_closed.is_set() and not self._is_drained
        self.drain(timeout_s)
        if hasattr(self, "_models"):
            self._metrics.note()
            self._models.close()
            self._messages.stop()
        if is_orphan:
            # The server was killed, and removes nothing any more.
            shutil.rmtree(os.environ[METRICS_FOLDER], ignore_errors=True)
        self.channel.close()

    def _load(self, url: str, name: str, version: int) -> LoadedVersion:
        settings = self._start.settings
        # The connections of gRPC carry several requests at a time.
        num_clients = None if self._start.has_grpc else self._num_connections
        return load(url, name, version, settings.batching, num_clients, settings.timeout_s)

    def _num_connections(self) -> int:
        return self._local.num_connections if self._local else 0

    def _note_all(self) -> None:
        """Let all workers note their metrics; a worker that hangs keeps those of before."""
        with contextlib.suppress(ConnectionError, FutureTimeoutError):
            self.channel.call("note_all", timeout_s=NOTE_S)


class _ToServer(logging.Handler):
    """Lets the server log what a worker has to say, as its program decides what is logged."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record to the server."""
        self._channel.tell("log", record.name, record.levelno, self.format(record))


def _send_messages(channel: Channel, levels: dict[str, int]) -> QueueListener:
    """Send messages to the server, by a thread: no request waits for the server to read them."""
    messages: Queue[Any] = Queue(MAX_MESSAGES)
    logging.getLogger().addHandler(QueueHandler(messages))
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    listener = QueueListener(messages, _ToServer(channel))
    listener.start()
    return listener
