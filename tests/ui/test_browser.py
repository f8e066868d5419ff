"""The page in Chromium: filter, compare, follow a search to its end, change it, 10 000 trials."""

import functools
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkdl import models
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.models.watch_files import ResultFiles, folder_of
from sparkdl.runner.control import remote_driver as asking
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from sparkdl.ui import Page, live_runs, serve
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import background, new_loop, request_of
from tests.helpers.saved_models import write_saved_model
from tests.helpers.stored_runs import ended, large
from tests.helpers.watch_results import START, write_windows
from tests.ui.browsers import browser_page, chromium
from tests.ui.pages import SCRIPT

pytestmark = pytest.mark.slow

NUM_TRIALS = 10_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A page that may change runs."""
    monkeypatch.setattr(asking, "LOOK_S", (0.01, 0.01))
    monkeypatch.setattr(live_runs, "LOOK_S", (0.1, 0.1))
    with serve(root, control=True) as page:
        yield page


def opened(browser: Any, page: Page, place: str = "/", **options: Any) -> Any:
    return browser_page(browser, page.url.replace("#/?", f"#{place}?"), **options)


def wait_for(tab: Any, condition: str) -> None:
    tab.wait_for_function(condition, polling=50)


def texts(tab: Any, selector: str) -> list[str]:
    return [text.strip() for text in tab.locator(selector).all_inner_texts()]


def test_runs_are_filtered_chosen_and_compared(root: str, browser: Any, page: Page) -> None:
    for number, tag in enumerate(("baseline", "wide", "deep")):
        ended(root, f"run-{number}", (0.5, 0.7 + number / 10)).run.tag(tag)
    with opened(browser, page) as tab:
        tab.wait_for_selector("text=run-2")
        assert "token" not in tab.url  # An address that is copied has no secret.
        tab.fill("#filter", "baseline lr=0.2")
        wait_for(tab, "document.querySelectorAll('#rows tr[tabindex]').length === 1")
        assert texts(tab, "#total") == ["1 of 3"]
        tab.fill("#filter", "")
        tab.click("th:has-text('best')")
        wait_for(tab, "document.querySelector('#rows tr[tabindex] a').textContent === 'run-0'")
        for run_id in ("run-0", "run-2"):
            tab.check(f"[aria-label='Compare {run_id}']")
        tab.click("#compare")
        tab.wait_for_selector("#figure-history .scatterlayer")
        assert {"baseline", "deep"} <= set(texts(tab, ".compared td"))
        assert texts(tab, ".compared td.best") == ["0.9"]
        tab.click("#home")
        tab.wait_for_selector("text=run-1")
        assert texts(tab, "#compare") == ["Compare 2"]


def test_a_notebook_shows_the_page_in_a_frame(
    root: str, browser: Any, page: Page, tmp_path: Path
) -> None:
    """Jupyter is another server on this host."""
    ended(root, "run-0")
    shown = f'<!DOCTYPE html><link rel="icon" href="data:,">{page.at("run-0")._repr_html_()}'
    (tmp_path / "lab.html").write_text(shown)
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = functools.partial(quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with browser_page(browser, f"http://localhost:{server.server_port}/lab.html") as tab:
            frame = tab.frame_locator("iframe")
            frame.locator("#head", has_text="COMPLETE").wait_for()
            frame.locator("#trial-rows tr[tabindex]").first.click()
            frame.locator("#trial-title", has_text="Trial 0").wait_for()
        server.shutdown()
        thread.join()


def test_no_token_no_runs(root: str, browser: Any, page: Page) -> None:
    ended(root, "run-0")
    for url in (page.url.split("?")[0], page.url + "x"):
        context = browser.new_context()
        tab = context.new_page()
        tab.goto(url)
        tab.wait_for_selector("#status:has-text('the token is missing or wrong')")
        assert "run-0" not in tab.content()
        context.close()


def test_scripts_of_users_do_not_run(root: str, browser: Any, page: Page) -> None:
    opened_run = ended(root, "run-0", (0.5, 0.75), ({SCRIPT: SCRIPT}, {SCRIPT: "b"}), user=SCRIPT)
    opened_run.run.tag(SCRIPT)
    opened_run.run.note(SCRIPT)
    ended(root, "run-1", (0.5, 0.75), name=SCRIPT)
    Path(opened_run.run.trials[0].path).mkdir(parents=True, exist_ok=True)
    Path(opened_run.run.trials[0].path, "log.txt").write_text(SCRIPT)
    storage.write(RunPaths(opened_run.run.path).source + "/function.py", SCRIPT)
    with opened(browser, page) as tab:
        tab.wait_for_selector("text=run-0")
        for place in ("run/run-0/trial/0", "compare/run-0,run-1"):
            tab.evaluate(f"location.hash = '#/{place}'")
            tab.wait_for_selector("#figure-history .scatterlayer", state="attached")
            if "trial" in place:
                wait_for(tab, "document.getElementById('log').textContent.includes('<script>')")
                wait_for(tab, "document.getElementById('code').textContent.includes('<script>')")
        assert tab.title() == "Comparison - sparkdl"
        assert tab.locator("img[src=x]").count() == 0


@pytest.mark.parametrize("what", ["parts/code*", "?version=*"])
def test_a_late_answer_is_not_shown_on_the_page_of_another_run(
    root: str, browser: Any, page: Page, what: str
) -> None:
    for name in ("run-0", "run-1"):
        run = ended(root, name).run
        storage.write(RunPaths(run.path).source + "/function.py", f"code of {name}")
    separator = "" if what.startswith("?") else "/"
    late = f"**/api/runs/run-0{separator}{what}"
    held: list[Any] = []
    with opened(browser, page) as tab:
        tab.route(late, lambda route: held.append(route))
        with tab.expect_request(late):
            tab.evaluate("location.hash = '#/run/run-0'")
        tab.evaluate("location.hash = '#/run/run-1'")
        wait_for(tab, "document.getElementById('code')?.textContent.includes('code of run-1')")
        with tab.expect_response(late):
            held[0].continue_()
        tab.evaluate("fetch('page.css').then((answer) => answer.text())")  # After what came before.
        assert "run-1" in tab.inner_text("#head") and "run-0" not in tab.inner_text("#page")


def test_a_search_is_followed_to_its_end(root: str, browser: Any, page: Page) -> None:
    half, gate = threading.Event(), threading.Event()

    def train(attempt: Attempt) -> Outcome:
        number, x = attempt.number, attempt.task.trial.params["x"]
        if number >= 25:
            half.set()
            gate.wait(240)
        for step in range(3):
            attempt.report(step, score=x * step / 2)
        Path(attempt.paths.folder, "log.txt").write_text(f"trial {number} is done\n")
        return raised("ValueError: unlucky") if number % 10 == 7 else returned(score=x)

    space = Space.of({"x": Float(0.0, 1.0), "depth": [1, 2, 3]})
    settings = SearchSettings(space=space, algorithm="random", num_trials=50)
    cluster = InMemoryCluster(train, num_slots=2)
    request = request_of(search=settings, metric="score", seed=1)
    with (
        background(new_loop(root, cluster, request)),
        opened(browser, page, "/run/run") as tab,
    ):
        assert half.wait(240)
        wait_for(tab, "document.querySelector('#head b')?.textContent === 'RUNNING'")
        wait_for(tab, "document.getElementById('legend').textContent.includes('complete')")
        assert "to come" in tab.inner_text("#legend")
        tab.wait_for_selector("#figure-history .scatterlayer")
        gate.set()
        wait_for(tab, "document.querySelector('#head b')?.textContent === 'COMPLETE'")
        wait_for(tab, "document.getElementById('legend').textContent.includes('45 complete')")
        assert texts(tab, "#legend span") == ["45 complete", "5 failed"]
        # The table below asks for its rows on its own.
        total = "section:has(#trial-rows) #total"
        wait_for(tab, f"document.querySelector('{total}').textContent === '50 trials'")
        for name in ("history", "curves", "parallel", "slices", "importance", "timeline"):
            tab.wait_for_selector(f"#figure-{name} .main-svg")
        wait_for(tab, "document.getElementById('figure-history').data[0].x.length === 45")
        tab.select_option("#state", "FAILED")
        wait_for(tab, "document.querySelectorAll('#trial-rows tr[tabindex]').length === 5")
        tab.click("#trial-rows tr[tabindex] >> nth=0")
        tab.wait_for_selector("#trial-error:has-text('Traceback')")
        wait_for(tab, "document.getElementById('log').textContent === 'trial 7 is done\\n'")
        assert tab.url.endswith("#/run/run/trial/7")
        tab.keyboard.press("Escape")
        wait_for(tab, "location.hash === '#/run/run'")


def test_the_log_of_the_next_attempt_takes_the_place_of_the_one_before(
    root: str, browser: Any, page: Page
) -> None:
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(1, max_restarts=1))):
        log = Path(cluster.attempt(0).paths.folder, "log.txt")
        log.write_text("one\n")
        with opened(browser, page, "/run/run/trial/0") as tab:
            wait_for(tab, "document.getElementById('log').textContent === 'one\\n'")
            log.write_text("a longer log of attempt two\n")
            cluster.attempt(0).end(raised("ValueError: no"))
            cluster.attempt(0, 1)
            text = "'a longer log of attempt two\\n'"
            wait_for(tab, f"document.getElementById('log').textContent === {text}")
        cluster.attempt(0, 1).end(returned(1.0))


def test_a_run_is_changed_from_the_page(root: str, browser: Any, page: Page) -> None:
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(2))) as loop:
        cluster.attempt(0)
        with opened(browser, page, "/run/run") as tab:
            tab.click("#pause")
            tab.wait_for_selector("#unpause")
            tab.click("summary:has-text('Add a trial')")
            tab.fill("form label:has-text('x') input", "7.5")
            tab.click("button:has-text('Add') >> nth=0")
            wait_for(tab, "document.getElementById('legend').textContent.includes('2 waiting')")
            # To a browser, these are the numbers 2 and 12345678901234567000.
            x = "#live-forms details:last-child input"
            for text in ("2.0", "12345678901234567891", "None", "relu"):
                wait_for(tab, f"document.querySelector({x!r}).value === ''")
                tab.fill(x, text)
                tab.click("button:has-text('Add') >> nth=0")
            wait_for(tab, f"document.querySelector({x!r}).value === ''")
            tab.click("summary:has-text('Note')")
            tab.fill("form label:has-text('note') input", "seen in the browser")
            tab.click("button:has-text('Write')")
            tab.wait_for_selector("#head:has-text('seen in the browser')")
            tab.click("button:has-text('Cancel the run')")
            tab.click("#yes")
            wait_for(tab, "document.querySelector('#head b')?.textContent === 'CANCELLED'")
            wait_for(tab, "document.getElementById('live-controls').hidden")
    added = [trial.params["x"] for trial in loop.run.trials[2:]]
    assert [*map(repr, added)] == ["7.5", "2.0", "12345678901234567891", "None", "'relu'"]


def test_models_lead_to_their_runs(root: str, browser: Any, page: Page, tmp_path: Path) -> None:
    saved = write_saved_model(tmp_path / "saved")
    for accuracy in (0.5, 0.75):
        models.export(saved, "digits", metrics={"accuracy": accuracy}, root=root)
    models.alias("digits", "stable", 2, root=root)
    watched = folder_of(models.get("digits", 2, root=root))
    write_windows(watched, {"age": ["ok", "drift"]})
    files = ResultFiles(watched)
    files.add_left_out(3, {"unreadable": {"num": 5, "example": "log.jsonl, byte 7"}})
    row = {"window": START, "version": 2, "metric": "mae", "requests": 600, "labelled": 500}
    files.write_performance([{**row, "value": 0.25}])
    with opened(browser, page, "/models") as tab:
        tab.wait_for_selector("text=stable")
        tab.click("a:has-text('2')")
        tab.wait_for_selector("h1:has-text('digits/2')")
        assert "x: float32 [any, 4]" in tab.inner_text("#model")
        assert "age" in tab.inner_text("section:has-text('Drift of its requests')")
        assert "byte 7" in tab.inner_text("section:has-text('Lines of the log')")
        assert "0.25" in tab.inner_text("section:has-text('Performance on its requests')")
        heights = "marks => marks.map(mark => mark.offsetHeight)"
        first, second = tab.eval_on_selector_all(".window", heights)
        assert second > first > 0


def test_ten_thousand_trials_without_a_pause(root: str, browser: Any, page: Page) -> None:
    large(root, "large", NUM_TRIALS)
    with opened(browser, page) as tab:
        tab.wait_for_selector("text=large")
        begun_s = time.monotonic()
        tab.click("text=large")
        tab.wait_for_selector("#trial-rows tr[tabindex]")
        assert time.monotonic() - begun_s < 60.0
        assert texts(tab, "section:has(#trial-rows) #total") == [f"{NUM_TRIALS} trials"]
        tab.wait_for_selector("#figure-timeline .main-svg")
        assert tab.locator("#trial-rows tr").count() < 100
        # The longest time for which the page answers to nothing.
        tab.evaluate(
            "() => { window.pauses = []; new PerformanceObserver((list) => "
            "window.pauses.push(...list.getEntries().map((e) => e.duration)))"
            ".observe({ entryTypes: ['longtask'] }); }"
        )
        tab.evaluate("document.getElementById('trial-rows').scrollTop = 30 * 9990")
        tab.wait_for_selector(f"#trial-rows td:text-is('{NUM_TRIALS - 1}')")
        tab.click("#trial-rows th:has-text('accuracy')")
        tab.click("#trial-rows th:has-text('accuracy')")
        tab.evaluate("document.getElementById('trial-rows').scrollTop = 0")
        wait_for(tab, "document.querySelector('#trial-rows tr[tabindex]')?.className === 'best'")
        tab.fill("#text", "act=relu nan")
        wait_for(
            tab,
            "parseInt(document.querySelector('section:has(#trial-rows) #total').textContent) < 200",
        )
        assert max(tab.evaluate("window.pauses"), default=0) < 6000
