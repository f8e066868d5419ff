"""An S3 server that all hosts of a cluster reach."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.clusters.hosts import Network
from tests.helpers.processes import eventually

__all__ = ["s3_bucket"]

PROGRAM = Path(__file__).parents[1] / "helpers" / "s3_server.py"


@contextlib.contextmanager
def s3_bucket(net: Network) -> Iterator[dict[str, str]]:
    """Serve `s3://bucket` at the machine's address on the bridge; yield variables for clients."""
    with socket.socket() as free:
        free.bind((net.address, 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(PROGRAM), "-H", net.address, "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((net.address, port)) == 0

    try:
        assert eventually(answers)
        env = {
            "AWS_ENDPOINT_URL": f"http://{net.address}:{port}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        make = "import s3fs; s3fs.S3FileSystem().mkdir('bucket')"
        subprocess.run([sys.executable, "-c", make], env={**os.environ, **env}, check=True)
        yield env
    finally:
        server.terminate()
        server.wait()
