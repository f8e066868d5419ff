"""Compare the model server with and without batching, and with a bare `model.predict` server.

A small dense and a small convolutional Keras model are served over HTTP on loopback, each server in
a process of its own. Clients in another process send one row per request over connections that
stay open, 1, 8 and 64 at a time. The servers take turns in several rounds, and a row of the result
is the median of its rounds:

- alone: `serving.start`, each request computed alone
- batched: `serving.start` with `batching=True`
- alone-workers, batched-workers: the same with `--workers` (2) processes
- predict: `model.predict` in a thread behind the same HTTP server, and nothing else; the floor of
  what a program of twenty lines does

Peers are measured in the same run if the Python of an environment that has them is given:

- litserve: LitServe with batches, with `--litserve-python`
- mlflow: MLflow's scoring server, with `--mlflow-python`
- litserve-workers, mlflow-workers: the same with `--workers` processes

    python3 -m venv build/peers/serving
    build/peers/serving/bin/pip install 'litserve>=0.2.19' 'mlflow>=3.17' 'tensorflow>=2.21'
    peers=build/peers/serving/bin/python
    python benchmarks/serving.py --rounds 3 --litserve-python $peers --mlflow-python $peers

The program prints a table, then one JSON document, and removes its files. Each aim is reported as
met or not; the exit code does not depend on the aims. A server that answers nothing in the time
has no latency. `server_cpu_ms` is the time that the processor spends on a request in the processes
of the server, which other work on the machine changes less than the rates. `client_cpu` is the
percentage of a core that the clients take: at 100 the clients are what is measured.
"""

import argparse
import json
import multiprocessing
import os
import re
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
from lib.machine import machine
from lib.peer import Peer

CLIENTS = (1, 8, 64)
SERVERS = ("predict", "alone", "batched", "alone-workers", "batched-workers")
PEERS = ("litserve", "mlflow")
WARM_UP_S = 1.0
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
SHAPES = {"dense": (20,), "convolutional": (16, 16, 1)}

Row = dict[str, Any]


# ---- the servers, each in a process of its own


def save_model(path: Path, name: str) -> None:
    """Save a small model."""
    import keras

    layers: list[Any] = [keras.layers.Input(SHAPES[name])]
    if name == "convolutional":
        layers += [
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
        ]
    keras.Sequential([*layers, keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]).save(path)


def serve_predict(path: str) -> None:
    """Serve `model.predict` with the HTTP server of sparkdl, and nothing else: the floor."""
    import asyncio
    from concurrent.futures import Executor
    from dataclasses import replace

    import keras

    from sparkdl.serving.http_server import HttpServer
    from sparkdl.serving.messages import Answer, HttpRequest, ReadBody
    from sparkdl.serving.sockets import listen

    model = keras.saving.load_model(path)

    def answer(request: HttpRequest) -> Answer:
        rows = np.array(json.loads(request.body)["instances"], np.float32)
        values = model.predict(rows, verbose=0).tolist()
        return Answer(json.dumps({"predictions": values}).encode())

    async def answer_soon(head: HttpRequest, read: ReadBody, pool: Executor) -> Answer:
        request = replace(head, body=await read())
        return await asyncio.get_running_loop().run_in_executor(pool, answer, request)

    bound = listen("127.0.0.1", 0)
    host, port = bound.getsockname()
    HttpServer(bound, 1 << 26).start(answer_soon)
    print(f"http://{host}:{port}/", flush=True)
    while True:
        time.sleep(60)


def serve(kind: str, path: str, num_workers: int) -> None:
    """Serve a model until the end of the process."""
    from sparkdl import serving

    if kind == "predict":
        serve_predict(path)
        return
    batching, _, is_many = kind.partition("-")
    workers = num_workers if is_many else 1
    server = serving.start(path, port=0, batching=batching == "batched", workers=workers)
    print(f"{server.url}/v1/models/{server.models[0]}:predict", flush=True)
    server.wait()


# ---- the clients


