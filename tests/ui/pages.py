"""Requests to the page without a server, and runs to look at."""

from typing import Any

from werkzeug.test import Client

from sparkdl.ui.application import Application
from sparkdl.ui.live_runs import LiveRuns
from tests.helpers.in_memory_cluster import Attempt, raised, returned

__all__ = ["HEADERS", "ORIGIN", "SCRIPT", "TOKEN", "client", "get", "mixed", "post"]

TOKEN = "secret"
HOST = "127.0.0.1:8000"
ORIGIN = f"http://{HOST}"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Host": HOST}

# A text that would change the title of a page that took it for HTML.
SCRIPT = "<img src=x onerror=\"document.title='changed'\"><script>document.title='changed'</script>"


def client(root: str, **options: Any) -> Client:
    """A page of the runs below a root."""
    return Client(Application(LiveRuns(root), TOKEN, **options))


def get(page: Client, path: str, **headers: str) -> Any:
    """The answer to a request that must succeed."""
    response = page.get(path, headers={**HEADERS, **headers})
    assert response.status_code == 200, response.text
    return response.json


def post(page: Client, path: str, order: Any, **headers: str) -> Any:
    """The response to an order as the page itself sends it."""
    return page.post(path, headers={**HEADERS, "Origin": ORIGIN, **headers}, json=order)


def mixed(attempt: Attempt) -> Any:
    """Report two values and return the number of the trial; trial 2 fails, with a script."""
    number = attempt.task.trial.number
    attempt.report(0, value=0.5)
    attempt.report(1, value=float(number))
    return raised(f"ValueError: {SCRIPT}") if number == 2 else returned(number)
