"""A Keras model in two workers, one of which is killed, and their log in a real Kafka."""

import collections
import http.client
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from sparkdl import models, serving
from tests.clusters.kafka import create_topic, kafka_broker, records_of
from tests.helpers.processes import eventually
from tests.serving.test_workers import ask, metric, workers_of

pytestmark = pytest.mark.slow


class Client:
    """A client with a ledger, which sends a request again until it is answered.

    Attributes:
        answers: the row and the answer of each request.
        failed: the requests that had no answer at first.
    """

    def __init__(self, url: str) -> None:
        self.answers: dict[str, tuple[list[float], float]] = {}
        self.failed: set[str] = set()
        self._url = url

    def ask(self, name: str) -> None:
        row = np.random.default_rng(len(self.answers)).normal(size=4).tolist()
        while True:
            try:
                path, body = "/v1/models/linear:predict", {"instances": [row]}
                status, answer = ask(self._url, path, body, **{"X-Request-Id": name})
                break
            except (OSError, http.client.HTTPException):
                self.failed.add(name)
        assert status == 200
        self.answers[name] = row, answer["predictions"][0][0]


def test_a_worker_that_is_killed_doubles_no_record_and_loses_none_that_was_written(
    tmp_path: Path,
) -> None:
    import keras

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    root = str(tmp_path / "root")
    models.export(model, "linear", root=root)
    with kafka_broker(tmp_path) as address:
        url = create_topic(address, "log", 2)
        with serving.start("linear", root=root, port=0, workers=2, log=url) as server:
            client = Client(server.url)
            for number in range(40):
                client.ask(f"before-{number}")
            assert eventually(lambda: len(records_of(address, "log")) == 40)

            is_over = threading.Event()

            def go_on() -> None:
                number = 0
                while not is_over.is_set():
                    client.ask(f"meanwhile-{number}")
                    number += 1

            thread = threading.Thread(target=go_on, daemon=True)
            thread.start()
            assert eventually(lambda: "meanwhile-20" in client.answers)
            killed = workers_of()[0]
            os.kill(killed, signal.SIGKILL)
            assert eventually(lambda: len({*workers_of()} - {killed}) == 2)
            assert eventually(lambda: metric(ask(server, "/metrics")[1], "version_loaded") == 2)
            is_over.set()
            thread.join()
            for number in range(40):
                client.ask(f"after-{number}")
        counts = collections.Counter(key for key, _ in records_of(address, "log"))
    # What was answered just before the kill may be missing.
    for name in client.answers:
        if not name.startswith("meanwhile"):
            assert counts[name] == 1
    assert set(counts) <= set(client.answers)
    assert all(number == 1 for name, number in counts.items() if name not in client.failed)
    rows = np.array([row for row, _ in client.answers.values()], "float32")
    found = [answer for _, answer in client.answers.values()]
    np.testing.assert_allclose(found, model.predict(rows, verbose=0)[:, 0], rtol=1e-4, atol=1e-5)
