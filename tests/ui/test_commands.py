"""Changes from the page: refused without permission, else those of any other process."""

from collections.abc import Iterator
from typing import Any

import pytest
from werkzeug.test import Client

from sparkdl import experiment
from sparkdl.runner.control import remote_driver as asking
from sparkdl.runner.loop import trial_loop
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from tests.helpers.in_memory_cluster import InMemoryCluster, returned
from tests.helpers.loops import background, new_loop, request_of
from tests.helpers.processes import eventually
from tests.helpers.stored_runs import ended
from tests.ui.pages import HEADERS, HOST, ORIGIN, client, get, post

URL = "/api/runs/run/control"


@pytest.fixture
def live(root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Client, InMemoryCluster]]:
    """The page of a run of three trials that goes on, with one slot; the page may change it."""
    monkeypatch.setattr(trial_loop, "LOCAL_POLL_S", 0.005)
    monkeypatch.setattr(asking, "LOOK_S", (0.005, 0.005))
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(3))) as loop:
        cluster.attempt(0)
        yield client(root, control=True), cluster
        if not loop.run.state.is_final:
            loop.cancel(None)


def send(page: Client, **content: Any) -> None:
    response = post(page, URL, content)
    assert response.status_code == 200, response.text


def test_pause_continue_set_and_enqueue(live: tuple[Client, InMemoryCluster], root: str) -> None:
    page, cluster = live
    send(page, action="pause")
    assert get(page, "/api/runs/run")["is_paused"]
    send(page, action="set", values={"parallelism": 2, "timeout_s": 1000})
    send(page, action="enqueue", params={"x": 7.5})
    overview = get(page, "/api/runs/run")
    assert sum(overview["counts"].values()) == 4
    assert overview["control"] is True
    send(page, action="unpause")
    assert not get(page, "/api/runs/run")["is_paused"]
    for number in range(4):
        cluster.attempt(number).end(returned(1.0))
    run = experiment.load(f"{root}/run").wait()
    assert [trial.params["x"] for trial in run.trials] == [0.0, 1.0, 2.0, 7.5]


def test_cancel_ends_a_trial_or_the_run(live: tuple[Client, InMemoryCluster], root: str) -> None:
    page, cluster = live
    send(page, action="cancel", trial=1)
    cluster.attempt(0).end(returned(1.0))
    cluster.attempt(2)
    assert eventually(lambda: str(experiment.load(f"{root}/run").trials[1].state) == "CANCELLED")
    send(page, action="cancel")
    assert eventually(lambda: str(experiment.load(f"{root}/run").state) == "CANCELLED")


def test_a_search_tells_how_many_trials_are_to_come(root: str) -> None:
    space = Space.of({"x": Float(0.0, 1.0)})
    settings = SearchSettings(space=space, algorithm="random", num_trials=10)
    cluster = InMemoryCluster(num_slots=1)
    page = client(root, control=True)
    with background(new_loop(root, cluster, request_of(search=settings, metric="x"))) as loop:
        cluster.attempt(0)
        send(page, action="set", values={"num_trials": 20})
        send(page, action="enqueue", params={"x": 0.25})
        overview = get(page, "/api/runs/run")
        assert overview["num_to_come"] + sum(overview["counts"].values()) == 21
        loop.cancel(None)
    assert get(client(root), "/api/runs/run")["num_to_come"] == 0


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ({"action": "set", "values": {"parallelism": 0}}, 400),
        ({"action": "set", "values": {"n_jobs": 4}}, 400),
        ({"action": "set", "values": {"self": 4}}, 400),
        ({"action": "set", "values": {"num_trials": 4}}, 409),
        ({"action": "enqueue", "params": {"y": 4}}, 409),
        ({"action": "cancel", "trial": 99}, 400),
        # None of these is taken for a command that ends the whole run.
        ({"action": "cancel", "trial": "1"}, 400),
        ({"action": "cancel", "trail": 1}, 400),
        ({"action": "delete"}, 400),
        ([], 400),
        ("cancel", 400),
    ],
)
def test_a_command_that_makes_no_sense_is_refused_with_the_reason(
    live: tuple[Client, InMemoryCluster], content: Any, status: int
) -> None:
    page, _ = live
    response = post(page, URL, content)
    assert response.status_code == status, response.text
    assert response.json["error"]
    assert get(page, "/api/runs/run")["state"] == "RUNNING"


def test_a_run_without_a_driver_gives_the_reason(root: str) -> None:
    ended(root, "run")
    response = post(client(root, control=True), URL, {"action": "pause"})
    assert response.status_code == 409
    assert "COMPLETE" in response.json["error"]


def test_tags_and_notes_are_written_at_any_time(root: str) -> None:
    ended(root, "run")
    page = client(root, control=True)
    send(page, action="tag", tags=["baseline", "old"])
    send(page, action="untag", tags=["old"])
    send(page, action="note", text="looks <b>good</b>")
    overview = get(page, "/api/runs/run")
    assert overview["tags"] == ["baseline"]
    assert overview["notes"][0]["text"] == "looks <b>good</b>"
    assert "&lt;b&gt;good" in overview["sections"]["head"]
    assert post(page, URL, {"action": "note", "text": ""}).status_code == 400


# ---- who may change anything

REFUSED = {
    "no permission": ({}, False),
    "no token": ({"Authorization": ""}, True),
    "wrong token": ({"Authorization": "Bearer other"}, True),
    "foreign page": ({"Origin": "http://evil.example"}, True),
    "page of another port": ({"Origin": "http://127.0.0.1:9000"}, True),
    "page without an origin": ({"Origin": "null"}, True),
    "foreign host": ({"Host": "evil.example", "Origin": "http://evil.example"}, True),
}


@pytest.mark.parametrize("why", REFUSED)
def test_no_change_without_permission_token_and_origin(root: str, why: str) -> None:
    opened = ended(root, "run")
    headers, control = REFUSED[why]
    page = client(root, control=control)
    response = post(page, URL, {"action": "tag", "tags": ["x"]}, **headers)
    assert response.status_code == 403
    assert opened.run.tags == []


def test_no_change_without_post_or_origin_or_json(root: str) -> None:
    opened = ended(root, "run")
    page, content = client(root, control=True), {"action": "tag", "tags": ["x"]}
    assert page.post(URL, headers=HEADERS, json=content).status_code == 403
    for method in ("GET", "PUT", "PATCH"):
        response = page.open(URL, method=method, headers={**HEADERS, "Origin": ORIGIN})
        assert response.status_code == 405
    # A form of another page can send text, but no JSON.
    response = page.post(
        URL,
        headers={**HEADERS, "Origin": ORIGIN, "Content-Type": "text/plain"},
        data='{"action": "tag", "tags": ["x"]}',
    )
    assert response.status_code == 415
    assert opened.run.tags == []
    assert HOST in ORIGIN
    assert post(page, URL, content).status_code == 200
    assert opened.run.tags == ["x"]


def test_a_read_only_page_says_how_to_change_runs(root: str) -> None:
    ended(root, "run")
    page = client(root)
    assert get(page, "/api/runs/run")["control"] is False
    assert "--control" in post(page, URL, {"action": "cancel"}).json["error"]
