"""Runs anywhere. The inference log as records of a topic of Kafka."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.kafka_topic import KafkaTopic, Sender
from sparkdl.serving.json_tensors import to_json
from sparkdl.serving.log_sink import LogSink, Record

__all__ = ["KafkaSink"]


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
        self._sender = Sender(KafkaTopic.of(url), settings)

    def write(self, records: Sequence[Record]) -> None:
        """Write records, see `LogSink`."""
        pairs = [(str(record.get("id", "")), to_json(record)) for record in records]
        self.num_left_out += self._sender.send(pairs)

    def close(self) -> None:
        """Wait for what has not been sent."""
        self._sender.close()
