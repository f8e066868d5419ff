"""The circle of train_and_serve.py on a cluster: runs and models on a store, requests in Kafka.

The steps are those of train_and_serve.py. Here, three programs go on at the same time, each of
which may be killed at any moment, and is then started again in the same way:

    P="examples/circle_on_cluster.py --store s3://bucket/bikes --brokers kafka:9092"
    python $P topics                        # once
    python $P serve --host 10.0.0.5 --token-file token
    python $P answer --url http://10.0.0.5:8501 --token-file token
    spark-submit --master spark://head:7077 --packages \\
        org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 $P circle --folder /shared/bikes

`circle` trains and rolls out a first version, waits for an alarm, trains again and rolls out. What
was done is found on the store, and is not done again. `python $P world --season winter` stands for
the world: it sends hours to forecast, and what was rented in them.
"""

import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from train_and_serve import (
    FEATURES,
    LABEL,
    NAME,
    NOTHING_TO_DO,
    SHARE,
    STEPS,
    Place,
    aliased,
    hours,
    session,
    tell,
)

from sparkdl import models, serving

# The topics: rows to forecast, forecasts, the log of the server, true numbers, and alarms.
TOPICS = ["hours", "forecasts", "requests", "numbers", "alarms"]
# Rows of a request, and requests that are answered in one transaction.
ROWS, REQUESTS = 50, 10


@dataclass(frozen=True)
class ClusterPlace(Place):
    """A store for runs, models and rows, and topics of Kafka for all that moves.

    `folder` is one that the driver and the executors can write to, for Spark's checkpoints.
    """

    store: str
    brokers: str
    window_s: float
    late_s: float

    @property
    def root(self) -> str:
        """The folder of runs, models and the results of monitoring."""
        return f"{self.store}/runs"

    @property
    def log(self) -> str:
        """The topic to which the model server writes a record of each request."""
        return self.url("requests")

    def topic(self, name: str) -> str:
        """Return the name of a topic."""
        return f"{NAME}-{name}"

    def url(self, name: str) -> str:
        """Return the URL of a topic."""
        return f"kafka://{self.brokers}/{self.topic(name)}"

    def data(self, round_name: str, part: str) -> str:
        """Return the folder of the rows of a round: `train`, `validation` or `recent`."""
        return f"{self.store}/data/{round_name}/{part}"

    def has(self, rows: str) -> bool:
        """Return True if a folder of rows was written to its end."""
        return exists(f"{rows}/_SUCCESS")

    def write(self, rows: DataFrame, folder: str) -> None:
        """Write a folder of rows from the driver: not all Sparks have the library of the store."""
        rows.toPandas().to_parquet(f"{folder}/part-0.parquet")
        mark(f"{folder}/_SUCCESS")

    def read(self, rows: str) -> DataFrame:
        """Return a folder of rows."""
        return session().createDataFrame(pd.read_parquet(rows))

    def known_numbers(self) -> DataFrame | None:
        """Return the true numbers so far, by request and row; None before there is any."""
        source = session().read.format("kafka").option("kafka.bootstrap.servers", self.brokers)
        records = source.option("subscribe", self.topic("numbers")).load()
        numbers = records.select(F.from_json(F.col("value").cast("string"), LABEL).alias("label"))
        return None if numbers.isEmpty() else numbers.select("label.*")

    def is_logged(self) -> bool:
        """Return True if there is a log of the model server: the topic is always there."""
        return True

    def watch_options(self, version: models.ModelVersion) -> dict[str, Any]:
        """Return the options of `monitoring.watch` that depend on the place."""
        return {
            "window_s": self.window_s,
            "late_s": self.late_s,
            "alerts": [tell, self.url("alarms")],
            "checkpoint": str(self.folder / "watch" / str(version.version)),
        }


def exists(url: str) -> bool:
    """Return True if a file is on the store."""
    files, path = fsspec.url_to_fs(url, use_listings_cache=False)
    return bool(files.exists(path))


def mark(url: str) -> None:
    """Create a file on the store that says that something is done."""
    with fsspec.open(url, "w") as file:
        file.write(NAME)


