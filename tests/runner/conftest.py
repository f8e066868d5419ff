"""Fixtures for tests of the driver's loop on a cluster in memory."""

import time

import pytest

from sparkdl.runner.loop import trial_loop


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop look at its trials every few milliseconds."""
    monkeypatch.setattr(trial_loop, "LOCAL_POLL_S", 0.005)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that `time.monotonic` returns, as the only item of a list that a test changes."""
    seconds = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    return seconds
