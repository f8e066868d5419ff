"""Compare `allreduce` in rounds, and within hosts first, with the ring that it replaces.

Both run on the same ranks in turns; with `--torch-python`, gloo runs beside them, from an
environment that has PyTorch. With `--delay-ms` or `--rate-mbit`, the hosts are network namespaces
with that delay between them, or that rate, see `lib.slow_hosts`; otherwise all ranks share one
host. `least` is the time that the bytes between the hosts take at least at that rate. The result is
the best block of calls, since other load on the machine only adds time.

    python -m benchmarks.collectives --ranks 2 4 8 16 32 --bytes 24e3 1e6 100e6
    python -m benchmarks.collectives --ranks 8 64 --bytes 24e3 --hosts 8 --delay-ms 5
    python -m benchmarks.collectives --ranks 4 8 --hosts 2 --rate-mbit 1000 --torch-python PYTHON

The program prints a line for each number of ranks and bytes, then one JSON document.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.machine import machine
from benchmarks.lib.slow_hosts import address_of, enter, slow_hosts
from sparkdl.distribute import ring_calls
from sparkdl.distribute.handshake import join
from sparkdl.distribute.invitation import Endpoint, Invitation

GLOO = str(Path(__file__).parent / "lib" / "gloo_ranks.py")
BUDGET_BYTES = 100_000_000  # That a block of calls reduces on all ranks, about.

Row = dict[str, Any]
# Returns the milliseconds of a call and of the CPU: kind, bytes, number of calls.
Measure = Callable[[str, int, int], tuple[float, float]]


def run_rank(rank: int, pipe: Connection, host: int, namespace: str) -> None:
    """Join the ring of all ranks, and run a block of calls for each message."""
    if namespace:
        enter(namespace)
    address = address_of(host) if namespace else "127.0.0.1"
    listener = socket.create_server((address, 0), backlog=128)
    pipe.send(Endpoint(address, listener.getsockname()[1], str(host)))
    endpoints, secret = pipe.recv()
    ring = join(Invitation(rank, endpoints, secret), listener)
    for _ in range(ring_calls.NUM_CALLS_BEFORE_STRIDES):
        ring.barrier()
    ring.allreduce(np.ones(ring_calls.SHORT_BYTES, np.float32))
    strides = ring._strides
    while message := pipe.recv():
        kind, num_bytes, num_calls = message
        array = np.ones(num_bytes // 4, np.float32)
        out = np.empty_like(array)
        ring._strides = strides if kind == "rounds" else None
        ring.barrier()
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(num_calls):
            ring.allreduce(array, "sum", out)
        times = time.perf_counter() - begun, time.process_time() - used
        pipe.send([1e3 * seconds / num_calls for seconds in times])
    ring.close()


@contextlib.contextmanager
def ranks(hosts: Sequence[int], namespaces: Sequence[str]) -> Iterator[Measure]:
    """Start ranks of sparkdl on some hosts; yield what measures a block of calls."""
    pipes, processes = [], []
    try:
        for rank, host in enumerate(hosts):
            own, theirs = multiprocessing.Pipe()
            namespace = namespaces[host] if namespaces else ""
            process = multiprocessing.Process(target=run_rank, args=(rank, theirs, host, namespace))
            process.start()
            pipes.append(own)
            processes.append(process)
        endpoints, secret = [pipe.recv() for pipe in pipes], secrets.token_bytes(32)
        for pipe in pipes:
            pipe.send((endpoints, secret))

        def measure(*message: Any) -> tuple[float, float]:
            for pipe in pipes:
                pipe.send(message)
            (ms, cpu_ms), *_ = [pipe.recv() for pipe in pipes]
            return ms, cpu_ms

        yield measure
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            process.kill()


@contextlib.contextmanager
def gloo_ranks(python: str, hosts: Sequence[int], namespaces: Sequence[str]) -> Iterator[Measure]:
    """Start ranks of gloo on some hosts; yield what measures a block of calls.

    Args:
        python: the Python of an environment with PyTorch.
        hosts, namespaces: see `ranks`.
    """
    address, interface = (address_of(0), "e0") if namespaces else ("127.0.0.1", "lo")
    url = f"tcp://{address}:{random.randrange(20_000, 30_000)}"
    with contextlib.ExitStack() as stack:
        processes = []
        for rank, host in enumerate(hosts):
            inside = ["ip", "netns", "exec", namespaces[host]] if namespaces else []
            command = [*inside, python, GLOO, str(rank), str(len(hosts)), url]
            process = subprocess.Popen(
                command,
                env={**os.environ, "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout and process.stdout.readline() == "ready\n", "gloo has not started"

        def measure(kind: str, num_bytes: int, num_calls: int) -> tuple[float, float]:
            for process in processes:
                assert process.stdin
                print(num_bytes, num_calls, file=process.stdin, flush=True)
            lines = [process.stdout.readline() for process in processes if process.stdout]
            ms, cpu_ms = map(float, lines[0].split())
            return ms, cpu_ms

        yield measure


def measure_bytes(kinds: dict[str, Measure], num_bytes: int, size: int, options: Any) -> Row:
    """Return the milliseconds of a call of each kind, and the CPU milliseconds of rank 0."""
    num_calls = int(max(2, min(options.calls, BUDGET_BYTES / (num_bytes + 50_000) / size)))
    found = Row(bytes=num_bytes)
    for number in range(options.blocks):
        for kind in list(kinds)[:: 1 if number % 2 else -1]:
            ms, cpu_ms = kinds[kind](kind, num_bytes, num_calls)
            if number:  # The first block warms up.
                found[kind] = min(found.get(kind, ms), ms)
                found[f"{kind}_cpu"] = min(found.get(f"{kind}_cpu", cpu_ms), cpu_ms)
    return found


def measure_ranks(count: int, namespaces: list[str], options: Any) -> Iterator[Row]:
    """Yield the results of some ranks, spread over the hosts in order."""
    hosts = [rank * max(1, len(namespaces)) // count for rank in range(count)]
    num_hosts = len(set(hosts))
    with contextlib.ExitStack() as stack:
        measure = stack.enter_context(ranks(hosts, namespaces))
        kinds = {"ring": measure}
        if ring_calls.longest_in_rounds([str(host) for host in hosts]):
            kinds["rounds"] = measure
        if options.torch_python:
            started = gloo_ranks(options.torch_python, hosts, namespaces)
            kinds["gloo"] = stack.enter_context(started)
        for num_bytes in options.bytes:
            row = measure_bytes(kinds, num_bytes, count, options)
            if options.rate_mbit and num_hosts > 1:
                bits = 8 * num_bytes * 2 * (num_hosts - 1) / num_hosts
                row["least"] = bits / options.rate_mbit / 1e3
            yield {"ranks": count, "hosts": num_hosts, **row}


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    numbers = {"type": lambda text: int(float(text)), "nargs": "+"}
    parser.add_argument("--ranks", default=[2, 4, 8, 16, 32], **numbers)
    parser.add_argument("--bytes", default=[24_000, 1_000_000, 100_000_000], **numbers)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--rate-mbit", type=float, default=0.0)
    parser.add_argument("--calls", type=int, default=50, help="in a block, at most")
    parser.add_argument("--blocks", type=int, default=6, help="of calls; the first warms up")
    parser.add_argument("--all-in-rounds", action="store_true", help="long arrays too")
    parser.add_argument("--torch-python", help="Python of an environment with PyTorch, for gloo")
    options = parser.parse_args()
    rows, about = [], machine()
    if options.all_in_rounds:
        ring_calls.longest_in_rounds = lambda nodes: 1 << 40
    # After SIGTERM, such as that of timeout(1), the results so far are printed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with contextlib.ExitStack() as stack:
            namespaces: list[str] = []
            if options.delay_ms or options.rate_mbit:
                hosts = slow_hosts(options.hosts, options.delay_ms / 1e3, options.rate_mbit)
                namespaces = stack.enter_context(hosts)
            for count in options.ranks:
                for row in measure_ranks(count, namespaces, options):
                    row["ratio"] = round(row.get("rounds", row["ring"]) / row["ring"], 3)
                    row["load"] = round(os.getloadavg()[0], 1)
                    rows.append(row)
                    values = [f"{name} {value:.4g}" for name, value in row.items()]
                    print(", ".join(values), file=sys.stderr)
    finally:
        print(json.dumps({"machine": about, **vars(options), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
