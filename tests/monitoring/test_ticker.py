"""The clock ends the windows of a log that is idle."""

from pathlib import Path

import pytest

from sparkdl.models.watch_files import ResultFiles
from sparkdl.monitoring import ticker
from sparkdl.monitoring.ticker import Ticker

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def test_ticks_end_each_window_of_an_idle_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noon = 500_000 * HOUR_MS
    ticking = Ticker(ResultFiles(str(tmp_path)), 600, 3600, 600)
    ticking.note(noon + 5 * MINUTE_MS)
    ticked = []
    for minute in range(6, 200):
        monkeypatch.setattr(ticker, "_now_ms", lambda minute=minute: noon + minute * MINUTE_MS)
        if ticking.tick_if_idle():
            ticked.append(minute)
    # The window before noon ends as the log becomes idle, its own ten minutes after one o'clock.
    assert ticked == [15, 70]


def test_no_tick_comes_while_requests_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noon = 500_000 * HOUR_MS
    ticking = Ticker(ResultFiles(str(tmp_path)), 600, 3600, 600)
    for minute in range(120):
        monkeypatch.setattr(ticker, "_now_ms", lambda minute=minute: noon + minute * MINUTE_MS)
        ticking.note(noon + minute * MINUTE_MS)
        assert not ticking.tick_if_idle()
