"""Fixtures for tests of the driver's loop on a cluster in memory."""

import pytest

from sparkdl.runner import trial_loop


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop look at its trials every few milliseconds."""
    monkeypatch.setattr(trial_loop, "LOCAL_POLL_S", 0.005)
