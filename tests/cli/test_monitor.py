"""The `sparkdl monitor` command: its table, its exit codes, and its errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import models, monitoring
from sparkdl.cli.main import main
from tests.helpers.logs import PROFILE, add_requests, write_log
from tests.helpers.saved_models import write_saved_model

NAMES = ("--input", "x=age,other", "--column", "age", "--min-rows", "10")


@pytest.fixture
def run_cli(root: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the command; returns what it printed."""
    monkeypatch.setenv("SPARKDL_ROOT", root)
    features = {**PROFILE["features"], "other": PROFILE["features"]["age"]}
    path = write_saved_model(tmp_path / "prepared")
    models.export(path, "m", profile={**PROFILE, "features": features}, root=root)

    def run(*words: str, code: int = 0) -> str:
        assert main(["monitor", *words]) == code
        captured = capsys.readouterr()
        return str(captured.err if code == 2 else captured.out)

    return run


@pytest.mark.thorough
@pytest.mark.slow
def test_a_table_is_compared(spark: SparkSession, run_cli: Any, tmp_path: Path) -> None:
    same, other = str(tmp_path / "same"), str(tmp_path / "other")
    data = spark.range(1000).selectExpr("id / 1000 AS age", "IF(id % 2 = 0, 'a', 'b') AS word")
    data.write.parquet(same)
    data.selectExpr("age + 1 AS age", "word").write.parquet(other)
    columns = ("--column", "age", "--column", "word")
    assert run_cli("m", same, *columns).startswith("No feature of 2 has drifted\n")
    assert run_cli("m/1", other, *columns, code=1).startswith("1 of 2 features has drifted: age\n")
    found = json.loads(run_cli("m", other, *columns, "--metric", "ks", "--json", code=1))
    assert (found["drifted"], [row["metric"] for row in found["rows"]]) == (["age"], ["ks"])
    loose = ("--metric", "js", "--threshold", "js=0.05", "--threshold", "js:age=1.5")
    assert run_cli("m", other, "--column", "age", *loose[:4], code=1)
    assert run_cli("m", other, "--column", "age", "--metric", "js", *loose[4:])


@pytest.mark.slow
def test_a_log_is_compared_as_a_whole_and_by_window(
    spark: SparkSession, run_cli: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    for hour, high in enumerate((0, 5)):
        inputs = {"x": [[i / 100 + high, 0] for i in range(100)]}
        add_requests(log, hour, inputs=inputs, num=2, version=1)
        add_requests(log, hour, inputs=inputs, num=1, version=2)
    # All requests are older than the export of the version.
    assert run_cli("m", str(log), *NAMES).startswith("No rows to compare\n")
    since = (*NAMES, "--since", "2025-11-24")
    printed = json.loads(run_cli("m", str(log), *since, "--window-s", "3600", "--json", code=1))
    assert [row["status"] for row in printed["rows"]] == ["ok", "ok", "drift", "drift"]
    assert [row["rows"] for row in printed["rows"]] == [200] * 4
    add_requests(log, 2, inputs={"x": [[0, 0]]}, num=1, version=1)
    with (log / "other.jsonl").open("w") as file:
        file.write("no JSON\n")
    new = ("m", str(log), *since, "--available-now", "--json", "--late-s", "0")
    printed = json.loads(run_cli(*new, code=1))
    assert (printed["drifted"], printed["left_out"]["unreadable"]["num"]) == (["age"], 1)
    # Whether the scheduler has seen the exit code is not known here.
    assert json.loads(run_cli(*new, code=1))["drifted"] == ["age"]
    assert run_cli("m", str(log), "--acknowledge") == ""
    assert json.loads(run_cli(*new)) == {
        "drifted": [],
        "left_out": {},
        "remarks": [],
        "rows": [],
    }
    statuses = monitoring.results("m").table["status"].tolist()
    assert sorted(statuses) == ["drift"] * 2 + ["ok"] * 2 + ["other version"] * 4


@pytest.mark.slow
def test_errors_have_a_code_of_their_own(spark: SparkSession, run_cli: Any, tmp_path: Path) -> None:
    write_log(tmp_path / "log", [False])
    assert "there is no model 'n'" in run_cli("n", str(tmp_path), code=2)
    assert "TABLE_OR_VIEW_NOT_FOUND" in run_cli("m", "no_such_table", code=2)
    assert "PATH_NOT_FOUND" in run_cli("m", "/no/such/folder", code=2)
    message = run_cli("m", str(tmp_path / "log"), code=2)
    assert "'age' of the reference is no input and no output of the model" in message
    assert "--by is for a table" in run_cli("m", "log", "--available-now", "--by", "x", code=2)
    assert "are for the log of" in run_cli("m", str(tmp_path / "none"), "--window-s", "5", code=2)


@pytest.mark.parametrize("words", [("--threshold", "psi"), ("--input", "x")])
def test_words_that_cannot_be_read_are_refused(run_cli: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["monitor", "m", "log", *words])
    assert error.value.code == 2
