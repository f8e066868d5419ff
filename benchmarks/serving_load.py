"""Send requests to a model server while its versions change and its processes are killed.

A model with two versions is served by a program of its own. Each version answers with its number.
Clients send one row per request over connections that stay open. Meanwhile, an alias moves forward
and back between the versions, and processes in which the model computes, and workers of the server,
get SIGKILL, all spread evenly over the requests.

An answer is wrong if no server that follows the alias could have given it: its version was not
there yet, or all workers had told before the request was sent that they have a later one. A request
is lost if its connection ends without an answer, and no worker was killed in the meantime; the
requests that a killed worker had are counted as `reset`. A request that the killed process of a
model had is answered with 503. A client may send both again.

    python benchmarks/serving_load.py --requests 100000
    python benchmarks/serving_load.py --requests 1000000 --moves 100 --kills 50 --workers 2 \\
        --worker-kills 20 --batching

The program prints a table, then one JSON document, and removes its files. The exit code is 1 if a
request was lost or answered wrongly. `over_time` has what all processes of the server hold while
requests are sent: open files, threads, memory.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
from lib.machine import machine, resident_mb
from lib.numbered_model import load

from sparkdl import models

NAME, ALIAS = "numbered", "live"
POLL_S = 0.05
SETTLE_S = 3.0
# Seconds in which a client notices that its connection has ended.
LATE_S = 1.0
# Looks at what the server holds while requests are sent.
NUM_SAMPLES = 20
BODY = json.dumps({"instances": [[0.5, 0.5]]}).encode()

Row = dict[str, Any]


@dataclass
class Move:
    """A move of the alias.

    Attributes:
        version: the version that it names.
        begun: the time at which it was moved.
        told: the time at which the server told that the version takes requests.
    """

    version: int
    begun: float
    told: float = float("inf")


@dataclass
class Record:
    """The answers, moves of versions and kills while requests are sent."""

    moves: list[Move] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    num_lost: int = 0
    num_reset: int = 0
    wrong: list[str] = field(default_factory=list)
    num_kills: int = 0
    # The times between which a worker was there before, and not there after.
    worker_kills: list[tuple[float, float]] = field(default_factory=list)
    over_time: list[Row] = field(default_factory=list)

    @property
    def num_ended(self) -> int:
        """Number of requests that were answered, or not."""
        return len(self.latencies) + self.num_lost + self.num_reset

    def note_end(self, opened: float, sent: float) -> None:
        """Note a connection that has ended without an answer.

        Args:
            opened: the time at which it was opened.
            sent: the time of its last request, which a client may send to a worker that has ended.
        """
        now = time.monotonic()
        is_reset = any(
            opened <= end and sent <= end + LATE_S and begin <= now
            for begin, end in self.worker_kills
        )
        self.num_reset += is_reset
        self.num_lost += not is_reset

    def note(self, status: int, text: bytes, sent: float) -> None:
        """Note an answer."""
        now = time.monotonic()
        self.latencies.append(now - sent)
        self.statuses[status] += 1
        if status == 200:
            ((first, second),) = json.loads(text)["predictions"]
            if first != second or not self._is_right(first, sent, now):
                self.wrong.append(text.decode())

    def _is_right(self, version: float, sent: float, received: float) -> bool:
        for move in reversed(self.moves):
            if move.version == version and move.begun <= received:
                return True
            if move.told <= sent:
                return False
        return False


# ---- the server


def export_versions(root: str) -> None:
    """Export two versions of the model."""
    for number in (1, 2):
        folder = Path(root, f"weights-{number}")
        folder.mkdir()
        (folder / "number.txt").write_text(str(number))
        models.export(str(folder), NAME, loader=load, signature=np.ones((2, 2)), root=root)
    models.alias(NAME, ALIAS, 1, root=root)


def serve(root: str, options: Any) -> None:
    """Serve the model until the end of the process."""
    from sparkdl import serving

    server = serving.start(
        NAME, alias=ALIAS, root=root, port=0, batching=options.batching, workers=options.workers
    )
    print(server.url, flush=True)
    server.wait()


def children(pid: int, module: str) -> list[int]:
    """Return the processes that a process has started, and that run a module."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def processes(pid: int) -> list[int]:
    """Return the processes of a server that answer requests: its workers, or the only one."""
    return children(pid, "serving.worker") or [pid]


