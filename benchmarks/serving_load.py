"""Send requests to a model server while its versions change and its model's process is killed.

A model with two versions is served in a process of its own. Each version answers with its number.
Clients send one row per request over connections that stay open. Meanwhile, an alias moves forward
and back between the versions, and the process in which the model computes gets SIGKILL.

An answer is wrong if no server that follows the alias could have given it: its version was not
there yet, or the server had told before the request was sent that a later one takes requests. A
request is lost if its connection ends without an answer. A request that the killed process had is
answered with 503, which a client may send again.

    python benchmarks/serving_load.py --requests 100000

The program prints a table, then one JSON document, and removes its files. The exit code is 1 if a
request was lost or answered wrongly.
"""

import argparse
import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
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
    wrong: list[str] = field(default_factory=list)
    num_kills: int = 0

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
        moves = list(self.moves)
        return any(
            move.version == version
            and move.begun <= received
            and not any(later.told <= sent for later in moves[number + 1 :])
            for number, move in enumerate(moves)
        )


# ---- the server


def export_versions(root: str) -> None:
    """Export two versions of the model."""
    for number in (1, 2):
        folder = Path(root, f"weights-{number}")
        folder.mkdir()
        (folder / "number.txt").write_text(str(number))
        models.export(str(folder), NAME, loader=load, signature=np.ones((2, 2)), root=root)
    models.alias(NAME, ALIAS, 1, root=root)


def serve(root: str, is_batched: bool) -> None:
    """Serve the model until the end of the process."""
    from sparkdl import serving

    server = serving.start(NAME, alias=ALIAS, root=root, port=0, batching=is_batched)
    print(server.url, flush=True)
    server.wait()


def model_processes(pid: int) -> list[int]:
    """Return the processes in which the models of a server compute."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                if b"model_worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def resources_of(pid: int) -> Row:
    """Return what a server holds when its connections have ended."""
    time.sleep(SETTLE_S)
    return {
        "open_files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "memory_mb": round(resident_mb(pid), 1),
        "model_processes": len(model_processes(pid)),
    }


# ---- what happens to it


def move_versions(record: Record, root: str, url: str, options: Any, end: Any) -> None:
    """Move the alias forward and back, and note when the server tells of it."""
    while not end.wait(options.move_s):
        version = 3 - record.moves[-1].version
        move = Move(version, time.monotonic())
        record.moves.append(move)
        models.alias(NAME, ALIAS, version, root=root)
        while not end.wait(POLL_S):
            if label_of(url) == version:
                move.told = time.monotonic()
                break


def label_of(url: str) -> int | None:
    """Return the version that the server has for the alias."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("GET", f"/v1/models/{NAME}/labels/{ALIAS}")
        states = json.loads(connection.getresponse().read())["model_version_status"]
    except (OSError, KeyError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return int(states[0]["version"])


def kill_models(record: Record, pid: int, options: Any, end: Any) -> None:
    """Send SIGKILL to the process of a model."""
    while not end.wait(options.kill_s):
        for child in model_processes(pid)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                record.num_kills += 1


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
                record.num_lost += 1
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
    command = [sys.executable, __file__, "--serve", root]
    command += ["--batching"] if options.batching else []
    record, end = Record(moves=[Move(1, time.monotonic(), time.monotonic())]), threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            url = server.stdout.readline().strip()
            # Threads and connections are there before the first look.
            send_requests(url, options.clients, 20 * options.clients, Record(moves=record.moves))
            before, begun = resources_of(server.pid), time.monotonic()
            threads = [
                threading.Thread(target=move_versions, args=(record, root, url, options, end)),
                threading.Thread(target=kill_models, args=(record, server.pid, options, end)),
            ]
            for thread in threads:
                thread.start()
            send_requests(url, options.clients, options.requests, record)
            seconds = time.monotonic() - begun
            end.set()
            for thread in threads:
                thread.join()
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
        "seconds": round(seconds, 1),
        "requests_per_s": round(options.requests / seconds, 1),
        "lost": record.num_lost,
        "wrong": len(record.wrong),
        "statuses": {str(status): n for status, n in sorted(record.statuses.items())},
        "moves": len(record.moves) - 1,
        "moves_told": sum(move.told < float("inf") for move in record.moves[1:]),
        "kills": record.num_kills,
        "p50_ms": p50,
        "p99_ms": p99,
        "before": before,
        "after": after,
    }


def main() -> int:
    """Read the command line, measure, print the result; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--move-s", type=float, default=3.0, help="seconds between two moves")
    parser.add_argument("--kill-s", type=float, default=7.0, help="seconds between two kills")
    parser.add_argument("--batching", action="store_true")
    parser.add_argument("--serve", metavar="ROOT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.batching)
        return 0
    about = machine("uvicorn", "h11", "uvloop", "numpy")
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
        result = measure(options, root)
    for name, value in result.items():
        print(f"{name:>16}  {value}")
    print(json.dumps({"benchmark": "serving_load", "machine": about, "result": result}, indent=1))
    return 1 if result["lost"] or result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
