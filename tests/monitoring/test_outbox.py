"""Alerts on their way to places that are down, slow or gone."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sparkdl.callbacks import Webhook
from sparkdl.models.watch_files import ResultFiles
from sparkdl.monitoring.alerts import check_targets
from sparkdl.monitoring.outbox import MAX_TRIES, Outbox
from tests.helpers.processes import eventually
from tests.helpers.receiver import Receiver


def alert(number: int) -> dict[str, Any]:
    return {"id": f"m/1 {number}", "event": "drift", "text": f"drift {number}"}


def ids(posts: list[Any]) -> list[str]:
    return [body["id"] for _, _, body in posts]


def test_an_alert_waits_for_a_place_that_is_down_and_is_sent_once(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = ResultFiles(str(tmp_path))
    told: list[Any] = []
    targets = check_targets([f"{receiver.address}/secret", told.append])
    receiver.codes = [501]
    outbox = Outbox(files, targets)
    outbox.add(7, [alert(1), alert(2)])
    outbox.deliver()
    # The place that is down is not asked for the second alert; the other place has both.
    assert len(receiver.posts) == 1 and [found["id"] for found in told] == ["m/1 1", "m/1 2"]
    assert "an alert could not be sent: http://127.0.0.1" in caplog.text
    assert "secret" not in caplog.text + Path(tmp_path, "unsent/000000000007.json").read_text()
    # Another process with the same places, after the batch was repeated.
    again = Outbox(files, targets)
    again.add(7, [alert(1), alert(2)])
    for _ in range(2):
        again.deliver()
    assert ids(receiver.posts) == ["m/1 1", "m/1 1", "m/1 2"] and len(told) == 2
    assert files.unsent() == [] and len(files.read_alerts()) == 2


def test_two_places_on_one_host_are_told_both(receiver: Receiver, tmp_path: Path) -> None:
    places = [Webhook(f"{receiver.address}/one"), f"{receiver.address}/two"]
    outbox = Outbox(ResultFiles(str(tmp_path)), check_targets(places))
    outbox.add(1, [alert(1)])
    outbox.deliver()
    assert sorted(path for path, _, _ in receiver.posts) == ["/one", "/two"]


def test_a_place_that_hangs_holds_up_neither_the_batch_nor_others(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on, calls = threading.Event(), []

    def hang(found: Any) -> None:
        calls.append(found["id"])
        goes_on.wait()

    outbox = Outbox(ResultFiles(str(tmp_path)), check_targets([hang, receiver.address]), 1.0)
    outbox.add(1, [alert(1)])
    begin = time.monotonic()
    for _ in range(20):  # Only the first call waits.
        outbox.deliver()
    assert time.monotonic() - begin < 15
    assert ids(receiver.posts) == ["m/1 1"] and calls == ["m/1 1"]
    assert "an alert was not taken by the function" in caplog.text
    goes_on.set()
    assert eventually(lambda: not outbox.files.unsent())
    outbox.deliver()
    assert calls == ["m/1 1"]


def test_an_alert_for_a_place_that_was_taken_away_is_forgotten(
    receiver: Receiver, tmp_path: Path
) -> None:
    files = ResultFiles(str(tmp_path))
    receiver.codes = [501]
    both = Outbox(files, check_targets([receiver.address, print]))
    both.add(1, [alert(1)])
    both.deliver()
    assert files.unsent() == [1]
    Outbox(files, check_targets(print)).deliver()
    assert files.unsent() == [] and len(receiver.posts) == 1


def test_an_alert_that_no_place_was_to_get_is_sent_to_none_later(tmp_path: Path) -> None:
    files = ResultFiles(str(tmp_path))
    told: list[Any] = []
    Outbox(files).add(1, [alert(1)])
    Outbox(files, check_targets(told.append)).deliver()
    assert told == [] and len(files.read_alerts()) == 1


@pytest.mark.parametrize("code", [400, 410, 413, 414, 415, 422])
def test_an_alert_that_a_place_refuses_for_good_holds_up_no_other(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    receiver.codes = [code]
    outbox = Outbox(ResultFiles(str(tmp_path)), check_targets(receiver.address))
    outbox.add(1, [alert(1), alert(2)])
    outbox.add(2, [alert(3)])
    for _ in range(2):
        outbox.deliver()
    assert ids(receiver.posts) == ["m/1 1", "m/1 2", "m/1 3"] and outbox.files.unsent() == []
    assert list(outbox.files.read_refused().values()) == [1]
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "refused for good, and is not sent again (1 so far)" in record.getMessage()
    assert f"it answered {code}" in record.getMessage()


@pytest.mark.parametrize("code", [301, 401, 403, 404, 405, 407, 408, 425, 501])
def test_an_alert_that_may_be_taken_later_is_kept(
    receiver: Receiver, tmp_path: Path, code: int
) -> None:
    receiver.codes = [code]
    outbox = Outbox(ResultFiles(str(tmp_path)), check_targets(receiver.address))
    outbox.add(1, [alert(1), alert(2)])
    outbox.deliver()
    assert ids(receiver.posts) == ["m/1 1"] and outbox.files.unsent() == [1]
    outbox.deliver()
    assert ids(receiver.posts)[1:] == ["m/1 1", "m/1 2"] and outbox.files.unsent() == []


def test_a_function_that_fails_on_one_alert_gets_the_others(tmp_path: Path) -> None:
    calls: list[str] = []

    def tell(found: Any) -> None:
        calls.append(found["id"])
        if calls == ["m/1 1"]:
            raise KeyError("no such word")

    outbox = Outbox(ResultFiles(str(tmp_path)), check_targets(tell))
    outbox.add(1, [alert(1), alert(2)])
    for _ in range(2):
        outbox.deliver()
    assert calls == ["m/1 1", "m/1 2", "m/1 1"] and outbox.files.unsent() == []


def test_a_function_that_always_fails_on_an_alert_is_called_ten_times(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def tell(found: Any) -> None:
        calls.append(found["id"])
        if found["id"] == "m/1 1":
            raise KeyError("no such word")

    files = ResultFiles(str(tmp_path))
    Outbox(files, check_targets([tell, receiver.address])).add(1, [alert(1), alert(2)])
    for number in range(1, MAX_TRIES + 3):
        # A scheduler starts a process for each call.
        Outbox(files, check_targets([tell, receiver.address])).deliver()
        assert files.unsent() == ([1] if number < MAX_TRIES else [])
    assert (calls.count("m/1 1"), calls.count("m/1 2")) == (MAX_TRIES, 1)
    assert ids(receiver.posts) == ["m/1 1", "m/1 2"]
    assert list(files.read_refused().values()) == [1]
    assert f"has failed {MAX_TRIES} times" in caplog.text
    # A place that is down for long is asked again without a limit.
    receiver.codes = [401] * (MAX_TRIES + 1)
    Outbox(files, check_targets(receiver.address)).add(2, [alert(3)])
    for _ in range(MAX_TRIES + 2):
        Outbox(files, check_targets(receiver.address)).deliver()
    assert len(receiver.posts) == 2 + MAX_TRIES + 2 and files.unsent() == []
