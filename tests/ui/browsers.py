"""A real browser without a window."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["browser_page", "chromium"]

COMMANDS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """A running Chromium; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next(filter(None, map(shutil.which, COMMANDS)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(COMMANDS)} is installed")
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def browser_page(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A tab with an address; whatever the page logs as an error fails the test."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    errors: list[str] = []
    tab = context.new_page()
    tab.set_default_timeout(120_000)
    tab.on("console", lambda message: message.type == "error" and errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(url)
    yield tab
    context.close()
    assert not errors, errors
