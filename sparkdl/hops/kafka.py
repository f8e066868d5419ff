"""Runs anywhere. Brokers and records of Kafka, as in hops-util-py.

The brokers are those of the variable `KAFKA_BROKERS`. Further settings of the client, such as
certificates and passwords, are in the file that the variable `KAFKA_PROPERTIES` names, with lines
such as `security.protocol=SASL_SSL`.
"""

import json
import os
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.hops.absent_names import absent_names
from sparkdl.host.optional_packages import require

__all__ = [
    "convert_json_schema_to_avro",
    "create_topic",
    "get_broker_endpoints",
    "get_broker_endpoints_list",
    "get_kafka_default_config",
    "get_schema",
    "get_security_protocol",
    "parse_avro_msg",
]

__getattr__ = absent_names(__name__, __all__)

# Seconds that brokers have to create a topic.
CREATE_S = 30.0

# The fields of the records of Hopsworks, with the types that Avro gives them.
_FIELDS = {
    "modelId": "string",
    "modelName": "string",
    "modelVersion": "int",
    "requestTimestamp": "long",
    "responseHttpCode": "int",
    "inferenceId": "string",
    "inferenceRequest": "string",
    "inferenceResponse": "string",
    "servingType": "string",
}


def get_broker_endpoints() -> str:
    """Return the addresses of the brokers, separated by commas.

    Raises:
        ConfigError: if the variable `KAFKA_BROKERS` is not set.

    Example:
        >>> import os
        >>> os.environ["KAFKA_BROKERS"] = "INTERNAL://one:9092,INTERNAL://two:9092"
        >>> get_broker_endpoints()
        'one:9092,two:9092'
    """
    text = os.environ.get("KAFKA_BROKERS", "")
    endpoints = [part.strip().rpartition("://")[2] for part in text.split(",") if part.strip()]
    if not endpoints:
        raise ConfigError(
            "KAFKA_BROKERS is not set; expected the addresses of brokers of Kafka, such as "
            "KAFKA_BROKERS=host:9092,other:9092."
        )
    return ",".join(endpoints)


def get_broker_endpoints_list() -> list[str]:
    """Return the addresses of the brokers as a list, see `get_broker_endpoints`."""
    return get_broker_endpoints().split(",")


def get_security_protocol() -> str:
    """Return the protocol of the connection: that of `KAFKA_PROPERTIES`, or `PLAINTEXT`.

    Example:
        >>> get_security_protocol()
        'PLAINTEXT'
    """
    return _properties().get("security.protocol", "PLAINTEXT")


def get_kafka_default_config() -> dict[str, str]:
    """Return settings for a producer or a consumer of the package confluent-kafka.

    They are the addresses of the brokers, the protocol, a group of consumers, and all that the file
    of `KAFKA_PROPERTIES` has.

    Raises:
        ConfigError: if the variable `KAFKA_BROKERS` is not set, or the file cannot be read.
    """
    return {
        "bootstrap.servers": get_broker_endpoints(),
        "security.protocol": get_security_protocol(),
        "group.id": "something",
        **_properties(),
    }


def _properties() -> dict[str, str]:
    path = os.environ.get("KAFKA_PROPERTIES")
    if not path:
        return {}
    try:
        lines = [line.strip() for line in Path(path).read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"KAFKA_PROPERTIES is {path!r}, which cannot be read: {exc}.") from exc
    settings = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if line and not line.startswith("#"):
            if not separator:
                # The line may be a password.
                raise ConfigError(
                    f"a line of {path} has no '='; expected lines such as name=value."
                )
            settings[name.strip()] = value.strip()
    return settings


def create_topic(name: str, num_partitions: int = 1, num_replicas: int = 1) -> None:
    """Create a topic, unless there is one of this name.

    Args:
        name: the name of the topic.
        num_partitions: number of its partitions.
        num_replicas: number of brokers that keep each partition.

    Raises:
        ConfigError: if the brokers are not known, or the client is not installed.
        OSError: if the brokers have not created the topic.
    """
    require("confluent_kafka", "Kafka")
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    settings = {**get_kafka_default_config()}
    settings.pop("group.id")
    topic = NewTopic(name, num_partitions, num_replicas)
    client = AdminClient(settings)  # Its requests end with it.
    try:
        client.create_topics([topic], request_timeout=CREATE_S)[name].result(CREATE_S)
    except KafkaException as exc:
        if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            brokers = settings["bootstrap.servers"]
            text = f"the brokers {brokers} have not created the topic {name!r}: "
            raise OSError(text + exc.args[0].str()) from exc


def get_schema(topic: str) -> dict[str, str]:
    """Return the schema of the records that `parse_avro_msg` returns.

    Args:
        topic: has no effect: all topics of inference logs have the same records.

    Returns:
        A dict whose `contents` is a schema of Avro, as JSON.

    Example:
        >>> "inferenceRequest" in get_schema("digits-inference")["contents"]
        True
    """
    fields = [{"name": name, "type": kind} for name, kind in _FIELDS.items()]
    schema = {"type": "record", "name": "inferencelog", "fields": fields}
    return {"contents": json.dumps(schema)}


def convert_json_schema_to_avro(json_schema: dict[str, str]) -> dict[str, Any]:
    """Return the schema that a value of `get_schema` has, as a dict."""
    schema: dict[str, Any] = json.loads(json_schema["contents"])
    return schema


def parse_avro_msg(msg: bytes, avro_schema: Any = None) -> dict[str, Any]:
    """Return a record of the inference log of the model server, with the names of Hopsworks.

    The records are JSON, not Avro.

    Args:
        msg: the value of the record in the topic.
        avro_schema: has no effect.

    Returns:
        `modelName`, `modelVersion`, `requestTimestamp` in milliseconds, `responseHttpCode`,
        `inferenceId`, and the bodies `inferenceRequest` and `inferenceResponse` as JSON with
        columns.

    Raises:
        ConfigError: if the record is not of the inference log of `sparkdl.serving`.

    Example:
        >>> msg = b'{"id": "a", "time": 0, "model": "m", "version": 1, "status": 200, ' \\
        ...     b'"inputs": {"x": [1]}, "outputs": {"y": [2]}}'
        >>> event = parse_avro_msg(msg)
        >>> event["modelName"], event["inferenceResponse"]
        ('m', '{"outputs": {"y": [2]}}')
    """
    try:
        record = json.loads(msg)
        return {
            "modelId": record["model"],
            "modelName": record["model"],
            "modelVersion": record["version"],
            "requestTimestamp": record["time"],
            "responseHttpCode": record["status"],
            "inferenceId": record["id"],
            "inferenceRequest": json.dumps({"inputs": record["inputs"]}),
            "inferenceResponse": json.dumps({"outputs": record["outputs"]}),
            "servingType": "TENSORFLOW",
        }
    except (ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"a record of {len(msg)} bytes is not of the inference log of sparkdl.serving, which "
            f"is JSON ({exc!r}). Records of Hopsworks itself are Avro: read them with the package "
            "fastavro."
        ) from exc
