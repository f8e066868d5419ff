"""Reasons to train a model again, from windows that were watched."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sparkdl import models, monitoring
from sparkdl.errors import ConfigError
from sparkdl.models.watch_files import ResultFiles, folder_of
from tests.helpers.logs import PROFILE
from tests.helpers.saved_models import write_saved_model
from tests.helpers.watch_results import START, write_windows


@pytest.fixture
def folder(root: str) -> str:
    """Results with the drift of one feature in three of six hours, and of another in one."""
    age = ["drift", "ok", "drift", "too few rows", "ok", "drift"]
    write_windows(root, {"age": age, "word": ["ok"] * 5 + ["drift"]})
    return root


def test_drift_in_enough_of_the_last_windows_is_a_reason(folder: str) -> None:
    found = monitoring.should_retrain(folder)
    assert found and found.reasons == ("age has drifted in 3 of the last 6 windows",)
    assert not monitoring.should_retrain(folder, last=5)
    assert monitoring.should_retrain(folder, min_drifted=2, last=5)
    assert not monitoring.should_retrain(folder, columns=["word"])
    both = monitoring.should_retrain(folder, min_drifted=1, last=1)
    assert str(both) == (
        "age has drifted in 1 of the last 1 windows; word has drifted in 1 of the last 1 windows"
    )
    assert str(monitoring.should_retrain(folder, last=3)) == "there is no reason to train again"


def test_performance_below_its_limit_is_a_reason(folder: str) -> None:
    windows = [START, START + timedelta(days=1), START + timedelta(days=2)]
    table = pd.DataFrame(
        {
            "window": pd.to_datetime(windows),
            "version": 1,
            "requests": 500,
            "labelled": [400, 300, 20],
            "accuracy": [0.95, 0.85, 0.1],
            "mae": [1.0, 2.0, 9.0],
        }
    )

    def reasons(**limits: float) -> tuple[str, ...]:
        return monitoring.should_retrain(folder, last=3, performance=table, limits=limits).reasons

    # The third day has too few labels.
    assert reasons(accuracy=0.9) == (
        "accuracy was 0.85 in the window of 2026-11-24 10:00, below 0.9 (300 labels)",
    )
    assert reasons(mae=1.5, accuracy=0.8) == (
        "mae was 2 in the window of 2026-11-24 10:00, above 1.5 (300 labels)",
    )


def test_the_performance_that_was_kept_is_a_reason(folder: str) -> None:
    fields = {"metric": "accuracy", "requests": 500}
    values = [(0, 1, 0.95, 400), (1, 1, 0.95, 300), (1, None, 0.85, 200), (1, 2, 0.1, 500)]
    rows = [
        {**fields, "window": START + timedelta(hours=hour), "version": version}
        | {"value": value, "labelled": labelled}
        for hour, version, value, labelled in values
    ]
    ResultFiles(folder).write_performance(rows)
    # Version 2 is another one than the model that is watched.
    assert monitoring.should_retrain(folder, last=3, limits={"accuracy": 0.9}).reasons == (
        "accuracy was 0.85 in the window of 2026-11-23 11:00, below 0.9 (200 labels)",
    )
    better = {**rows[2], "value": 0.97}
    ResultFiles(folder).write_performance([better])
    assert not monitoring.should_retrain(folder, last=3, limits={"accuracy": 0.9})
    assert len(monitoring.results(folder).performance) == 4


def test_age_is_a_reason(root: str, tmp_path: Path) -> None:
    model = write_saved_model(tmp_path / "prepared")
    version = models.export(model, "m", profile=PROFILE, root=root)
    assert version is not None
    write_windows(folder_of(version), {"age": ["ok"]})
    for named in (version, "m", "m/1", folder_of(version)):
        assert not monitoring.should_retrain(named, max_age_s=3600, root=root)
        (reason,) = monitoring.should_retrain(named, max_age_s=-1, root=root).reasons
        assert reason == "m/1 is 0.0 days old, more than -0.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_drifted": 5, "last": 4}, "expected 1 <= min_drifted <= last"),
        ({"columns": ["size"]}, "no feature 'size' was watched, but age, word"),
        ({"metrics": ["js"]}, "no metric 'js' was watched, but psi"),
        ({"performance": pd.DataFrame()}, "performance= needs limits="),
        ({"limits": {"mae": 1}}, "there is no performance 'mae' in .*. Pass performance="),
        ({"limits": {"mae": 1}, "performance": pd.DataFrame()}, "the performance has no 'mae'"),
    ],
)
def test_wrong_arguments_are_refused(folder: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        monitoring.should_retrain(folder, **arguments)