def topics(place: ClusterPlace) -> str:
    """Create the topics that are not there. The log has one partition, which is in order."""
    client = AdminClient({"bootstrap.servers": place.brokers})
    wanted = [NewTopic(place.topic(name), 1) for name in TOPICS]
    number = 0
    for future in client.create_topics(wanted).values():
        try:
            future.result(30)
            number += 1
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return f"{number} topics were created"


# ---- the model server


def serve(place: ClusterPlace, host: str, port: int, token: str, workers: int) -> None:
    """Serve the model, from the moment on at which the first version is rolled out."""
    while "canary" not in aliased(place):
        time.sleep(1)
    weights = {"canary": SHARE}
    with serving.start(
        NAME,
        alias="stable",
        weights=weights,
        host=host,
        port=port,
        token=token,
        workers=workers,
        log=place.log,
        root=place.root,
    ) as server:
        print(server, flush=True)
        server.wait()


# ---- the forecasts: each record of hours in Kafka is a request, and its answer a record


def answer(place: ClusterPlace, url: str, token: str) -> None:
    """Ask the model server for the forecasts of all hours in Kafka, while they come.

    The forecasts and the place up to which the hours were read are one transaction. After a kill,
    hours without a forecast are read again, and none has two.
    """
    settings = {"bootstrap.servers": place.brokers}
    # It ends the transaction of a process that was killed.
    producer = Producer({**settings, "transactional.id": f"{NAME}-answer"})
    producer.init_transactions()
    reading = {"group.id": f"{NAME}-answer", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, **reading, "enable.auto.commit": False})
    # This is the only process of the group: it does not wait until the group has forgotten another.
    consumer.assign(next_places(consumer, place.topic("hours")))
    while True:
        records = [record for record in consumer.consume(REQUESTS, 0.5) if is_record(record)]
        forecasts = [(r.key(), forecast(url, token, json.loads(r.value()))) for r in records]
        if not forecasts:
            continue
        producer.begin_transaction()
        for key, text in forecasts:
            producer.produce(place.topic("forecasts"), text, key)
        read = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(read, consumer.consumer_group_metadata())
        producer.commit_transaction()


def next_places(consumer: Any, name: str) -> list[Any]:
    """Return the place in each partition of a topic up to which the group has read it.

    A client that is assigned partitions without places may begin at the start after an error.
    """
    deadline = time.monotonic() + 60
    numbers = consumer.list_topics(name, 30).topics[name].partitions
    while True:
        try:
            places = consumer.committed([TopicPartition(name, number) for number in numbers], 30)
            if errors := [place.error for place in places if place.error]:
                raise KafkaException(errors[0])
            break
        except KafkaException:  # The coordinator of the group starts, or moves to another broker.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    for place in places:
        place.offset = OFFSET_BEGINNING if place.offset < 0 else place.offset
    return places


def is_record(record: Any) -> bool:
    """Return True for a record; print an error that the client recovers from by itself."""
    if record.error() is None:
        return True
    if record.error().fatal():
        raise KafkaException(record.error())
    print(record.error(), file=sys.stderr, flush=True)
    return False


def forecast(url: str, token: str, request: dict[str, Any]) -> str:
    """Return the forecasts for a record of hours, and the version that has made them, as JSON."""
    columns = {name: [row[name] for row in request["rows"]] for name in FEATURES}
    inputs = [
        {"name": name, "shape": [len(values)], "datatype": "FP32", "data": values}
        for name, values in columns.items()
    ]
    body = json.dumps({"id": request["id"], "inputs": inputs}).encode()
    headers = {"X-Request-Id": request["id"], "Authorization": f"Bearer {token}"}
    asked = urllib.request.Request(f"{url}/v2/models/{NAME}/infer", body, headers)
    while True:
        try:
            with urllib.request.urlopen(asked, timeout=60) as response:
                found = json.load(response)
            break
        except urllib.error.HTTPError as exc:
            if exc.code != http.client.SERVICE_UNAVAILABLE:
                raise
        except (OSError, http.client.HTTPException):
            pass  # The server was killed, or is not there yet.
        time.sleep(0.5)
    values = found["outputs"][0]["data"]
    return json.dumps({"id": request["id"], "version": found["model_version"], "bikes": values})


