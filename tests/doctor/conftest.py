"""The doctor's tests judge the faults that they plant, not the disk of the host that runs them."""

import pytest

from sparkdl.doctor import executor_checks


@pytest.fixture(autouse=True)
def disk_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_checks, "MIN_FREE_MB", 16)
