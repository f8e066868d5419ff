"""The page and who may ask: tokens, hosts, origins, files, scripts of users."""

import contextlib
import http.client
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.runs import Run
from sparkdl.ui import serve
from tests.helpers.descriptors import many_open_files
from tests.helpers.in_memory_cluster import InMemoryCluster
from tests.helpers.loops import run_trials
from tests.helpers.stored_runs import ended
from tests.ui.pages import HEADERS, SCRIPT, client, get, mixed

PATHS = (
    *("/api/runs", "/api/runs/run", "/api/runs/run/trials", "/api/runs/run/trials/0"),
    *("/api/runs/run/trials/0/log", "/api/runs/run/figures/history", "/api/models"),
    "/api/compare?run=run&run=run",
)


@pytest.fixture
def run(root: str) -> Run:
    return run_trials(root, InMemoryCluster(mixed), 4)


def test_nothing_is_told_without_the_token(root: str, run: Run) -> None:
    page = client(root)
    for authorization in ("", "Bearer", "Bearer other", "Basic secret", "bearer secrét"):
        for path in PATHS:
            response = page.get(path, headers={**HEADERS, "Authorization": authorization})
            assert response.status_code == 403
            assert "COMPLETE" not in response.text and root not in response.text
    assert page.get("/api/runs?token=secret", headers={"Host": "localhost"}).status_code == 403
    assert page.get("/", headers={"Host": "localhost:8000"}).status_code == 200
    assert root not in page.get("/", headers=HEADERS).text


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "192.168.0.2:80"]
)
def test_a_page_of_another_host_gets_no_answer(root: str, run: Run, host: str) -> None:
    """A name of a foreign page may be made to lead to this host."""
    for path in ("/", "/api/runs"):
        assert client(root).get(path, headers={**HEADERS, "Host": host}).status_code == 403