def model_processes(pid: int) -> list[int]:
    """Return the processes in which the models of a server compute."""
    return [child for p in processes(pid) for child in children(p, "model_worker")]


def resources_of(pid: int) -> Row:
    """Return what the processes of a server hold, without those of models."""
    held: Row = {"open_files": 0, "threads": 0, "memory_mb": 0.0}
    for process in {pid, *processes(pid)}:
        with contextlib.suppress(OSError):
            held["open_files"] += len(os.listdir(f"/proc/{process}/fd"))
            held["threads"] += len(os.listdir(f"/proc/{process}/task"))
            held["memory_mb"] += resident_mb(process)
    held["memory_mb"] = round(held["memory_mb"], 1)
    held["workers"] = len(processes(pid))
    return {**held, "model_processes": len(model_processes(pid))}


# ---- what happens to it


def at_times(record: Record, num_requests: int, num_times: int, end: Any) -> Iterator[int]:
    """Wait until the next part of the requests has ended, some times."""
    for number in range(num_times):
        while record.num_ended < num_requests * (number + 1) / (num_times + 1):
            if end.wait(POLL_S):
                return
        yield number


def move_versions(record: Record, root: str, url: str, options: Any, end: Any) -> None:
    """Move the alias forward and back, and note when all workers have followed."""
    for _ in at_times(record, options.requests, options.moves, end):
        version = 3 - record.moves[-1].version
        move = Move(version, time.monotonic())
        record.moves.append(move)
        models.alias(NAME, ALIAS, version, root=root)
        while not end.wait(POLL_S):
            if has_changed(url, version, options.workers):
                move.told = time.monotonic()
                break


def has_changed(url: str, version: int, num_workers: int) -> bool:
    """Return True if all workers have a version, and not the one before."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    pattern = r'^sparkdl_serving_version_loaded\{.*version="(\d)"\} (\S+)$'
    loaded = {int(n): float(count) for n, count in re.findall(pattern, page, re.MULTILINE)}
    return loaded.get(version) == num_workers and not loaded.get(3 - version)


def kill_models(record: Record, pid: int, options: Any, end: Any) -> None:
    """Send SIGKILL to the process of a model."""
    for number in at_times(record, options.requests, options.kills, end):
        if found := model_processes(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found[number % len(found)], signal.SIGKILL)
                record.num_kills += 1


def kill_workers(record: Record, pid: int, options: Any, end: Any) -> None:
    """Send SIGKILL to a worker, unless another one is being started."""
    for number in at_times(record, options.requests, options.worker_kills, end):
        found = children(pid, "serving.worker")
        if len(found) < options.workers:
            continue
        begin = time.monotonic()
        # Its requests may end from now on, until the end is noted.
        record.worker_kills.append((begin, float("inf")))
        killed = found[number % len(found)]
        os.kill(killed, signal.SIGKILL)
        # Its socket takes connections until the last of its threads has ended.
        while Path(f"/proc/{killed}").exists():
            time.sleep(0.001)
        record.worker_kills[-1] = (begin, time.monotonic())


def note_resources(record: Record, pid: int, options: Any, end: Any) -> None:
    """Note what the server holds over time."""
    for _ in at_times(record, options.requests, NUM_SAMPLES, end):
        record.over_time.append({"requests": record.num_ended, **resources_of(pid)})


# ---- the clients


class Client:
    """A connection that has one request at a time."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        path = f"/v1/models/{NAME}/labels/{ALIAS}:predict"
        head = f"POST {path} HTTP/1.1\r\nHost: {self._address}\r\nContent-Length: {len(BODY)}\r\n"
        self._request = f"{head}\r\n".encode() + BODY
        self.sent = 0.0
        self.connect()

    def connect(self) -> None:
        """Open the connection."""
        host, port = self._address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.opened = time.monotonic()

    def send(self) -> None:
        """Send a request."""
        self._data = b""
        self.sent = time.monotonic()
        self.socket.sendall(self._request)

    def read(self) -> tuple[int, bytes] | None:
        """Read what has come; return the status and the body when the answer is complete."""
        if not (data := self.socket.recv(1 << 16)):
            raise ConnectionError("the server has closed the connection")
        self._data += data
        head, _, body = self._data.partition(b"\r\n\r\n")
        if not _:
            return None
        length = head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
        return (int(head[9:12]), body) if len(body) >= int(length) else None


