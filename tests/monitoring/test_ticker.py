"""The clock ends the windows of a log that is idle."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkdl.models.watch_files import ResultFiles
from sparkdl.monitoring import ticker
from sparkdl.monitoring.left_out import has_caught_up
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


@pytest.mark.parametrize(
    ("latest", "is_read"), [(None, True), ("None", True), ('{"0":7}', True), ('{"0":9}', False)]
)
def test_a_batch_that_leaves_a_part_of_the_log_to_later_ones_does_not_make_it_idle(
    latest: str | None, is_read: bool
) -> None:
    sources = [SimpleNamespace(endOffset='{"0":7}', latestOffset=latest)]
    assert has_caught_up(SimpleNamespace(sources=sources)) == is_read
