"""Requests that schemathesis makes from docs/serving-api.yaml: right ones, wrong ones, and noise.

`FUZZ_S` seconds are enough for a thousand requests; five minutes are a longer look at the server:
change the number.
"""

import base64
import json
import subprocess
from collections import Counter
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

FUZZ_S = 45
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    "response_schema_conformance",
)
# What TensorFlow Serving does not convert either, and what it answers while it is busy.
NO_FAULT = (501, 503)


@pytest.fixture(scope="module")
def program() -> str:
    """The program of schemathesis; the test is skipped where it cannot be installed."""
    (path,) = fetched("schemathesis.sh", 400)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = str(tmp_path_factory.mktemp("schemathesis") / "functions")
    save_functions(folder)
    with serving.start(folder, port=0, batching=True) as server:
        yield server


def test_requests_made_from_the_description_are_answered_as_it_says(
    program: str, server: Server, tmp_path: Path
) -> None:
    config = tmp_path / "schemathesis.toml"
    allowed = json.dumps(["2xx", "4xx", *NO_FAULT])
    config.write_text(f"[checks]\nnot_a_server_error.expected-statuses = {allowed}\n")
    command = [
        *(program, "--config-file", str(config), "--no-color", "run"),
        *(str(REPOSITORY / "docs" / "serving-api.yaml"), "--url", server.url),
        *("--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--mode", "all"),
        *("--continue-on-failure", "--max-time", str(FUZZ_S), "--request-timeout", "60"),
        *("--report", "ndjson", "--report-dir", str(tmp_path / "report")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    (report,) = (tmp_path / "report").iterdir()
    answers = list(answers_in(list(map(json.loads, report.read_text().splitlines()))))
    statuses = Counter(status for status, _ in answers)
    assert sum(n for status, n in statuses.items() if 400 <= status < 500) >= 200, statuses
    assert {status for status in statuses if status >= 500} <= {*NO_FAULT}, statuses
    assert statuses[200] > 0
    assert not any(b"Traceback" in body for _, body in answers)


def answers_in(value: Any) -> Iterator[tuple[int, bytes]]:
    """The status and the body of all answers in a report."""
    if isinstance(value, list):
        for item in value:
            yield from answers_in(item)
    elif isinstance(value, dict):
        if isinstance(status := value.get("status_code"), int):
            content = value.get("content") or {}
            yield status, base64.b64decode(content.get("$base64", ""))
        for item in value.values():
            yield from answers_in(item)
