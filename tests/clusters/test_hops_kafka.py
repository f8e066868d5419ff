"""The inference log of a serving of HopsML in a topic of a real Kafka."""

from pathlib import Path

import pytest

from sparkdl.hops import kafka, serving
from tests.clusters.kafka import consumed, kafka_broker
from tests.serving.functions import save_sum


@pytest.mark.slow
def test_a_serving_creates_its_topic_and_logs_to_it(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    folder = save_sum(tmp_path / "sum", 1.0)
    with kafka_broker(tmp_path) as address:
        monkeypatch.setenv("KAFKA_BROKERS", f"INTERNAL://{address}")
        for _ in range(2):  # The topic is there the second time.
            serving.create_or_update("adder", str(folder), num_partitions=2)
        topic = serving.get_kafka_topic("adder")
        assert topic == "adder-inference"
        serving.start("adder")
        try:
            for value in (1.0, 2.0):
                serving.make_inference_request("adder", [value])
        finally:
            serving.stop("adder")
        records = consumed(address, topic, 2)
        schema = kafka.convert_json_schema_to_avro(kafka.get_schema(topic))
        events = [kafka.parse_avro_msg(value, schema) for _, value in records]
        assert {key for key, _ in records} == {event["inferenceId"] for event in events}
        answers = {event["inferenceResponse"] for event in events}
        assert answers == {'{"outputs": {"y": [2.0]}}', '{"outputs": {"y": [3.0]}}'}
        with pytest.raises(OSError, match="have not created the topic 'no/name'"):
            kafka.create_topic("no/name")
