"""Runs anywhere. Places that take the records of the inference log: files, and topics of Kafka."""

import itertools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from sparkdl.files import storage
from sparkdl.serving.json_tensors import to_json
from sparkdl.serving.kafka_topic import KafkaTopic, Sender

# A record of the inference log, as a value for JSON.
Record = dict[str, Any]

LOCAL_PAUSE_S = 1.0
REMOTE_PAUSE_S = 30.0


class LogSink(ABC):
    """A place that takes records. One thread calls its methods, one after the other.

    Where several processes of a server answer, each of them has a copy, made by pickle.

    Attributes:
        pause_s: seconds between two calls of `write`, which gather records.
        num_left_out: the number of records that the place can never take.
    """

    pause_s: float = 1.0
    num_left_out: int = 0

    @abstractmethod
    def write(self, records: Sequence[Record]) -> None:
        """Write records.

        Args:
            records: the records in their order, at least one. If a call fails, the next one has the
                same records.

        Raises:
            OSError: if the place does not take records now; they are kept.
        """

    def close(self) -> None:  # noqa: B027 Most places hold nothing.
        """Release what the place holds; no more records come."""


class JsonLinesSink(LogSink):
    """Files of JSON lines, in one folder for each hour: `<url>/date=2026-11-23/hour=10/*.jsonl`.

    Spark reads date and hour as columns. A server has files of its own; where a store cannot
    append to a file, each write has a file.

    Args:
        url: the folder: a path or an fsspec URL.
    """

    def __init__(self, url: str) -> None:
        self._url = storage.absolute(url)
        self._writer = uuid.uuid4().hex[:12]
        self._appends = storage.is_local(self._url) or storage.appends(self._url)
        self._numbers = itertools.count(1)
        self._number = next(self._numbers)
        # The hours of a write that failed and that are on the store already.
        self._written: set[str] = set()
        self.pause_s = LOCAL_PAUSE_S if self._appends else REMOTE_PAUSE_S

    def __reduce__(self) -> tuple[type["JsonLinesSink"], tuple[str]]:
        # The files of a copy are its own.
        return type(self), (self._url,)

    def write(self, records: Sequence[Record]) -> None:
        """Write records, see `LogSink`."""
        hours: dict[str, list[bytes]] = {}
        for record in records:
            hours.setdefault(_hour(record["time"]), []).append(to_json(record) + b"\n")
        for hour, lines in hours.items():
            if hour in self._written:
                continue
            if self._appends:
                storage.append(self._file(hour, 1), b"".join(lines))
            else:
                storage.write(self._file(hour, self._number), b"".join(lines))
            self._written.add(hour)
        self._written.clear()
        self._number = next(self._numbers)

    def _file(self, hour: str, number: int) -> str:
        return storage.join(self._url, hour, f"{self._writer}-{number}.jsonl")


def _hour(time_ms: int) -> str:
    """Return the folder of a time, in UTC.

    Example:
        >>> _hour(0)
        'date=1970-01-01/hour=00'
    """
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).strftime("date=%Y-%m-%d/hour=%H")


class KafkaSink(LogSink):
    """Records of a topic of Kafka: the key is the id of the request, the value is JSON.

    The producer is idempotent: a record that is sent again, as an answer of a broker was lost, is
    in the topic once.

    Args:
        url: `kafka://host:9092/topic`, with further brokers after commas.
        settings: further settings of librdkafka's producer, such as
            `{"security.protocol": "SASL_SSL", "sasl.password": ...}`.

    Attributes:
        num_left_out: the number of records that were left out, as they are larger than the producer
            or the broker allows: a million bytes, if neither has another limit.

    Raises:
        ConfigError: if the URL or a setting is wrong, or the package is not installed.

    Example:
        >>> from sparkdl import serving
        >>> serving.KafkaSink("kafka://localhost")
        Traceback (most recent call last):
        sparkdl.errors.ConfigError: 'kafka://localhost' is no topic of Kafka; expected ...
    """

    pause_s = 0.2

    def __init__(self, url: str, settings: Mapping[str, Any] | None = None) -> None:
        self._arguments = (url, settings)
        self._sender = Sender(KafkaTopic.of(url), settings)

    def __reduce__(self) -> tuple[type["KafkaSink"], tuple[str, Mapping[str, Any] | None]]:
        # A copy has a producer of its own.
        return type(self), self._arguments

    def write(self, records: Sequence[Record]) -> None:
        """Write records, see `LogSink`."""
        pairs = [(str(record.get("id", "")), to_json(record)) for record in records]
        self.num_left_out += self._sender.send(pairs)

    def close(self) -> None:
        """Wait for what has not been sent."""
        self._sender.close()
