"""Compare `allreduce` in rounds with the ring that it replaces, for short arrays and many ranks.

Both run on the same ranks in turns. With `--delay-ms` or `--rate-mbit`, the hosts are network
namespaces with that delay between them, or that rate, see `lib.slow_hosts`; otherwise all ranks
share one host. The result is the best
block of calls, since other load on the machine only adds time.

    python -m benchmarks.collectives --ranks 2 4 8 16 32 --bytes 24e3 1e6 100e6
    python -m benchmarks.collectives --ranks 8 64 --bytes 24e3 --hosts 8 --delay-ms 5

The program prints a line for each number of ranks and bytes, then one JSON document.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import secrets
import socket
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.lib.machine import machine
from benchmarks.lib.slow_hosts import address_of, enter, slow_hosts
from sparkdl.distribute import ring_calls
from sparkdl.distribute.handshake import join
from sparkdl.distribute.invitation import Endpoint, Invitation
from sparkdl.distribute.ring import Ring

BLOCKS = 6  # Of calls, in turns; the first warms up.
BUDGET_BYTES = 100_000_000  # That a block of calls reduces on all ranks, about.

Row = dict[str, Any]


def run_rank(
    rank: int, pipe: Connection, host: int, namespace: str, sizes: list[int], most: int
) -> None:
    """Join the ring of all ranks, and measure; rank 0 sends the results."""
    if namespace:
        enter(namespace)
    address = address_of(host) if namespace else "127.0.0.1"
    listener = socket.create_server((address, 0), backlog=128)
    pipe.send(Endpoint(address, listener.getsockname()[1], str(host)))
    endpoints, secret = pipe.recv()
    ring = join(Invitation(rank, endpoints, secret), listener)
    for _ in range(ring_calls.NUM_CALLS_BEFORE_STRIDES):
        ring.barrier()
    begun = time.perf_counter()
    ring.barrier()
    found = [{"open_ms": 1e3 * (time.perf_counter() - begun)}]
    found += [measure(ring, num_bytes, most) for num_bytes in sizes]
    pipe.send(found)
    pipe.recv()
    ring.close()


def measure(ring: Ring, num_bytes: int, most: int) -> Row:
    """Return the milliseconds of a call of each kind, and the CPU milliseconds of this rank.

    Args:
        ring: the ring.
        num_bytes: bytes of the array.
        most: the largest number of calls in a block.
    """
    array = np.ones(num_bytes // 4, np.float32)
    out = np.empty_like(array)
    num_calls = int(max(2, min(most, BUDGET_BYTES / (num_bytes + 50_000) / ring.size)))
    strides, found = ring._strides, Row(bytes=num_bytes)
    for number in range(BLOCKS):
        for kind in ("ring", "rounds") if number % 2 else ("rounds", "ring"):
            ring._strides = strides if kind == "rounds" else None
            ring.barrier()
            begun, used = time.perf_counter(), time.process_time()
            for _ in range(num_calls):
                ring.allreduce(array, "sum", out)
            ms = 1e3 * (time.perf_counter() - begun) / num_calls
            cpu_ms = 1e3 * (time.process_time() - used) / num_calls
            if number:
                found[kind] = min(found.get(kind, ms), ms)
                found[f"{kind}_cpu"] = min(found.get(f"{kind}_cpu", cpu_ms), cpu_ms)
    ring._strides = strides
    return found


def measure_ranks(count: int, namespaces: list[str], sizes: list[int], most: int) -> list[Row]:
    """Return the results of some ranks, spread over the hosts in order."""
    hosts = [rank * max(1, len(namespaces)) // count for rank in range(count)]
    pipes, processes = [], []
    for rank, host in enumerate(hosts):
        own, theirs = multiprocessing.Pipe()
        namespace = namespaces[host] if namespaces else ""
        process = multiprocessing.Process(
            target=run_rank, args=(rank, theirs, host, namespace, sizes, most)
        )
        process.start()
        pipes.append(own)
        processes.append(process)
    try:
        endpoints, secret = [pipe.recv() for pipe in pipes], secrets.token_bytes(32)
        for pipe in pipes:
            pipe.send((endpoints, secret))
        found = [pipe.recv() for pipe in pipes]
        opened, *rows = found[0]
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            process.kill()
    return [{"ranks": count, "hosts": len(set(hosts)), **opened, **row} for row in rows]


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
    parser.add_argument("--all-in-rounds", action="store_true", help="long arrays too")
    options = parser.parse_args()
    rows, about = [], machine()
    if options.all_in_rounds:
        ring_calls.longest_in_rounds = lambda nodes: 1 << 40
    with contextlib.ExitStack() as stack:
        namespaces: list[str] = []
        if options.delay_ms or options.rate_mbit:
            hosts = slow_hosts(options.hosts, options.delay_ms / 1e3, options.rate_mbit)
            namespaces = stack.enter_context(hosts)
        for count in options.ranks:
            for row in measure_ranks(count, namespaces, options.bytes, options.calls):
                row["ratio"] = round(row["rounds"] / row["ring"], 3)
                row["load"] = round(os.getloadavg()[0], 1)
                rows.append(row)
                values = [f"{name} {value:.4g}" for name, value in row.items()]
                print(", ".join(values), file=sys.stderr)
    print(json.dumps({"machine": about, **vars(options), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
