"""Measure what encryption or authentication of each block would cost the ring's TCP connections.

Two processes on one host move blocks of 1 MiB through a TCP connection on loopback, as neighbours
in the ring do, in three ways, which take turns in several rounds:

- plain: as the ring does, after its authenticated handshake
- TLS 1.3: the `ssl` module of Python, with its first choice of cipher
- HMAC: plain, and an HMAC-SHA256 of each block, which the receiver checks

The result is the best round of each way. `openssl` makes the certificate.

    python benchmarks/ring_security.py --megabytes 2048 --rounds 3

The program prints a table, then one JSON document.
"""

import argparse
import hashlib
import hmac
import json
import os
import secrets
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lib.machine import machine

BLOCK = 1 << 20
PROOF = hashlib.sha256().digest_size
KEY = secrets.token_bytes(32)


def receive(connection: socket.socket, view: memoryview) -> None:
    """Fill a buffer."""
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the sender has ended")
        view = view[count:]


def send_blocks(connection: socket.socket, count: int, has_proof: bool) -> None:
    """Send blocks, and wait until the receiver has them."""
    block = secrets.token_bytes(BLOCK)
    for _ in range(count):
        connection.sendall(block)
        if has_proof:
            connection.sendall(hmac.digest(KEY, block, "sha256"))
    receive(connection, memoryview(bytearray(1)))


def receive_blocks(connection: socket.socket, count: int, has_proof: bool) -> None:
    """Receive blocks, and say so at the end."""
    block, proof = bytearray(BLOCK), bytearray(PROOF)
    for _ in range(count):
        receive(connection, memoryview(block))
        if has_proof:
            receive(connection, memoryview(proof))
            if not hmac.compare_digest(proof, hmac.digest(KEY, block, "sha256")):
                raise ConnectionError("a block has another content")
    connection.sendall(b"y")


def certificate(folder: Path) -> tuple[str, str]:
    """Make a certificate and its key."""
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=ring"
    command = ["openssl", *make.split(), "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def tls(connection: socket.socket, files: tuple[str, str], is_server: bool) -> socket.socket:
    """Encrypt a connection by TLS 1.3."""
    side = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
    settings = ssl.SSLContext(side)
    settings.minimum_version = ssl.TLSVersion.TLSv1_3
    if is_server:
        settings.load_cert_chain(*files)
    else:
        settings.check_hostname = False
        settings.load_verify_locations(files[0])
    return settings.wrap_socket(connection, server_side=is_server)


def seconds(count: int, way: str, files: tuple[str, str]) -> float:
    """Return the time in which blocks are moved to another process."""
    has_proof = way == "HMAC"
    wrap: Callable[[socket.socket, bool], socket.socket] = (
        (lambda sock, is_server: tls(sock, files, is_server))
        if way == "TLS 1.3"
        else (lambda sock, is_server: sock)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pid = os.fork()
        if not pid:
            with wrap(listener.accept()[0], True) as connection:
                receive_blocks(connection, count, has_proof)
            os._exit(0)
        with wrap(socket.create_connection(listener.getsockname()), False) as connection:
            begun = time.perf_counter()
            send_blocks(connection, count, has_proof)
            took = time.perf_counter() - begun
    _, status = os.waitpid(pid, 0)
    if status:
        raise ConnectionError(f"the receiver has ended with status {status}")
    return took


def main() -> None:
    """Measure the three ways in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=2048, help="MiB of each round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = certificate(Path(folder))
        for _ in range(arguments.rounds):
            for way in ("plain", "TLS 1.3", "HMAC"):
                rate = arguments.megabytes * BLOCK / seconds(arguments.megabytes, way, files) / 1e9
                best[way] = max(best.get(way, 0.0), rate)
    for way, rate in best.items():
        print(f"{way:8} {rate:6.2f} GB/s  {best['plain'] / rate:5.2f} times the time of plain")
    print(json.dumps({"gb_per_s": best, "machine": machine()}))


if __name__ == "__main__":
    main()
