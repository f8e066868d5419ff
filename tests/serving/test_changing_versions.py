"""Versions that change under load: no request fails, and each is answered by one whole version."""

import gc
import http.client
import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sparkdl import serving
from sparkdl.serving import Server, model_set
from tests.helpers.processes import eventually
from tests.helpers.saved_models import write_saved_model
from tests.serving.functions import save_sum

pytestmark = pytest.mark.slow

NUM_VERSIONS = 51
BROKEN, OUTAGE = 20, 35


class Clients:
    """Clients that send requests until they are stopped, and note the versions that answer."""

    def __init__(self, server: Server, num_clients: int = 2) -> None:
        self.failed: list[Any] = []
        self.versions: Counter[int] = Counter()
        self._address = server.url.removeprefix("http://")
        self._is_ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(num_clients)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=240)
        tensor = {"name": "x", "shape": [3], "datatype": "FP32", "data": [0.0, 1.0, 2.0]}
        body = json.dumps({"inputs": [tensor]})
        while not self._is_ended.wait(0.003):
            try:
                connection.request("POST", "/v2/models/sum/infer", body)
                answer = connection.getresponse()
                content = json.loads(answer.read())
                version = int(content["model_version"])
                term = version % 2
                assert content["outputs"][0]["data"] == [term, 1 + term, 2 + term]
                self.versions[version] += 1
            except Exception as exc:
                self.failed.append(exc)
                return
        connection.close()


def test_fifty_changes_of_the_version_fail_no_request(
    tmp_path: Path, monkeypatch: Any, caplog: Any, request: Any
) -> None:
    """One is broken, and the store is away for as many looks as there are in ten seconds."""
    monkeypatch.setattr(model_set, "LOCAL_POLL_S", 0.02)
    # The server collects garbage after each change, which takes long in a process of many tests.
    gc.freeze()
    request.addfinalizer(gc.unfreeze)
    parts = [save_sum(tmp_path / str(term), float(term)) for term in (0, 1)]
    folder = tmp_path / "sum"
    folder.mkdir()

    def add(version: int, model: Path) -> None:
        shutil.copytree(model, tmp_path / "part").rename(folder / str(version))

    add(1, parts[1])
    with serving.start(str(folder), port=0, batching=True) as server, Clients(server) as clients:
        for version in range(2, NUM_VERSIONS + 1):
            if version == BROKEN:
                add(version, Path(write_saved_model(tmp_path / "broken")))
                assert eventually(lambda: "version 20 of the model sum is not" in caplog.text)
                continue
            if version == OUTAGE:
                hidden = folder.rename(tmp_path / "hidden")
                assert eventually(lambda: "(10 times in a row)" in caplog.text)
                before = clients.versions[OUTAGE - 1]
                assert eventually(lambda n=before: clients.versions[OUTAGE - 1] > n)
                hidden.rename(folder)
            add(version, parts[version % 2])
            assert eventually(lambda v=version: clients.versions[v] or clients.failed)
            assert not clients.failed
    assert not clients.failed
    assert sorted(clients.versions) == [v for v in range(1, NUM_VERSIONS + 1) if v != BROKEN]
