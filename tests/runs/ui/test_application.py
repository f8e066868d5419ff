"""The page in the browser, as the server answers: who may ask, and what a run looks like."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from sparkdl import storage
from sparkdl.runs import Run
from sparkdl.runs.history import load
from sparkdl.runs.ui import serve
from sparkdl.runs.ui.application import Application
from sparkdl.runs.ui.live_runs import LiveRuns
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, raised, returned
from tests.helpers.loops import background, new_loop, request_of, run_trials

TOKEN = "secret"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Host": "127.0.0.1:8000"}


def client(root: str, **options: Any) -> Client:
    return Client(Application(LiveRuns(root, load), TOKEN, **options))


def get(page: Client, path: str, **headers: str) -> Any:
    response = page.get(path, headers={**HEADERS, **headers})
    assert response.status_code == 200, response.text
    return response.json


@pytest.fixture
def run(root: str) -> Run:
    """Four trials, of which one fails with an error that would be a script in the page."""

    def behave(attempt: Attempt) -> Any:
        number = attempt.task.trial.number
        attempt.report(0, value=0.5)
        attempt.report(1, value=float(number))
        return raised("ValueError: <script>alert(1)</script>") if number == 2 else returned(number)

    return run_trials(root, InMemoryCluster(behave), 4)


def test_nothing_is_told_without_the_token(root: str, run: Run) -> None:
    page = client(root)
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer other"}):
        for path in ("/api/runs", f"/api/runs/{run.id}", f"/api/runs/{run.id}/trials/0/log"):
            response = page.get(path, headers={**HEADERS, **headers})
            assert response.status_code == 403
            assert "COMPLETE" not in response.text
    assert page.get("/", headers={"Host": "localhost:8000"}).status_code == 200
    assert root not in page.get("/", headers=HEADERS).text


def test_a_page_of_another_host_gets_no_answer(root: str, run: Run) -> None:
    """A name of a foreign page may be made to lead to this host."""
    for host in ("evil.example", "127.0.0.1.evil.example"):
        assert client(root).get("/api/runs", headers={**HEADERS, "Host": host}).status_code == 403


def test_only_scripts_of_the_page_run(root: str, run: Run) -> None:
    page = client(root)
    policy = page.get("/", headers=HEADERS).headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    overview = get(page, f"/api/runs/{run.id}")
    assert "&lt;script&gt;" in overview["sections"]["failures"]
    assert "<script" not in json.dumps(overview)


@pytest.mark.parametrize("name", ["..", ".", "../secret", "%2e%2e", "no-such-run"])
def test_only_runs_below_the_root_are_shown(root: str, run: Run, name: str) -> None:
    secret = Path(root).parent / "secret"
    secret.mkdir(exist_ok=True)
    (secret / "run.json").write_text("{}")
    response = client(root).get(f"/api/runs/{name}", headers=HEADERS)
    assert response.status_code == 404


def test_a_log_is_the_only_file_that_is_read(root: str, run: Run) -> None:
    trial = run.trials[0].path
    storage.write(f"{trial}/log.txt", "epoch 1\nepoch 2\n")
    page, url = client(root), f"/api/runs/{run.id}/trials/0/log"
    log = get(page, url)
    assert (log["text"], log["names"]) == ("epoch 1\nepoch 2\n", ["log.txt"])
    assert get(page, f"{url}?offset={log['offset']}")["text"] == ""
    storage.append(f"{trial}/log.txt", b"epoch 3\n")
    assert get(page, f"{url}?offset={log['offset']}")["text"] == "epoch 3\n"
    for name in ("params.json", "../../run.json"):
        assert get(page, f"{url}?name={name}")["name"] == "log.txt"
    assert page.get(f"/api/runs/{run.id}/trials/99/log", headers=HEADERS).status_code == 404


def test_the_end_of_a_long_log_is_shown(root: str, run: Run) -> None:
    storage.write(f"{run.trials[0].path}/log.txt", "x" * 200_000 + "end")
    log = get(client(root), f"/api/runs/{run.id}/trials/0/log")
    assert log["text"].endswith("end")
    assert len(log["text"]) + log["skipped"] == 200_003


def test_trials_are_sorted_chosen_and_divided_into_pages(root: str, run: Run) -> None:
    page, url = client(root), f"/api/runs/{run.id}/trials"

    def numbers(query: str) -> list[int]:
        return [row["number"] for row in get(page, f"{url}?{query}")["rows"]]

    assert numbers("") == [0, 1, 2, 3]
    assert numbers("offset=3") == [3]
    assert numbers("sort=param:x&descending=true") == [3, 2, 1, 0]
    assert numbers("sort=value&descending=true") == [3, 2, 1, 0]
    assert numbers("state=FAILED") == [2]
    assert numbers("text=ALERT") == [2]
    assert numbers("text=x%3D1.0") == [1]
    rows = get(page, url)["rows"]
    assert [row["is_best"] for row in rows] == [False, False, False, True]
    assert rows[2]["error"].startswith("ValueError: <script>")  # Text, not HTML.


def test_figures_are_those_of_the_report(root: str, run: Run) -> None:
    page = client(root)
    figure = get(page, f"/api/runs/{run.id}/figures/history")
    assert figure["layout"]["title"]["text"] == "Trial by trial"
    assert get(page, f"/api/runs/{run.id}/figures/pareto") is None
    assert get(page, f"/api/runs/{run.id}/figures/none") is None


@pytest.fixture
def live(root: str) -> Iterator[tuple[Client, InMemoryCluster]]:
    """The page of a run of two trials that goes on."""
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(2))):
        cluster.attempt(0)
        yield client(root), cluster
        for number in range(2):
            cluster.attempt(number).end(returned(1.0))


def test_a_run_that_goes_on_is_read_again_when_it_has_changed(
    live: tuple[Client, InMemoryCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparkdl.runs.ui import live_runs
    from tests.helpers.processes import eventually

    monkeypatch.setattr(live_runs, "LOOK_S", 0.0)
    monkeypatch.setattr(live_runs, "MAX_SHARE", 1e9)
    page, cluster = live
    before = get(page, "/api/runs/run")
    assert before["state"] == "RUNNING"
    assert get(page, f"/api/runs/run?version={before['version']}") == {"version": before["version"]}
    cluster.attempt(0).end(returned(1.0))
    assert eventually(lambda: get(page, "/api/runs/run")["counts"].get("COMPLETE") == 1)
    [row] = get(page, "/api/runs")["runs"]
    assert (row["run"], row["state"], row["trials"]) == ("run", "RUNNING", 2)


def test_a_page_without_control_changes_nothing(live: tuple[Client, InMemoryCluster]) -> None:
    page, _ = live
    answer = page.post("/api/runs/run/control", headers=HEADERS, json={"action": "cancel"})
    assert answer.status_code == 403
    assert "--control" in answer.text


def test_the_server_listens_on_loopback_and_frees_its_port(root: str) -> None:
    import socket
    import urllib.request

    with serve(root) as page:
        host, port = re.match(r"http://([^:]+):(\d+)/", page.url).groups()  # type: ignore[union-attr]
        assert host == "127.0.0.1"
        assert b"sparkdl" in urllib.request.urlopen(f"http://{host}:{port}/").read()
        assert "token=" in page.url.split("#")[1]  # It is sent to no server.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", int(port)))
