"""Runs anywhere. A topic of Kafka: its address, and records that are sent to it once."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sparkdl.errors import ConfigError
from sparkdl.host.optional_packages import require

SCHEME = "kafka://"
# Seconds after which a record that no broker has taken counts as not sent.
TIMEOUT_S = 20.0

_logger = logging.getLogger("sparkdl.serving")


@dataclass(frozen=True)
class KafkaTopic:
    """A topic of Kafka.

    Attributes:
        brokers: the addresses of brokers, separated by commas.
        name: the name of the topic.
    """

    brokers: str
    name: str

    @classmethod
    def of(cls, url: str) -> "KafkaTopic":
        """Return the topic that a URL names.

        Raises:
            ConfigError: if the URL has no broker, or no topic.

        Example:
            >>> KafkaTopic.of("kafka://one:9092,two:9092/requests")
            KafkaTopic(brokers='one:9092,two:9092', name='requests')
        """
        parts = urlsplit(url)
        name = parts.path.strip("/")
        if parts.scheme != "kafka" or not parts.netloc or not name or "/" in name:
            raise ConfigError(f"{url!r} is no topic of Kafka; expected 'kafka://host:9092/topic'.")
        return cls(parts.netloc, name)


class Sender:
    """Sends records to a topic, each once: the producer is idempotent.

    Args:
        topic: the topic.
        settings: further settings of librdkafka's producer, such as `security.protocol`.
        timeout_s: seconds after which a record that no broker has taken counts as not sent.

    Raises:
        ConfigError: if the client is not installed, or a setting is unknown.
    """

    def __init__(
        self,
        topic: KafkaTopic,
        settings: Mapping[str, Any] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._topic = topic
        # https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
        self._settings = {
            "compression.type": "lz4",
            "linger.ms": 5,
            "message.timeout.ms": int(timeout_s * 1000),
            **(settings or {}),
            "bootstrap.servers": topic.brokers,
            "enable.idempotence": True,
        }
        self._timeout_s = timeout_s
        self._producer = self._start()
        # The places of the records of a call that failed and that have been taken.
        self._taken: set[int] = set()
        # The places of records that are too large, and of those in a batch that is too large.
        self._too_large: set[int] = set()
        self._too_large_together: set[int] = set()

    def send(self, records: Sequence[tuple[str, bytes]]) -> int:
        """Send records, and wait until brokers have taken them.

        Args:
            records: a key and a value each. If a call fails, the next one has the same records;
                those that have been taken are not sent again.

        Returns:
            The number of records that were left out, as they are larger than the producer or the
            broker allows.

        Raises:
            OSError: if brokers have not taken all other records.
        """
        problems: list[Any] = []
        end = time.monotonic() + self._timeout_s
        for place, (key, value) in enumerate(records):
            if place not in self._taken and place not in self._too_large:
                self._produce(place, key, value, problems, end)
        # Each record has its report after the time limit of the producer.
        self._producer.flush(self._timeout_s + 5)
        self._send_alone(records, problems)
        if missing := len(records) - len(self._taken) - len(self._too_large):
            if any(problem.fatal() for problem in problems):
                self._producer = self._start()
            reason = problems[0].str() if problems else "no broker has answered"
            raise OSError(
                f"{missing} of {len(records)} records were not taken by the topic "
                f"{self._topic.name!r} at {self._topic.brokers}: {reason}"
            )
        num_left_out = len(self._too_large)
        for place in self._too_large:
            _logger.warning(
                "a record of %d bytes is too large for Kafka: left out", len(records[place][1])
            )
        self._taken.clear()
        self._too_large.clear()
        return num_left_out

    def close(self) -> None:
        """Wait for what has not been sent."""
        self._producer.flush(1.0)

    def _send_alone(self, records: Sequence[tuple[str, bytes]], problems: list[Any]) -> None:
        """Send the records of batches that were too large again, each in a batch of its own.

        The time limit is that of all of them: what is left then is sent by the next call.
        """
        from confluent_kafka import KafkaError

        places = sorted(self._too_large_together)
        self._too_large_together = set()
        end = time.monotonic() + self._timeout_s
        for place in places:
            if time.monotonic() >= end:
                problems.append(KafkaError(KafkaError._MSG_TIMED_OUT))
                break
            self._produce(place, *records[place], problems, end)
            self._producer.flush(self._timeout_s + 5)
            if place in self._too_large_together:
                self._too_large.add(place)
        self._too_large_together.clear()
        problems[:] = [p for p in problems if p.code() != KafkaError.MSG_SIZE_TOO_LARGE]

    def _produce(self, place: int, key: str, value: bytes, problems: list[Any], end: float) -> None:
        """Hand a record to the producer; while its queue is full, wait until the time `end`."""
        from confluent_kafka import KafkaError, KafkaException

        def note(error: Any, _: Any) -> None:
            if error is None:
                self._taken.add(place)
                return
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._too_large_together.add(place)
            problems.append(error)

        while True:
            try:
                self._producer.produce(self._topic.name, value, key.encode(), on_delivery=note)
            except BufferError:
                if time.monotonic() < end:
                    self._producer.poll(0.1)
                    continue
                problems.append(KafkaError(KafkaError._QUEUE_FULL))
            except KafkaException as exc:
                if exc.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    self._too_large.add(place)
                else:
                    problems.append(exc.args[0])
            break
        self._producer.poll(0)

    def _start(self) -> Any:
        require("confluent_kafka", "Kafka")
        from confluent_kafka import KafkaException, Producer

        try:
            return Producer(self._settings, logger=_logger)
        except KafkaException as exc:
            text = exc.args[0].str()
            raise ConfigError(f"a setting of the producer of Kafka is wrong: {text}.") from exc
