"""Runs are found again: by their values, parameters, user, time and tags."""

import json
import logging
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment
from sparkdl.errors import ConfigError
from sparkdl.files.jsonl import from_json
from sparkdl.runs.filters import parse_age, parse_since
from sparkdl.runs.history import history
from tests.helpers.stored_runs import ended, shift, started


@pytest.fixture
def runs(root: str) -> str:
    """Four runs: two of ann, one of bob, one without a value; a day between them."""
    ended(root, "first", (0.5, 0.75))
    ended(root, "second", (0.9, 0.8), ({"lr": 0.01, "opt": "adam"}, {"lr": 0.3, "opt": "sgd"}))
    ended(root, "third", (0.95, 0.1), user="bob")
    opened = started(root, "fourth", ({"lr": 1.0, "depth": 3}, {"lr": 2.0, "depth": 3}))
    opened.owner.release()
    for number, name in enumerate(("first", "second", "third")):
        day = datetime.now().astimezone() - timedelta(days=10 - number)
        shift(f"{root}/{name}", started=day.strftime("%Y-%m-%dT%H:%M:%S%z"))
    experiment.load(f"{root}/second").tag("paper", "good")
    experiment.load(f"{root}/third").tag("paper")
    return root


def test_rows_have_parameters_metrics_user_commit_and_tags(runs: str) -> None:
    rows = history(runs).set_index("run")
    row = rows.loc["second"]
    assert (row["name"], row["user"], row["git_commit"]) == ("nightly", "ann", "abc")
    assert (row["best"], row["seconds"], row["tags"]) == (0.9, 4.0, ["paper", "good"])
    assert (row["param.lr"], row["param.opt"]) == (0.01, "adam")
    assert row["metric.loss"] == pytest.approx(0.1)
    # Without a best trial there are the parameters that all trials have in common.
    assert rows.loc["fourth", "param.depth"] == 3
    assert rows.loc["fourth"].isna()["param.lr"]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"where": "best > 0.8"}, ["third", "second"]),
        ({"where": "state == 'COMPLETE' and lr < 0.1"}, ["second"]),
        ({"where": "opt == 'adam'"}, ["second"]),
        ({"where": "`metric.loss` < 0.2 and user == 'bob'"}, ["third"]),
        ({"where": "accuracy > 0.8 or depth == 3"}, ["fourth", "third", "second"]),
        ({"where": lambda row: row["best"] < 0.8}, ["first"]),
        ({"where": lambda row: "paper" in row.tags}, ["third", "second"]),
        ({"user": "bob"}, ["third"]),
        ({"user": ["ann", "bob"], "since": "8.5d"}, ["fourth", "third"]),
        ({"since": timedelta(days=1)}, ["fourth"]),
        ({"since": "2020-01-01"}, ["fourth", "third", "second", "first"]),
        ({"tags": "paper"}, ["third", "second"]),
        ({"tags": ["paper", "good"]}, ["second"]),
        ({"tags": "paper", "where": "lr == 0.01"}, ["second"]),
        ({"tags": "none"}, []),
    ],
)
def test_runs_are_found_by_conditions(
    runs: str, conditions: dict[str, Any], expected: list[str]
) -> None:
    frame = experiment.history(runs, **conditions)
    assert frame["run"].tolist() == expected
    assert frame.index.tolist() == list(range(len(expected)))


@pytest.mark.parametrize("where", ["besst > 1", "best >", "best + 1", "opt < 3"])
def test_a_condition_that_is_none_is_explained(runs: str, where: str) -> None:
    with pytest.raises(ConfigError, match="where=") as caught:
        experiment.history(runs, where=where)
    assert "best > 0.9" in str(caught.value)


def test_an_unreadable_folder_is_a_warning_also_with_conditions(
    runs: str, caplog: pytest.LogCaptureFixture
) -> None:
    Path(runs, "torn").mkdir()
    Path(runs, "torn", "run.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert len(experiment.history(runs, user="ann")) == 3
    assert "1 folders below" in caplog.text


def test_summaries_of_earlier_versions_are_listed(runs: str) -> None:
    file = Path(runs, "first", "summary.json")
    row = from_json(file.read_bytes())
    new = {"name", "user", "git_commit", *(n for n in row if "." in n)}
    file.write_text(json.dumps({name: value for name, value in row.items() if name not in new}))
    assert len(history(runs)) == 4
    found = experiment.history(runs, where="lr <= 0.2", user=["ann", "bob"])
    assert set(found["run"]) == {"first", "second", "third"}


def test_a_root_without_runs_has_no_matches(root: str) -> None:
    frame = experiment.history(root, where="best > 1", user="ann", since="1d", tags="a")
    assert list(frame["run"]) == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("2min", 120), ("1.5h", 5400), ("30d", 2592000)]
)
def test_ages_are_numbers_with_a_unit(text: str, seconds: float) -> None:
    assert parse_age(text).total_seconds() == seconds


def test_a_time_without_a_zone_is_that_of_this_host() -> None:
    assert parse_since("2026-11-01T09:00") == datetime(2026, 11, 1, 9).astimezone()
    assert parse_since("2026-11-01T09:00+02:00").utcoffset() is not None
    assert parse_since(datetime(2026, 11, 1).date()) == parse_since("2026-11-01")
    for wrong in ("yesterday", "30", 7):
        with pytest.raises(ConfigError, match="expected a time such as"):
            parse_since(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="such as '30d'"):
        parse_age("30 moons")
