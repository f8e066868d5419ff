"""Records for Kafka, with the mock brokers of librdkafka. tests/clusters has a real broker."""

import time

import pytest

from sparkdl.errors import ConfigError
from sparkdl.serving.inference_log import Log, check_log
from sparkdl.serving.kafka_topic import KafkaTopic, Sender
from sparkdl.serving.log_sinks import KafkaSink

TOPIC = KafkaTopic("127.0.0.1:1", "requests")
MOCK = {"test.mock.num.brokers": 1}


def test_records_are_sent_and_a_large_one_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    sender = Sender(TOPIC, MOCK)
    assert sender.send([("a", b"1"), ("b", b"x" * 2_000_000), ("c", b"3")]) == 1
    assert "a record of 2000000 bytes is too large for Kafka: left out" in caplog.text
    assert sender.send([("d", b"4")]) == 0
    sender.close()


def test_a_queue_that_is_full_loses_no_record() -> None:
    sender = Sender(TOPIC, {**MOCK, "queue.buffering.max.messages": 2})
    assert sender.send([(str(number), b"1") for number in range(100)]) == 0


def test_a_queue_that_stays_full_is_an_error_in_time() -> None:
    sender = Sender(TOPIC, {"queue.buffering.max.messages": 1}, timeout_s=0.3)
    with pytest.raises(OSError, match="2 of 2 records were not taken"):
        sender.send([("a", b"1"), ("b", b"2")])


def test_the_inference_log_counts_records_that_are_too_large() -> None:
    sink = KafkaSink("kafka://127.0.0.1:1/requests", MOCK)
    sink.write([{"id": "a"}, {"id": "b", "inputs": {"x": "x" * 2_000_000}}])
    sink.write([{"id": "c"}])
    assert sink.num_left_out == 1


def test_without_a_broker_the_records_are_kept() -> None:
    sender = Sender(TOPIC, timeout_s=0.2)
    for _ in range(2):
        with pytest.raises(OSError, match="1 of 1 records were not taken by the topic 'requests'"):
            sender.send([("a", b"1")])


def test_records_that_are_sent_alone_have_one_time_limit() -> None:
    sender = Sender(TOPIC, timeout_s=0.3)
    # As if a broker had refused all of them in one batch, and had gone then.
    sender._too_large_together = set(range(40))
    begin = time.monotonic()
    with pytest.raises(OSError, match="40 of 40 records were not taken"):
        sender.send([(str(number), b"1") for number in range(40)])
    assert time.monotonic() - begin < 11


def test_only_what_was_not_taken_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender(TOPIC, MOCK)
    produced: list[int] = []
    produce = sender._produce

    def spy(place: int, *rest: object) -> None:
        produced.append(place)
        if produced != [0, 1]:  # The second record is lost once.
            produce(place, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(sender, "_produce", spy)
    records = [("a", b"1"), ("b", b"2"), ("c", b"3")]
    with pytest.raises(OSError, match="1 of 3 records"):
        sender.send(records)
    sender.send(records)
    assert produced == [0, 1, 2, 1]


@pytest.mark.parametrize("url", ["kafka://", "kafka://host", "kafka://host/a/b", "kafka:///topic"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no topic of Kafka; expected 'kafka://host:9092/topi"):
        check_log(Log(url))


def test_a_wrong_setting_is_told() -> None:
    with pytest.raises(
        ConfigError, match=r"a setting of the producer of Kafka is wrong: .*no\.such"
    ):
        Sender(TOPIC, {"no.such": 1})
