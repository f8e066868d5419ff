"""The time from which on requests are those of a version."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from sparkdl import models
from sparkdl.errors import ConfigError
from sparkdl.monitoring.since import milliseconds, start_of
from tests.helpers.saved_models import write_saved_model

MOMENT = datetime(2025, 11, 24, 10, tzinfo=timezone.utc)
MOMENT_MS = 1_763_978_400_000


@pytest.mark.parametrize(
    "since",
    [
        *(MOMENT, MOMENT.replace(tzinfo=None), MOMENT.astimezone(timezone(timedelta(hours=5)))),
        *("2025-11-24 10:00", "2025-11-24T10:00:00Z", "2025-11-24T11:00+01:00"),
        *(MOMENT_MS // 1000, MOMENT_MS / 1000),
    ],
)
def test_a_time_has_several_forms(since: object) -> None:
    assert milliseconds(since) == MOMENT_MS


@pytest.mark.parametrize("since", ["yesterday", True, [], float("nan")])
def test_other_values_are_refused(since: object) -> None:
    with pytest.raises(ConfigError, match=r"since is .*; expected a datetime"):
        milliseconds(since)


def test_a_version_begins_with_its_export_and_an_alias_with_its_move(
    root: str, tmp_path: Path
) -> None:
    for number in (1, 2):
        models.export(write_saved_model(tmp_path / str(number), str(number)), "m", root=root)
    first = models.get("m", 1, root=root)
    exported_ms = milliseconds(first.details["exported"]["time"])
    assert start_of("m/1", first, root) == start_of(first, first, root) == exported_ms
    for version in (1, 2, 1):
        models.alias("m", "stable", version, root=root)
    times = [milliseconds(move.time) for move in models.alias_history("m", "stable", root=root)]
    assert start_of("m@stable", first, root) == times[-1] >= times[0] > exported_ms
