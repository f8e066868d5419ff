"""Settings and records of Kafka, as HopsML programs read them."""

import json
from pathlib import Path

import pytest

from sparkdl.errors import ConfigError
from sparkdl.hops import kafka


@pytest.fixture(autouse=True)
def brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BROKERS", "INTERNAL://one:9092, two:9092")
    monkeypatch.delenv("KAFKA_PROPERTIES", raising=False)


def test_the_default_settings_are_those_of_the_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert kafka.get_broker_endpoints_list() == ["one:9092", "two:9092"]
    assert kafka.get_kafka_default_config() == {
        "bootstrap.servers": "one:9092,two:9092",
        "security.protocol": "PLAINTEXT",
        "group.id": "something",
    }
    file = tmp_path / "client.properties"
    file.write_text("# for tests\nsecurity.protocol=SASL_SSL\n\nsasl.password = a=b\n")
    monkeypatch.setenv("KAFKA_PROPERTIES", str(file))
    assert kafka.get_security_protocol() == "SASL_SSL"
    assert kafka.get_kafka_default_config()["sasl.password"] == "a=b"


def test_wrong_settings_are_told_without_their_content(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("secret")
    monkeypatch.setenv("KAFKA_PROPERTIES", str(file))
    with pytest.raises(ConfigError, match="has no '='") as failed:
        kafka.get_kafka_default_config()
    assert "secret" not in str(failed.value)
    monkeypatch.setenv("KAFKA_PROPERTIES", "/nowhere")
    with pytest.raises(ConfigError, match="KAFKA_PROPERTIES is '/nowhere', which cannot be read"):
        kafka.get_security_protocol()
    monkeypatch.setenv("KAFKA_BROKERS", " ,")
    with pytest.raises(ConfigError, match="KAFKA_BROKERS is not set"):
        kafka.get_broker_endpoints()


def test_a_record_has_the_fields_of_its_schema() -> None:
    record = {"id": "a", "time": 5, "model": "m", "version": 2, "status": 200}
    msg = json.dumps({**record, "inputs": {"x": [1.5]}, "outputs": {}}).encode()
    schema = kafka.convert_json_schema_to_avro(kafka.get_schema("m-inference"))
    event = kafka.parse_avro_msg(msg, schema)
    assert list(event) == [field["name"] for field in schema["fields"]]
    assert (event["requestTimestamp"], event["modelVersion"]) == (5, 2)
    assert json.loads(event["inferenceRequest"]) == {"inputs": {"x": [1.5]}}
    for other in (b"\x02\x0asome", b"[]", b"{}"):
        with pytest.raises(ConfigError, match=r"is not of the inference log of sparkdl.serving"):
            kafka.parse_avro_msg(other)
