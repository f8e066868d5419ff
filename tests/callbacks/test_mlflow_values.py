"""The parts of the mirror in MLflow that need no server."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkdl.callbacks import MLflow
from sparkdl.callbacks.mlflow.reports import Cursor, new_reports
from sparkdl.callbacks.mlflow.tracker import _probe
from sparkdl.callbacks.mlflow.values import NOTE, masked_uri, names_of, trial_tags
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.runs import Trial
from tests.helpers.receiver import Receiver


def write(trial: Trial, folder: str, *steps: int) -> None:
    lines = [json.dumps({"step": step, "metrics": {"loss": float(step)}}) for step in steps]
    storage.write(f"{trial.path}/{folder}metrics.jsonl", "".join(f"{line}\n" for line in lines))


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(0, {}, str(tmp_path / "0"), attempts=1, spans=[(100.0, None)])


def test_reports_are_read_from_a_cursor_on(trial: Trial) -> None:
    write(trial, "", 0, 1, 2)
    reports = new_reports(trial, Cursor(), 160.0)
    assert [(r.step, r.time, str(r.after)) for r in reports] == [
        (0, 120.0, "0:1:0"),
        (1, 140.0, "0:2:1"),
        (2, 160.0, "0:3:2"),
    ]
    assert [r.step for r in new_reports(trial, Cursor.parse("0:2:1"), 160.0)] == [2]
    assert new_reports(trial, Cursor(0, 3, 2), 160.0) == []


def test_half_a_line_is_read_when_it_is_whole(trial: Trial) -> None:
    write(trial, "", 0)
    storage.append(f"{trial.path}/metrics.jsonl", b'{"step": 1, "metr')
    (first,) = new_reports(trial, Cursor(), 160.0)
    storage.append(f"{trial.path}/metrics.jsonl", b'ics": {"loss": 1}}\n[]\n')
    assert first.after is not None
    assert [r.step for r in new_reports(trial, first.after, 160.0)] == [1]


def test_reports_of_lost_attempts_count_up_to_the_next_one(trial: Trial) -> None:
    trial.attempts, trial.spans = 2, [(100.0, 130.0), (200.0, 220.0)]
    write(trial, "attempts/0/", 0, 1, 2)
    write(trial, "", 2, 3)
    reports = new_reports(trial, Cursor(), 999.0)
    assert [(r.step, r.time) for r in reports] == [(0, 110.0), (1, 120.0), (2, 210.0), (3, 220.0)]
    # What was mirrored before the attempt was lost stays; what came after is left out.
    assert [str(r.after) for r in new_reports(trial, Cursor(0, 2, 1), 999.0)] == ["1:1:2", "1:2:3"]


def test_names_become_different_names_that_mlflow_takes() -> None:
    names = names_of(["f1(%)", "f1[%]", "a/b", "/a//b/", "größe", "", "x" * 300])
    assert names["f1(%)"] == "f1___"
    assert names["f1[%]"] == "f1____2"
    assert (names["a/b"], names["/a//b/"], names["größe"], names[""]) == (
        "a/b",
        "a/b_2",
        "größe",
        "_",
    )
    assert len(names["x" * 300]) <= 250


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://mlflow:5000", "http://mlflow:5000"),
        ("https://ann:s3cr3t@mlflow/base", "https://***@mlflow/base"),
        ("https://s3cr3t@mlflow/base?t=s3cr3t#x", "https://***@mlflow/base***"),
        ("postgresql://ann:s3cr3t@db/mlflow", "postgresql://***@db/mlflow"),
        ("http://[bad", "***"),
        ("databricks://team", "databricks://team"),
    ],
)
def test_credentials_in_a_uri_are_not_shown(uri: str, shown: str) -> None:
    assert masked_uri(uri) == shown


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin="here"))


@pytest.mark.usefixtures("installed")
def test_later_push_has_the_arguments_of_the_run() -> None:
    written = MLflow("http://mlflow:5000", experiment="digits", artifacts="best").describe()
    description = {"id": "one", "callbacks": [{"callback": "Webhook"}, written]}
    assert MLflow.of_run(description, uri=None).describe() == written
    other = MLflow.of_run(description, uri="http://ann:pw@other", experiment=None)
    assert repr(other) == "MLflow('http://***@other', experiment='digits')"
    assert MLflow.of_run({"id": "old"}).describe()["uri"] is None


@pytest.mark.usefixtures("installed")
def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="artifacts is 'some'; expected 'all', 'best' or 'none'"):
        MLflow(artifacts="some")
    with pytest.raises(ConfigError, match="uri of MLflow is an int or empty"):
        MLflow(5000)  # type: ignore[arg-type]


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'sparkdl-platform\[mlflow\]'"):
        MLflow("http://mlflow:5000")


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="no client of MLflow")
def test_push_finds_the_arguments_of_a_derived_callback() -> None:
    team = type("Team", (MLflow,), {})("http://mlflow:5000", experiment="digits")
    # Another callback may describe itself in any way.
    description = {"id": "run", "callbacks": [{"kind": "other"}, team.describe()]}
    expected = "MLflow('http://mlflow:5000', experiment='digits')"
    assert repr(MLflow.of_run(description)) == expected


def test_tags_of_a_trial_keep_the_names_by_which_users_search(trial: Trial) -> None:
    trial.failure = "exception"
    trial.error = "ValueError: no"
    names = ("state", "seed", "configuration", "attempts", "failure")
    assert trial_tags(trial).keys() == {*(f"sparkdl.{name}" for name in names), NOTE}


def test_a_redirect_of_the_server_is_not_followed(receiver: Receiver) -> None:
    """It could lead to an address that only this host reaches."""
    receiver.codes = [302]
    _probe(receiver.address)
    assert [path for path, _, _ in receiver.posts] == ["/health"]