def test_only_scripts_of_the_page_run(root: str, run: Run) -> None:
    page = client(root)
    for path in ("/", "/app.js", "/api/runs", "/api/none", "/api/runs/none"):
        headers = page.get(path, headers=HEADERS).headers
        policy = dict(
            part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert "'self'" in policy["script-src"] and "inline" not in policy["script-src"]
        assert policy["connect-src"] == "'self'"
        assert "*:" not in policy["frame-ancestors"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
    assert page.get("/api/runs", headers=HEADERS).headers["Cache-Control"] == "no-store"


def test_texts_of_users_are_escaped(root: str) -> None:
    """Parameters, errors, names, tags and notes are no HTML wherever the server makes HTML."""
    opened = ended(root, "run", (0.5,), ({SCRIPT: SCRIPT},), name=SCRIPT, user=SCRIPT)
    opened.run.tag(SCRIPT.replace(",", ""))
    opened.run.note(SCRIPT)
    overview = get(client(root), "/api/runs/run")
    for text in overview["sections"].values():
        assert "<script" not in text and "<img" not in text
    assert "&lt;script&gt;" in overview["sections"]["best"]
    failing = run_trials(root, InMemoryCluster(mixed), 4, run_id="failing")
    texts = get(client(root), f"/api/runs/{failing.id}")["sections"]
    assert "&lt;img" in texts["failures"] and "<img" not in texts["failures"]
    figure = client(root).get("/api/runs/failing/figures/history", headers=HEADERS).text
    assert "<img" not in figure


@pytest.mark.parametrize(
    "name", ["..", ".", "../secret", "..%2Fsecret", "%2e%2e", "%2e%2e%2fsecret", "none", "models"]
)
def test_only_runs_below_the_root_are_shown(root: str, name: str) -> None:
    inner = f"{root}/inner"
    ended(inner, "run")
    ended(root, "secret")
    # The root itself is in a run directory.
    storage.write(f"{root}/run.json", storage.read(f"{inner}/run/run.json"))
    response = client(inner).get(f"/api/runs/{name}", headers=HEADERS)
    assert response.status_code == 404
    assert "COMPLETE" not in response.text


@pytest.mark.parametrize("name", ["..%2Fserver.py", "server.py", "static", "%2e%2e/server.py"])
def test_only_files_of_the_page_are_served(root: str, name: str) -> None:
    assert client(root).get(f"/{name}", headers=HEADERS).status_code == 404


def test_a_log_is_the_only_file_that_is_read(root: str, run: Run) -> None:
    storage.write(f"{run.trials[0].path}/log.txt", "epoch 1\n")
    page, url = client(root), "/api/runs/run/trials/0/log"
    for name in ("params.json", "../../run.json", "..%2F1%2Flog.txt", "/etc/passwd"):
        assert get(page, f"{url}?name={name}")["text"] == "epoch 1\n"
    for number in ("99", "-1", "0%2F..%2F1"):
        response = page.get(f"/api/runs/run/trials/{number}/log", headers=HEADERS)
        assert response.status_code == 404


def test_no_address_but_that_of_commands_takes_anything(root: str, run: Run) -> None:
    page = client(root, control=True)
    for path in (*PATHS, "/"):
        for method in ("POST", "PUT", "DELETE"):
            assert page.open(path, method=method, headers=HEADERS).status_code == 405
    assert page.get("/api/runs/run/control", headers=HEADERS).status_code == 405


# ---- the server


def test_the_server_listens_on_loopback_and_frees_its_port(root: str, run: Run) -> None:
    with serve(root) as page:
        host, port = re.match(r"http://([^:]+):(\d+)/", page.url).groups()  # type: ignore[union-attr]
        assert host == "127.0.0.1"
        assert b"sparkdl" in urllib.request.urlopen(f"http://{host}:{port}/").read()
        token = page.url.split("#")[1].partition("token=")[2]  # It is sent to no server.
        request = urllib.request.Request(f"http://{host}:{port}/api/runs")
        with pytest.raises(urllib.error.HTTPError, match="403") as caught:
            urllib.request.urlopen(request)
        caught.value.close()
        request.add_header("Authorization", f"Bearer {token}")
        assert b'"run": "run"' in urllib.request.urlopen(request).read()
        with pytest.raises(ConfigError, match=f"port is {port}"):
            serve(root, port=int(port))
    assert not page.is_served
    serve(root, port=int(port)).stop()


def test_the_server_stops_amid_requests(root: str, run: Run) -> None:
    """Each answer wakes up the thread of the server, at a time when it may be closing."""
    for _ in range(10):
        with serve(root) as page:
            address = page.url.partition("#")[0]
            threads = [threading.Thread(target=_ask, args=(address,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            urllib.request.urlopen(address).read()
        for thread in threads:
            thread.join()
    assert not [thread for thread in threading.enumerate() if "waitress" in thread.name]


def test_the_end_of_an_answer_may_wake_the_server_just_before_stop_does(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = serve(root)
    trigger = page._server.trigger
    wake = trigger._physical_pull

    def woken_before() -> None:
        wake()
        page._thread.join(0.5)  # It would close the trigger now.
        wake()

    monkeypatch.setattr(trigger, "_physical_pull", woken_before)
    page.stop()
    assert not page.is_served


def _ask(address: str) -> None:
    """Ask until the server is gone."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            urllib.request.urlopen(address, timeout=120).read()


def test_the_server_answers_beside_many_open_files(root: str) -> None:
    with many_open_files(), serve(root) as page:
        address = page.url.partition("#")[0]
        assert b"sparkdl" in urllib.request.urlopen(address, timeout=120).read()


def test_run_ui_prints_the_address_and_shares_a_server(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = [ended(root, name).run.ui() for name in ("one", "two")]
    try:
        assert f"Run one is shown at {pages[0].url}" in capsys.readouterr().out
        assert "#/run/two?token=" in pages[1].url
        assert pages[0].url.split("/#")[0] == pages[1].url.split("/#")[0]
        assert f'src="{pages[1].url}"' in pages[1]._repr_html_()
    finally:
        pages[0].stop()
    again = ended(root, "three").run.ui()
    assert again.is_served
    again.stop()


def test_a_notebook_prints_no_address(
    root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl.ui.server.is_notebook", lambda: True)
    page = ended(root, "run").run.ui()
    page.stop()
    assert capsys.readouterr().out == ""
    assert "<iframe" in page._repr_html_()


def test_a_program_ends_with_its_page_open(root: str) -> None:
    ended(root, "run")
    code = f"from sparkdl.experiment import load; load({root + '/run'!r}).ui()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "is shown at http://127.0.0.1:" in done.stdout


def test_the_command_names_its_root_and_address(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sparkdl.cli.main import main
    from sparkdl.ui import Page

    def interrupted(page: Page) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Page, "wait", interrupted)
    assert main(["ui", root]) == 130
    printed = capsys.readouterr().out
    assert root in printed and "#/?token=" in printed


def test_packages_that_are_missing_are_named(root: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "waitress", None)
    with pytest.raises(ConfigError, match=r"pip install 'sparkdl-platform\[ui\]'"):
        serve(root)
