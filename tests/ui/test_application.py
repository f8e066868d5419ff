"""The page in the browser, as the server answers: what a run, its trials and models look like."""

import gzip
import json
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from sparkdl import models
from sparkdl.files import storage
from sparkdl.models.watch_files import ResultFiles, folder_of
from sparkdl.runs import Run, owner
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.history import load
from sparkdl.runs.states import TrialState
from sparkdl.runs.views.report import PARTS, write_report
from sparkdl.ui import live_runs, refreshed, trial_table
from sparkdl.ui.live_runs import Snapshot
from tests.helpers.in_memory_cluster import InMemoryCluster, lost, returned
from tests.helpers.loops import background, new_loop, request_of, run_trials
from tests.helpers.processes import eventually
from tests.helpers.saved_models import write_saved_model
from tests.helpers.stored_runs import ended, started
from tests.helpers.watch_results import START, write_windows
from tests.ui.pages import HEADERS, client, get, mixed


@pytest.fixture
def run(root: str) -> Run:
    """Four trials, of which one fails with an error that would be a script in the page."""
    return run_trials(root, InMemoryCluster(mixed), 4)


def test_runs_are_listed_with_their_parameters_tags_and_times(root: str, run: Run) -> None:
    run.tag("baseline")
    ended(root, "other")
    (Path(root) / "broken").mkdir()
    (Path(root) / "broken" / "run.json").write_text("{")
    answer = get(client(root), "/api/runs")
    rows = {row["run"]: row for row in answer["runs"]}
    assert set(rows) == {"run", "other"}
    assert (rows["run"]["state"], rows["run"]["trials"], rows["run"]["FAILED"]) == (
        "COMPLETE",
        4,
        1,
    )
    assert rows["run"]["tags"] == ["baseline"]
    assert rows["other"]["param.lr"] == 0.2
    assert isinstance(rows["run"]["started"], float)
    assert [*answer["unreadable"]] == [f"{root}/broken"]
    assert answer["control"] is False


def test_a_copied_and_a_renamed_run_have_addresses_of_their_own(root: str) -> None:
    ended(root, "one", (0.5, 0.75))
    shutil.copytree(f"{root}/one", f"{root}/copy")
    ended(root, "two", (0.5, 0.9))
    Path(root, "two").rename(f"{root}/renamed")
    page = client(root)
    rows = {row["folder"]: row["run"] for row in get(page, "/api/runs")["runs"]}
    assert rows == {"one": "one", "copy": "one", "renamed": "two"}
    for folder, run_id in rows.items():
        assert get(page, f"/api/runs/{folder}")["id"] == run_id
        assert f"{root}/{folder}/" in get(page, f"/api/runs/{folder}/trials/0")["path"]
    answer = get(page, "/api/compare?run=copy&run=renamed")
    assert answer["folders"] == {"one": "copy", "two": "renamed"}


def test_a_list_that_is_known_is_not_sent_again(root: str, run: Run) -> None:
    page = client(root)
    version = get(page, "/api/runs")["version"]
    assert get(page, f"/api/runs?version={version}") == {"version": version}


def test_trials_are_sorted_chosen_and_divided_into_pages(root: str, run: Run) -> None:
    page, url = client(root), f"/api/runs/{run.id}/trials"

    def numbers(query: str) -> list[int]:
        return [row["number"] for row in get(page, f"{url}?{query}")["rows"]]

    assert numbers("") == [0, 1, 2, 3]
    assert numbers("offset=3") == [3]
    assert numbers("sort=param:x&descending=true") == [3, 2, 1, 0]
    # Trial 2 has failed: its last reported value counts.
    assert numbers("sort=value&descending=true") == [3, 2, 1, 0]
    assert numbers("sort=error") == [2, 0, 1, 3]
    assert numbers("state=FAILED") == [2]
    assert numbers("text=ONERROR") == [2]
    assert numbers("text=x%3D1.0") == [1]
    assert numbers("text=x%3D2+img") == [2]
    rows = get(page, url)["rows"]
    assert [row["is_best"] for row in rows] == [False, False, False, True]
    assert rows[2]["error"].startswith("ValueError: <img")  # Text, not HTML.


