"""The model server, asked by Triton's and KServe's own clients, each in a process of its own."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl import serving
from sparkdl.serving import Server
from tests.clusters.scripts import fetched
from tests.clusters.standalone import REPOSITORY
from tests.serving.functions import save_functions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = REPOSITORY / "tests" / "clusters" / "programs" / "serving_clients.py"


@pytest.fixture(scope="module")
def python() -> str:
    """The Python that has the clients; the tests are skipped where they cannot be installed."""
    (path,) = fetched("serving_clients.sh", 800)
    return path


@pytest.fixture(scope="module", params=[True, False], ids=["batched", "alone"])
def server(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = str(tmp_path_factory.mktemp("clients") / "functions")
    save_functions(folder)
    with serving.start(folder, port=0, grpc_port=0, batching=request.param) as server:
        yield server


def ask(python: str, kind: str, server: Server, tmp_path: Path) -> Any:
    address = server.grpc_address if kind.endswith("-grpc") else server.url.removeprefix("http://")
    command = [python, str(PROGRAM), kind, str(address)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_client_of_triton_gets_right_answers(
    python: str, server: Server, tmp_path: Path
) -> None:
    assert ask(python, "triton", server, tmp_path) == {
        "live": True,
        "ready": True,
        "model_ready": True,
        "other_ready": False,
        "extensions": ["binary_tensor_data", "model_repository"],
        "inputs": [
            {"name": "tag", "datatype": "BYTES", "shape": [-1]},
            {"name": "x", "datatype": "FP32", "shape": [-1]},
        ],
        "id": "order-17",
        "outputs": ["x", "text"],
        "x": [2.0, -5.0],
        "text": ["a!", "\xff!"],
        "whole": [2.0, -5.0],
        "picky": [2, 3, 4],
        "at_once": [[2.0, -5.0]] * 16,
        "error": "404 Servable not found for request: Latest(none)",
    }


def test_the_client_of_triton_for_grpc_gets_right_answers(
    python: str, server: Server, tmp_path: Path
) -> None:
    assert ask(python, "triton-grpc", server, tmp_path) == {
        "live": True,
        "ready": True,
        "model_ready": True,
        "extensions": ["binary_tensor_data", "model_repository"],
        "platform": "tensorflow_savedmodel",
        "inputs": [
            {"name": "tag", "datatype": "BYTES", "shape": ["-1"]},
            {"name": "x", "datatype": "FP32", "shape": ["-1"]},
        ],
        "index": {"name": "functions", "version": "1", "state": "READY"},
        "id": "order-17",
        "outputs": ["x", "text"],
        "x": [2.0, -5.0],
        "text": ["a!", "\xff!"],
        "whole": [2.0, -5.0],
        "picky": [2, 3, 4],
        "errors": ["NOT_FOUND", "UNIMPLEMENTED", "UNIMPLEMENTED"],
    }


def test_the_client_of_kserve_for_grpc_gets_right_answers(
    python: str, server: Server, tmp_path: Path
) -> None:
    assert ask(python, "kserve-grpc", server, tmp_path) == {
        "live": True,
        "ready": True,
        "model_ready": True,
        "id": "order-18",
        "x": [2.0, -5.0],
        "text": ["a!", "b!"],
        "binary": [2.0, -5.0],
        "error": "NOT_FOUND",
    }


def test_the_client_of_kserve_gets_right_answers_in_both_protocols(
    python: str, server: Server, tmp_path: Path
) -> None:
    assert ask(python, "kserve", server, tmp_path) == {
        "live": True,
        "ready": True,
        "model_ready": True,
        "other_ready": False,
        "id": "order-18",
        "x": [2.0, -5.0],
        "text": ["a!", "b!"],
        "binary": [2.0, -5.0],
        "predictions": [
            {"raw_bytes": {"b64": "YQ=="}, "text": "a!", "x": 2.0},
            {"raw_bytes": {"b64": "Yg=="}, "text": "b!", "x": -5.0},
        ],
        "error": "404",
    }