def world(place: ClusterPlace, season: str, number: int) -> str:
    """Send hours of a season, and what was rented in them, which the world knows later."""
    producer = Producer({"bootstrap.servers": place.brokers})
    for _ in range(number):
        request, table = uuid.uuid4().hex, hours(season, ROWS)
        rows = json.dumps({"id": request, "rows": table[FEATURES].to_dict(orient="records")})
        producer.produce(place.topic("hours"), rows, request)
        for row, bikes in enumerate(table["bikes"].tolist()):
            label = json.dumps({"id": request, "row": row, "bikes": bikes})
            producer.produce(place.topic("numbers"), label, request)
        producer.poll(0)
    producer.flush()
    return f"{number * ROWS} hours of {season}"


# ---- the circle


def circle(place: ClusterPlace, num_rounds: int) -> None:
    """Go round: train, roll out, wait for drift, train again, roll out."""
    session().sparkContext.setLogLevel("ERROR")
    for number in map(str, range(1, num_rounds + 1)):
        done = f"{place.store}/data/{number}/done"
        if exists(done):
            continue
        # A round has begun with its last folder of rows; then its drift is acknowledged.
        if number != "1" and not place.has(place.data(number, "train")):
            wait_for(place, number, "monitor")
        names = ("prepare", "search", "train", "export", "canary")
        # A model that is not better is not rolled out.
        if all(do(place, number, name) for name in names):
            wait_for(place, number, "decide")
        mark(done)


def do(place: ClusterPlace, number: str, name: str) -> str | None:
    """Do a step, and print what came out of it."""
    result = STEPS[name](place, number)
    print(f"round {number}, {name}: {result or 'nothing to do'}", flush=True)
    return result


def wait_for(place: ClusterPlace, number: str, name: str) -> None:
    """Do a step until it has a result."""
    while not do(place, number, name):
        time.sleep(place.window_s / 4)


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    others = ["circle", "topics", "serve", "answer", "world"]
    parser.add_argument("step", choices=[*others, *STEPS], help="default: circle", nargs="?")
    parser.add_argument("--store", required=True, help="URL of a folder, such as s3://bucket/bikes")
    parser.add_argument("--brokers", required=True, help="host:port of Kafka")
    parser.add_argument("--folder", type=Path, default=Path("."), help="for Spark's checkpoints")
    parser.add_argument("--window-s", type=float, default=3600, help="default: %(default)s")
    parser.add_argument("--late-s", type=float, default=60, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="of circle; default: %(default)s")
    parser.add_argument("--round", default="1", help="of one step; default: %(default)s")
    parser.add_argument("--host", default="127.0.0.1", help="of the server; default: %(default)s")
    parser.add_argument("--port", type=int, default=8501, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=1, help="of the server")
    parser.add_argument("--url", default="http://127.0.0.1:8501", help="the server to ask")
    parser.add_argument("--token-file", type=Path, help="the file of the server's secret")
    parser.add_argument("--season", default="summer", choices=["summer", "winter"])
    parser.add_argument("--number", type=int, default=10, help=f"requests of {ROWS} hours to send")
    args = parser.parse_args()
    place = ClusterPlace(
        args.folder.resolve(), args.store, args.brokers, args.window_s, args.late_s
    )
    token = args.token_file.read_text().strip() if args.token_file else None
    calls: dict[str, Callable[[], Any]] = {
        "circle": lambda: circle(place, args.rounds),
        "topics": lambda: topics(place),
        "serve": lambda: serve(place, args.host, args.port, token, args.workers),
        "answer": lambda: answer(place, args.url, token),
        "world": lambda: world(place, args.season, args.number),
    }
    if args.step in STEPS:
        return 0 if do(place, args.round, args.step) else NOTHING_TO_DO
    print(calls[args.step or "circle"]() or "done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