def test_a_trial_has_its_traceback_and_curves(root: str, run: Run) -> None:
    page = client(root)
    trial = get(page, f"/api/runs/{run.id}/trials/2")
    assert "Traceback" in trial["error"]
    assert (trial["state"], trial["params"], trial["attempts"]) == ("FAILED", {"x": 2.0}, 1)
    curves = get(page, f"/api/runs/{run.id}/trials/2/curves")
    assert curves["data"][0]["y"] == [0.5, 2.0]
    [best] = [row for row in get(page, f"/api/runs/{run.id}/trials")["rows"] if row["is_best"]]
    assert get(page, f"/api/runs/{run.id}/trials/{best['number']}")["is_best"]
    assert page.get(f"/api/runs/{run.id}/trials/4", headers=HEADERS).status_code == 404


def test_values_that_are_not_finite_come_last(root: str) -> None:
    nan, params = float("nan"), [{"x": 1.0}, {"x": float("nan")}, {"x": 2.0}, {"x": "a"}]
    opened = ended(root, "run", (0.5, 0.75), params)
    opened.run.apply(TrialChanged(number=2, state=TrialState.PRUNED, metrics={"accuracy": nan}))
    rows = trial_table.rows

    def numbers(sort: str, descending: bool) -> list[int]:
        chosen = {"sort": sort, "descending": descending, "state": "", "text": "", "offset": 0}
        return [row["number"] for row in rows(Snapshot("1", opened.run), **chosen)["rows"]]

    assert numbers("value", True) == [1, 0, 2, 3]
    assert numbers("value", False) == [0, 1, 2, 3]
    assert numbers("metric:accuracy", True) == [1, 0, 2, 3]
    assert numbers("param:x", False) == [0, 2, 3, 1]
    assert numbers("param:x", True) == [3, 2, 0, 1]


def test_a_log_is_followed(root: str, run: Run) -> None:
    trial = run.trials[0].path
    page, url = client(root), f"/api/runs/{run.id}/trials/0/log"
    assert get(page, url)["names"] == []
    storage.write(f"{trial}/log.txt", "epoch 1\nepoch 2\n")
    log = get(page, url)
    assert (log["text"], log["names"]) == ("epoch 1\nepoch 2\n", ["log.txt"])
    assert get(page, f"{url}?offset={log['offset']}")["text"] == ""
    storage.append(f"{trial}/log.txt", "epoch 3 ö".encode()[:-1])
    log = get(page, f"{url}?offset={log['offset']}")
    assert (log["text"], log["is_new"]) == ("epoch 3 ", False)
    storage.append(f"{trial}/log.txt", "ö".encode()[1:])
    assert get(page, f"{url}?offset={log['offset']}")["text"] == "ö"
    storage.write(f"{trial}/log.txt", "again\n")  # The log of another attempt.
    log = get(page, f"{url}?offset={log['offset']}")
    assert (log["text"], log["is_new"]) == ("again\n", True)


def test_the_end_of_a_long_log_is_shown(root: str, run: Run) -> None:
    storage.write(f"{run.trials[0].path}/log.txt", "x" * 99 + "\n" + ("y" * 99 + "\n") * 2000)
    log = get(client(root), f"/api/runs/{run.id}/trials/0/log")
    assert log["text"].startswith("y" * 99 + "\n")
    assert len(log["text"]) + log["skipped"] == 200_100
    far = get(client(root), f"/api/runs/{run.id}/trials/0/log?offset=100")
    assert (far["is_new"], len(far["text"])) == (False, 65_536)


def test_the_logs_of_a_gang_are_in_the_order_of_its_ranks(root: str, run: Run) -> None:
    for name in ("worker-10", "worker-2", "chief-0"):
        storage.write(f"{run.trials[0].path}/log-{name}.txt", name)
    log = get(client(root), f"/api/runs/{run.id}/trials/0/log?name=log-worker-2.txt")
    assert log["names"] == ["log-chief-0.txt", "log-worker-2.txt", "log-worker-10.txt"]
    assert log["text"] == "worker-2"