class Client:
    """A connection that sends a request, and the next one after each answer.

    The clients share the cores with the server. So they do as little as they can: one thread sends
    bytes that are made once, and reads no more than the status and the length of an answer.
    """

    def __init__(self, url: str, body: bytes) -> None:
        parts = urlsplit(url)
        head = (
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self.begun = 0.0

    def fileno(self) -> int:
        """Return the number of the file of the connection."""
        return self._socket.fileno()

    def send(self) -> None:
        """Send the request."""
        self._data = b""
        self.begun = time.perf_counter()
        self._socket.sendall(self._request)

    def read(self) -> int | None:
        """Read what has come; return the status when the answer is complete."""
        if not (data := self._socket.recv(1 << 16)):
            raise RuntimeError("the server has closed the connection")
        self._data = data = self._data + data
        if (end := data.find(b"\r\n\r\n")) < 0:
            return None
        length = LENGTH.search(data, 0, end + 2)
        if length is None:
            raise RuntimeError(f"the answer has no length: {data[:500]!r}")
        return int(data[9:12]) if len(data) >= end + 4 + int(length[1]) else None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def load(url: str, body: bytes, num_clients: int, seconds: float, results: Any) -> None:
    """Measure a server with a number of clients at once; runs in a process of its own."""
    clients = {
        client.fileno(): client for client in (Client(url, body) for _ in range(num_clients))
    }
    ready = select.epoll()
    for number in clients:
        ready.register(number, select.EPOLLIN)
    start = time.perf_counter() + WARM_UP_S
    end, used = start + seconds, None
    latencies, failed, answered = list[float](), 0, 0
    for client in clients.values():
        client.send()
    while (now := time.perf_counter()) < end:
        if used is None and now >= start:
            used = time.process_time()
        for number, _ in ready.poll(end - now):
            client = clients[number]
            if (status := client.read()) is None:
                continue
            failed += status != 200
            answered += 1
            if status == 200 and client.begun >= start:
                latencies.append(time.perf_counter() - client.begun)
            client.send()
    share = (time.process_time() - (used or 0.0)) / seconds
    for client in clients.values():
        client.close()
    row: Row = {"clients": num_clients, "requests_per_s": round(len(latencies) / seconds, 2)}
    for percent in (50, 99):
        value = float(np.percentile(latencies, percent)) * 1000 if latencies else None
        row[f"p{percent}_ms"] = value and round(value, 2)
    results.put({**row, "failed": failed, "client_cpu": round(100 * share), "answered": answered})


def cpu_s(pid: int | None) -> float:
    """Return the seconds of the processor for a process and its workers; NaN for None."""
    if pid is None:
        return float("nan")
    pids = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        pids += map(int, children.read_text().split())
    fields = [Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split() for p in pids]
    return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")


def measure_server(
    name: str, url: str, shape: tuple[int, ...], seconds: float, pid: int | None = None
) -> list[Row]:
    """Measure a server with each number of clients; `pid` is its process, None for a peer."""
    values = np.random.default_rng(0).random((1, *shape)).round(4).tolist()
    body = json.dumps({"instances": values}).encode()
    rows = []
    for num_clients in CLIENTS:
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        arguments = (url, body, num_clients, seconds, results)
        process = context.Process(target=load, args=arguments)
        begun_s = cpu_s(pid)
        process.start()
        row = results.get(timeout=600)
        used_ms = (cpu_s(pid) - begun_s) * 1000 / max(1, row.pop("answered"))
        row["server_cpu_ms"] = None if pid is None else round(used_ms, 3)
        rows.append({"server": name, **row})
        process.join()
        say(f"{rows[-1]}")
    return rows


def measure_model(
    model: str, path: Path, options: argparse.Namespace, peers: Row, about: Row
) -> list[Row]:
    """Measure all servers of a model, one after the other."""
    rows, seconds = [], options.seconds
    for kind in SERVERS:
        command = [sys.executable, __file__, "--serve", kind, str(path)]
        command += ["--workers", str(options.workers)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout
                url = process.stdout.readline().strip()
                if not url:
                    raise RuntimeError(f"the server {kind} did not start; its output is above")
                rows += measure_server(kind, url, SHAPES[model], seconds, process.pid)
            finally:
                process.kill()
    for name, python in peers.items():
        for ending, workers in (("", 1), ("-workers", options.workers)):
            arguments = ("peers/serving_peers.py", name, str(path), str(workers))
            with Peer(python, *arguments) as peer:
                about[name] = peer.versions
                url = peer.ask("url")
                rows += measure_server(f"{name}{ending}", url, SHAPES[model], seconds)
    return [{"model": model, **row} for row in rows]


def median_of(rounds: list[list[Row]]) -> list[Row]:
    """Return the rows of several rounds as their medians; `failed` is the sum."""
    rows = []
    for same in zip(*rounds, strict=True):
        row = dict(same[0])
        for name in ("requests_per_s", "p50_ms", "p99_ms", "server_cpu_ms", "client_cpu"):
            values = [other[name] for other in same if other[name] is not None]
            row[name] = round(statistics.median(values), 2) if values else None
        row["rounds"] = [other["requests_per_s"] for other in same]
        rows.append({**row, "failed": sum(other["failed"] for other in same)})
    return rows


# ---- reporting


def say(text: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def ours_of(other: str) -> str:
    """Return the server of ours that is compared with another one."""
    if other == "predict":
        return "alone"
    return "batched-workers" if other.endswith("-workers") else "batched"


def aims(rows: list[Row]) -> list[Row]:
    """Compare with the aims: ahead of the others, and batching four times faster at 64 clients."""
    rates = {(r["model"], r["server"], r["clients"]): r["requests_per_s"] for r in rows}
    others = [s for s in dict.fromkeys(r["server"] for r in rows) if s not in SERVERS[1:]]
    compared = []
    for model in dict.fromkeys(r["model"] for r in rows):
        wanted = [(n, ours_of(other), other, 1) for n in CLIENTS for other in others]
        wanted += [(64, "batched", "alone", 4)]
        wanted += [(64, f"{kind}-workers", kind, 1) for kind in ("alone", "batched")]
        for clients, ours, other, at_least in wanted:
            mine, theirs = rates[model, ours, clients], rates[model, other, clients]
            compared.append(
                {
                    "aim": f"{model}, {clients} clients: {ours} / {other}",
                    # None if the other one has answered nothing.
                    "value": round(mine / theirs, 2) if theirs else None,
                    "at_least": at_least,
                    "met": mine > 0 and mine >= at_least * theirs,
                }
            )
    return compared


def table(result: Row) -> str:
    """Return the result as a table to read."""
    names = ("model", "server", "clients", "requests_per_s", "p50_ms", "p99_ms")
    names += ("failed", "server_cpu_ms", "client_cpu")
    lines = ["".join(f"{name:>16}" for name in names)]
    lines += ["".join(f"{row[name]!s:>16}" for name in names) for row in result["rows"]]
    lines += [
        f"{a['aim']} = {a['value']}: {'met' if a['met'] else 'NOT MET'}" for a in result["aims"]
    ]
    return "\n".join(lines)


def measure(options: argparse.Namespace, peers: Row) -> Row:
    """Measure everything; return the JSON document."""
    about, versions = machine("uvicorn", "h11", "uvloop", "numpy"), dict[str, Any]()
    rounds: list[list[Row]] = []
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        paths = {model: Path(folder, f"{model}.keras") for model in options.models}
        for model, path in paths.items():
            save_model(path, model)
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}")
            rows: list[Row] = []
            for model, path in paths.items():
                rows += measure_model(model, path, options, peers, versions)
            rounds.append(rows)
    rows = median_of(rounds)
    return {
        "benchmark": "serving",
        "machine": {**about, "peers": versions},
        "setting": {
            "seconds": options.seconds,
            "rounds": options.rounds,
            "workers": options.workers,
            "rows_per_request": 1,
        },
        "rows": rows,
        "aims": aims(rows),
    }


def main() -> None:
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    parser.add_argument("--workers", type=int, default=2, help="processes of a server with workers")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=[*SHAPES])
    for peer in PEERS:
        parser.add_argument(f"--{peer}-python", metavar="PATH", help=f"a Python that has {peer}")
    parser.add_argument("--serve", nargs=2, metavar=("KIND", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve, arguments.workers)
        return
    given = {peer: getattr(arguments, f"{peer}_python") for peer in PEERS}
    result = measure(arguments, {name: path for name, path in given.items() if path})
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
