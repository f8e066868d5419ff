"""Other model servers for `serving.py`, which starts this program in an environment of its own.

    <python> peers/serving_peers.py litserve|mlflow MODEL.keras [WORKERS]

The program starts the server in a session of its own on a free port of 127.0.0.1 and writes JSON
lines: first the versions of its packages, then, for each line that it reads, the address of a
request. It ends the server when its standard input is closed.

LitServe's server is `serving_litserve.py`. MLflow's scoring server loads a model of
`mlflow.tensorflow`.
"""

import argparse
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from lib.peer import own_stdout

START_S = 180
# The path of a health check, and that of a request.
PATHS = {"litserve": ("/health", "/predict"), "mlflow": ("/ping", "/invocations")}


def command(kind: str, path: str, folder: str, port: int, workers: int) -> list[str]:
    """Return the command that starts a server."""
    if kind == "litserve":
        program = Path(__file__).with_name("serving_litserve.py")
        return [sys.executable, str(program), path, str(port), str(workers)]
    import keras
    import mlflow.tensorflow

    mlflow.tensorflow.save_model(keras.saving.load_model(path), f"{folder}/model")
    options = ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]
    options += ["--workers", str(workers)]
    return [sys.executable, "-m", "mlflow", "models", "serve", "-m", f"{folder}/model", *options]


def wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None:
                break
            time.sleep(0.2)
    raise RuntimeError(f"the server at {url} does not answer:\n{log.read_text()[-3000:]}")


def main() -> None:
    """Start a server, tell its address, and end it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=PATHS)
    parser.add_argument("path")
    parser.add_argument("workers", nargs="?", type=int, default=1)
    arguments = parser.parse_args()
    pipe = own_stdout()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    health, request = (f"http://127.0.0.1:{port}{path}" for path in PATHS[arguments.kind])
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        # MLflow's console programs belong to this environment.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        words = command(arguments.kind, arguments.path, folder, port, arguments.workers)
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                words,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PATH": path},
            )
        try:
            wait_for(health, process, log)
            names = (arguments.kind, "tensorflow", "keras")
            versions = {name: importlib.metadata.version(name) for name in names}
            pipe.write(json.dumps(versions) + "\n")
            for _ in sys.stdin:
                pipe.write(json.dumps(request) + "\n")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    main()