def test_figures_are_those_of_the_report(root: str, run: Run) -> None:
    page = client(root)
    figure = get(page, f"/api/runs/{run.id}/figures/history")
    assert figure["layout"]["title"]["text"] == "Trial by trial"
    assert get(page, f"/api/runs/{run.id}/figures/pareto") is None
    assert get(page, f"/api/runs/{run.id}/figures/none") is None


def test_sections_of_files_are_those_of_the_report(root: str, run: Run) -> None:
    """Images that trials have left, the data and the code are read anew for each page."""
    storage.write(storage.join(run.path, "trials/1/work/roc.svg"), "<svg></svg>")
    report = Path(write_report(run)).read_text()
    page, addresses = client(root), f"/api/runs/{run.id}/parts"
    shown = {name: get(page, f"{addresses}/{name}") for name in PARTS}
    assert get(page, f"/api/runs/{run.id}")["parts"] == list(shown)
    assert "roc.svg" in shown["images"]["text"]
    assert all(part["text"] in report for part in shown.values())
    known = shown["images"]["version"]
    assert get(page, f"{addresses}/images?version={known}") == {"version": known}
    assert get(page, f"{addresses}/none")["text"] is None


def test_numbers_that_are_not_finite_are_text(root: str) -> None:
    ended(root, "nan", (0.5,), ({"lr": float("nan"), "units": [1, 2]},))
    [row] = get(client(root), "/api/runs/nan/trials")["rows"]
    assert row["params"] == {"lr": "nan", "units": "[1, 2]"}


def test_a_large_answer_is_compressed(root: str) -> None:
    ended(root, "many", (0.5,) * 60, [{"lr": number / 60} for number in range(60)])
    response = client(root).get(
        "/api/runs/many/trials", headers={**HEADERS, "Accept-Encoding": "gzip"}
    )
    assert response.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(response.data))["total"] == 60


def test_runs_on_a_store_are_shown(tmp_path: Path) -> None:
    root = f"memory://{tmp_path.name}"
    opened = ended(root, "run")
    storage.write(f"{opened.run.trials[0].path}/log.txt", "epoch 1\n")
    page = client(root)
    assert get(page, "/api/runs/run")["counts"] == {"COMPLETE": 2}
    assert get(page, "/api/runs/run/trials/0/log")["text"] == "epoch 1\n"
    opened.run.tag("baseline")
    assert get(client(root), "/api/runs")["runs"][0]["tags"] == ["baseline"]


# ---- several runs, and models


def test_runs_are_compared(root: str) -> None:
    for number, best in enumerate((0.75, 0.9)):
        ended(root, f"run-{number}", (0.5, best), git_commit=f"commit{number}")
    page, query = client(root), "run=run-0&run=run-1"
    answer = get(page, f"/api/compare?{query}")
    assert answer["differences"]["result"]["best value"] == {"run-0": 0.75, "run-1": 0.9}
    assert answer["differences"]["environment"]["git commit"]["run-1"] == "commit1"
    assert answer["direction"] == "max"
    version = answer["version"]
    assert get(page, f"/api/compare?{query}&version={version}") == {"version": version}
    figure = get(page, f"/api/compare/figures/history?{query}")
    assert [trace["name"] for trace in figure["data"]] == ["run-0", "run-1"]
    assert get(page, f"/api/compare/figures/curves?{query}") is None
    assert page.get("/api/compare?run=run-0", headers=HEADERS).status_code == 400
    assert page.get("/api/compare?run=run-0&run=x", headers=HEADERS).status_code == 404


def test_more_runs_than_are_kept_are_compared(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_runs, "MAX_RUNS", 2)
    for number in range(4):
        ended(root, f"run-{number}")
    page, query = client(root), "&".join(f"run=run-{number}" for number in range(4))
    version = get(page, f"/api/compare?{query}")["version"]
    assert get(page, f"/api/compare?{query}&version={version}") == {"version": version}
    load(f"{root}/run-2").tag("baseline")
    assert "differences" in get(page, f"/api/compare?{query}&version={version}")


