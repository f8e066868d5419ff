"""A store that fails for a moment is asked again, with one warning."""

import logging

import pytest

from sparkdl.files import polling
from sparkdl.files.polling import Outages, retry


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(polling.time, "sleep", slept.append)
    return slept


def test_retry_tries_again_with_growing_pauses_and_one_warning(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    errors = [OSError("busy")] * 4

    def write() -> str:
        if errors:
            raise errors.pop()
        return "done"

    with caplog.at_level(logging.WARNING):
        assert retry(write, "write the outputs") == "done"
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    assert caplog.text.count("failed to write the outputs: busy") == 1


def test_retry_raises_the_last_error_after_the_timeout(pauses: list[float]) -> None:
    def write() -> None:
        raise OSError("still busy")

    with pytest.raises(OSError, match="still busy"):
        retry(write, "write", timeout_s=0.0)


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError, PermissionError])
def test_retry_raises_what_no_pause_can_mend(pauses: list[float], error: type[OSError]) -> None:
    def read() -> None:
        raise error("file")

    with pytest.raises(error):
        retry(read, "read")
    assert pauses == []


def test_outages_count_failures_in_a_row() -> None:
    outages = Outages("look")
    for expected in (1, 2):
        with outages.tolerated():
            raise PermissionError("no")
        assert outages.in_a_row == expected
    with outages.tolerated():
        pass
    assert outages.in_a_row == 0