def send_requests(url: str, num_clients: int, num_requests: int, record: Record) -> None:
    """Send requests until all were answered or lost."""
    ready, clients, num_sent = select.epoll(), dict[int, Client](), 0

    def start(client: Client) -> int:
        clients[client.socket.fileno()] = client
        ready.register(client.socket.fileno(), select.EPOLLIN)
        client.send()
        return 1

    for _ in range(min(num_clients, num_requests)):
        num_sent += start(Client(url))
    while clients:
        for number, _ in ready.poll(300):
            client = clients[number]
            try:
                if (answer := client.read()) is None:
                    continue
                record.note(*answer, client.sent)
                if num_sent < num_requests:
                    client.send()
                    num_sent += 1
                    continue
            except OSError:
                record.note_end(client.opened, client.sent)
            ready.unregister(number)
            del clients[number]
            client.socket.close()
            if num_sent < num_requests:
                client.connect()
                num_sent += start(client)


# ---- the measurement


def measure(options: argparse.Namespace, root: str) -> Row:
    """Measure everything; return the result."""
    export_versions(root)
    command = [sys.executable, __file__, "--serve", root, "--workers", str(options.workers)]
    command += ["--batching"] if options.batching else []
    record, end = Record(moves=[Move(1, time.monotonic(), time.monotonic())]), threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            url = server.stdout.readline().strip()
            # Threads and connections are there before the first look.
            send_requests(url, options.clients, 20 * options.clients, Record(moves=record.moves))
            time.sleep(SETTLE_S)
            before, begun = resources_of(server.pid), time.monotonic()
            happenings = [(move_versions, (record, root, url, options, end))]
            for function in (kill_models, kill_workers, note_resources):
                happenings.append((function, (record, server.pid, options, end)))
            threads = [threading.Thread(target=f, args=arguments) for f, arguments in happenings]
            for thread in threads:
                thread.start()
            send_requests(url, options.clients, options.requests, record)
            seconds = time.monotonic() - begun
            end.set()
            for thread in threads:
                thread.join()
            time.sleep(SETTLE_S)
            after = resources_of(server.pid)
        finally:
            server.kill()
    return result_of(record, options, before, after, seconds)


def result_of(
    record: Record, options: argparse.Namespace, before: Row, after: Row, seconds: float
) -> Row:
    """Return the figures."""
    p50, p99 = (np.percentile(record.latencies, [50, 99]) * 1000).round(2).tolist()
    return {
        "requests": options.requests,
        "clients": options.clients,
        "batching": options.batching,
        "workers": options.workers,
        "seconds": round(seconds, 1),
        "requests_per_s": round(options.requests / seconds, 1),
        "lost": record.num_lost,
        "reset": record.num_reset,
        "wrong": len(record.wrong),
        "statuses": {str(status): n for status, n in sorted(record.statuses.items())},
        "moves": len(record.moves) - 1,
        "moves_told": sum(move.told < float("inf") for move in record.moves[1:]),
        "kills": record.num_kills,
        "worker_kills": len(record.worker_kills),
        "p50_ms": p50,
        "p99_ms": p99,
        "before": before,
        "after": after,
        "over_time": record.over_time,
    }


def main() -> int:
    """Read the command line, measure, print the result; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--moves", type=int, default=35, help="moves of the alias")
    parser.add_argument("--kills", type=int, default=20, help="kills of the process of a model")
    parser.add_argument("--worker-kills", type=int, default=0, help="kills of a worker")
    parser.add_argument("--batching", action="store_true")
    parser.add_argument("--serve", metavar="ROOT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options)
        return 0
    if options.worker_kills and options.workers < 2:
        parser.error("--worker-kills needs at least 2 workers")
    about = machine("uvicorn", "h11", "uvloop", "numpy")
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
        result = measure(options, root)
    for name, value in ((n, v) for n, v in result.items() if n != "over_time"):
        print(f"{name:>16}  {value}")
    print(json.dumps({"benchmark": "serving_load", "machine": about, "result": result}, indent=1))
    return 1 if result["lost"] or result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