def test_a_model_shows_the_drift_of_its_requests(root: str, tmp_path: Path) -> None:
    version = models.export(write_saved_model(tmp_path / "saved"), "digits", root=root)
    assert version is not None
    page = client(root)
    assert get(page, "/api/models/digits/1")["drift"] == []
    hours = {"age": ["ok"] * 49 + ["too few rows"], "word": ["ok"] * 49 + ["drift"]}
    write_windows(folder_of(version), hours)
    word, age = get(page, "/api/models/digits/1")["drift"]
    assert (word["feature"], word["status"], word["value"]) == ("word", "drift", 0.3)
    assert (age["feature"], age["status"], age["rows"]) == ("age", "too few rows", 600)
    assert [window["status"] for window in age["windows"]] == ["ok"] * 47 + ["too few rows"]
    assert word["windows"][-1]["start"] == "2026-11-25 11:00 UTC"


def test_a_model_shows_its_performance_and_the_lines_left_out(root: str, tmp_path: Path) -> None:
    version = models.export(write_saved_model(tmp_path / "saved"), "digits", root=root)
    assert version is not None
    page = client(root)
    empty = get(page, "/api/models/digits/1")
    assert (empty["performance"], empty["left_out"]) == ([], [])
    files = ResultFiles(folder_of(version))
    files.add_left_out(3, {"unreadable": {"num": 5, "example": "log.jsonl, byte 7"}})
    row = {"version": 1, "metric": "mae", "requests": 600, "labelled": 500}
    windows = [START, START + timedelta(days=1)]
    files.write_performance(
        [{**row, "window": start, "value": 2.5 + day} for day, start in enumerate(windows)]
        + [{**row, "window": START, "version": None, "value": float("nan"), "metric": "rmse"}]
    )
    found = get(page, "/api/models/digits/1")
    assert found["left_out"] == [{"reason": "unreadable", "num": 5, "example": "log.jsonl, byte 7"}]
    newest, *others = found["performance"]
    assert newest == {**row, "window": "2026-11-24 10:00 UTC", "value": 3.5}
    (unknown,) = (row for row in others if row["metric"] == "rmse")
    assert unknown["version"] is None and unknown["value"] is None


def test_models_have_versions_aliases_and_lineage(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(root, "run-0")
    saved = write_saved_model(tmp_path / "saved")
    for number in range(2):
        models.export(saved, "digits", metrics={"accuracy": 0.5 + number}, root=root)
    models.alias("digits", "stable", 1, root=root)
    record = Path(root, "models/digits/1/model.json")
    known = json.loads(record.read_text())
    known |= {"run": "run-0", "trial": 1}
    known["lineage"] |= {"params": {"lr": 0.2}, "git_commit": "abc"}
    record.write_text(json.dumps(known))
    page = client(root)
    rows = get(page, "/api/models")["models"]
    assert [(row["model"], row["version"], row["aliases"]) for row in rows] == [
        ("digits", 1, ["stable"]),
        ("digits", 2, []),
    ]
    model = get(page, "/api/models/digits/1")
    assert (model["run"], model["trial"], model["params"]) == ("run-0", 1, {"lr": 0.2})
    assert model["lineage"]["git_commit"] == "abc"
    assert model["signature"]["inputs"]["x"]["shape"] == [None, 4]
    assert [move["version"] for move in model["moves"]] == [1]
    assert model["files"]["saved_model.pb"] > 0
    overview = get(page, "/api/runs/run-0")
    assert [row["version"] for row in overview["models"]] == [1]
    version = f"/api/runs/run-0?version={overview['version']}"
    assert [*get(page, version)] == ["version"]
    monkeypatch.setattr(live_runs, "LIST_S", (0.0, 0.0))
    monkeypatch.setattr(refreshed, "MAX_SHARE", 1e9)
    page = client(root)
    overview = get(page, "/api/runs/run-0")
    models.alias("digits", "canary", 1, root=root)
    version = f"/api/runs/run-0?version={overview['version']}"
    assert eventually(lambda: "models" in get(page, version))
    assert get(page, version)["models"][0]["aliases"] == ["canary", "stable"]
    for name in ("digits/9", "none/1", "..%2Frun-0/1"):
        assert page.get(f"/api/models/{name}", headers=HEADERS).status_code in (400, 404)


# ---- a run that goes on


@pytest.fixture
def live(root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Client, InMemoryCluster]]:
    """The page of a run of two trials that goes on."""
    monkeypatch.setattr(live_runs, "LOOK_S", (0.0, 0.0))
    monkeypatch.setattr(live_runs, "LIST_S", (0.0, 0.0))
    monkeypatch.setattr(refreshed, "MAX_SHARE", 1e9)
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(2))):
        cluster.attempt(0)
        yield client(root), cluster
        for number in range(2):
            cluster.attempt(number).end(returned(1.0))


