"""A real broker of Kafka, and Spark's source for Kafka."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clusters.scripts import fetched
from tests.clusters.standalone import REPOSITORY
from tests.helpers.processes import eventually

__all__ = ["consumed", "create_topic", "kafka_broker", "records_of", "spark_jars"]

SCRIPT = REPOSITORY / "scripts" / "kafka.sh"
READY_S = 60.0


def _folders() -> list[str]:
    """The folders of the jars; the test is skipped where they cannot be had."""
    return fetched("kafka.sh")


def spark_jars() -> str:
    """Return the jars of Spark's source for Kafka, for `spark.jars`."""
    return ",".join(map(str, sorted(Path(_folders()[1]).glob("*.jar"))))


def _free_ports(host: str) -> int:
    """Return a free port of a host's address, whose next one is free on loopback."""
    for _ in range(100):
        with socket.socket() as one, socket.socket() as two:
            one.bind((host, 0))
            port: int = one.getsockname()[1]
            with contextlib.suppress(OSError):
                two.bind(("127.0.0.1", port + 1))
                return port
    raise AssertionError("there are no two free ports in a row")


@contextlib.contextmanager
def kafka_broker(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Yield the address of a broker whose data is below a folder.

    Args:
        folder: the folder.
        host: the address of this machine at which clients find the broker.
    """
    _folders()
    port = _free_ports(host)
    log = folder / "broker.log"
    with log.open("wb") as output:
        broker = subprocess.Popen(
            [str(SCRIPT), "--start", str(folder / "data"), str(port), host],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        eventually(
            lambda: broker.poll() is not None or "Kafka Server started" in log.read_text(), READY_S
        )
        assert "Kafka Server started" in log.read_text(), log.read_text()[-5000:]
        yield f"{host}:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(broker.pid, signal.SIGKILL)
        broker.wait(120)


def create_topic(
    address: str, name: str, num_partitions: int = 2, settings: dict[str, str] | None = None
) -> str:
    """Create a topic; return its URL."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    client = AdminClient({"bootstrap.servers": address})
    for future in client.create_topics(
        [NewTopic(name, num_partitions, 1, config=settings or {})]
    ).values():
        future.result(30)
    return f"kafka://{address}/{name}"


def consumed(address: str, name: str, num: int) -> list[tuple[str, bytes]]:
    """Return this number of records of a topic, each as its key and its value."""
    from confluent_kafka import Consumer

    settings: dict[str, Any] = {"bootstrap.servers": address, "group.id": f"tests-{name}"}
    client = Consumer({**settings, "auto.offset.reset": "earliest"})
    client.subscribe([name])
    found: list[tuple[str, bytes]] = []
    try:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            for message in client.consume(num, 1.0):
                assert message.error() is None
                found.append((message.key().decode(), message.value()))
            if len(found) >= num:
                break
        # There are no more.
        found += [(message.key().decode(), message.value()) for message in client.consume(1, 1.0)]
    finally:
        client.close()
    return found


def records_of(address: str, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the records that a topic has now, each as its key and its value of JSON.

    Those of transactions that have not ended well are left out.
    """
    from confluent_kafka import Consumer, TopicPartition

    client = Consumer({"bootstrap.servers": address, "group.id": f"all-{name}"})
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        for number in client.list_topics(name, 60).topics[name].partitions:
            first, end = client.get_watermark_offsets(TopicPartition(name, number), 60)
            partition = TopicPartition(name, number, first)
            client.assign([partition])
            deadline = time.monotonic() + 200
            while client.position([partition])[0].offset < end and first < end:
                assert time.monotonic() < deadline, f"{name} cannot be read to its end"
                for message in client.consume(500, 0.5):
                    assert message.error() is None, message.error()
                    found.append((message.key().decode(), json.loads(message.value())))
    finally:
        client.close()
    return found