def test_a_run_that_goes_on_is_read_again_when_it_has_changed(
    live: tuple[Client, InMemoryCluster],
) -> None:
    page, cluster = live
    assert eventually(lambda: get(page, "/api/runs/run")["counts"] == {"RUNNING": 2})
    overview = get(page, "/api/runs/run")
    assert overview["state"] == "RUNNING"
    known = overview["version"]
    assert get(page, f"/api/runs/run?version={known}") == {"version": known}
    cluster.attempt(0).end(returned(1.0))
    assert eventually(lambda: get(page, "/api/runs/run")["counts"].get("COMPLETE") == 1)
    assert eventually(lambda: get(page, "/api/runs")["runs"][0]["COMPLETE"] == 1)
    [row] = get(page, "/api/runs")["runs"]
    assert (row["run"], row["state"], row["trials"]) == ("run", "RUNNING", 2)


def test_a_run_of_another_host_is_followed_and_its_end_is_seen(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "is_here", lambda process: False)
    monkeypatch.setattr(live_runs, "LOOK_S", (0.0, 0.0))
    monkeypatch.setattr(owner, "BEAT_S", 1e5)  # No heartbeat is awaited.
    opened = started(root, "run")
    page = client(root)
    assert get(page, "/api/runs/run")["counts"] == {"WAITING": 2}
    opened.record(TrialChanged(number=0, state=TrialState.RUNNING, attempt=0))
    assert eventually(lambda: "RUNNING" in get(page, "/api/runs/run")["counts"])
    monkeypatch.setattr(live_runs, "DRIVER_S", 0.0)
    monkeypatch.setattr(owner, "BEAT_S", 0.01)
    opened.owner._release.set()  # The driver dies.
    assert eventually(lambda: get(page, "/api/runs/run")["state"] == "FAILED")
    opened.owner._write_beat(1)  # It was only slow.
    monkeypatch.setattr(owner, "BEAT_S", 60.0)
    assert eventually(lambda: get(page, "/api/runs/run")["state"] == "RUNNING")
    opened.owner._write_end()


def test_the_reports_of_a_running_trial_are_shown(live: tuple[Client, InMemoryCluster]) -> None:
    page, cluster = live

    def value() -> Any:
        return get(page, "/api/runs/run/trials")["rows"][0]["value"]

    assert value() is None
    for step, reported in enumerate((0.25, 0.75)):
        cluster.attempt(0).report(step, value=reported)
        assert eventually(lambda reported=reported: value() == reported)
    assert get(page, "/api/runs/run/figures/curves")["data"][0]["y"] == [0.25, 0.75]


def test_the_reports_of_the_next_attempt_are_shown(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_runs, "LOOK_S", (0.0, 0.0))
    monkeypatch.setattr(refreshed, "MAX_SHARE", 1e9)
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(1))):
        page = client(root)

        def value() -> Any:
            return get(page, "/api/runs/run/trials")["rows"][0]["value"]

        for step in range(3):
            cluster.attempt(0).report(step, value=0.5)
        assert eventually(lambda: value() == 0.5)
        cluster.attempt(0).end(lost())
        cluster.attempt(0, 1).report(0, value=0.25)  # A shorter file than that of attempt 0.
        assert eventually(lambda: value() == 0.25)
        cluster.attempt(0, 1).end(returned(1.0))


def test_a_run_that_was_deleted_is_gone(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_runs, "LOOK_S", (0.0, 0.0))
    monkeypatch.setattr(refreshed, "MAX_SHARE", 1e9)
    opened = ended(root, "run")
    page = client(root)
    assert get(page, "/api/runs/run")["state"] == "COMPLETE"
    opened.run.delete()
    assert eventually(
        lambda: page.get("/api/runs/run", headers=HEADERS).status_code == 404, seconds=5
    )
