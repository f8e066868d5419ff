"""The site of the documentation has every page, and every public name."""

import importlib
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparkdl
from tests.docs.pages import REPOSITORY
from tests.test_public_api import PUBLIC

CONF = REPOSITORY / "docs/conf.py"


@pytest.fixture
def conf(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of Sphinx."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    return runpy.run_path(str(CONF))


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that writes the reference."""
    monkeypatch.syspath_prepend(str(CONF.parent / "_site"))
    return importlib.import_module("reference")


def files_of(entry: str) -> set[Path]:
    return {p for p in REPOSITORY.glob(f"{entry}.*") if p.suffix in {".md", ".ipynb"}}


def test_the_menu_has_every_page_once(conf: dict[str, Any]) -> None:
    entries = [entry for pages in conf["navigation"].values() for entry in pages]
    listed = [path for entry in entries for path in files_of(entry)]
    written = {*REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("notebooks/*.ipynb")}
    assert sorted(set(listed)) == sorted(listed)
    assert written - set(listed) == {CONF.parent / "index.md"}
    assert [entry for entry in entries if not files_of(entry)] == ["docs/api/index"]


def test_every_page_shows_the_version(conf: dict[str, Any]) -> None:
    assert conf["version"] == conf["release"] == sparkdl.__version__
    assert conf["html_title"] == f"sparkdl {sparkdl.__version__}"


def test_the_start_page_links_to_every_page_but_notebooks(conf: dict[str, Any]) -> None:
    text = (CONF.parent / "index.md").read_text()
    pages = {path for pages in conf["navigation"].values() for e in pages for path in files_of(e)}
    links = {os.path.relpath(path, CONF.parent) for path in pages if path.suffix == ".md"}
    assert [link for link in sorted(links) if f"({link})" not in text] == []


def test_the_reference_has_every_public_name(reference: ModuleType) -> None:
    described = {module: set(reference.names_of(module)) for module in reference.modules()}
    for module, names in PUBLIC.items():
        public = importlib.import_module(module)
        modules = {n for n in names if isinstance(getattr(public, n), ModuleType | str)}
        hidden = reference.HIDDEN.get(module, set())
        assert set(names) - modules - hidden == described[module], module


def test_the_reference_has_every_command(reference: ModuleType) -> None:
    text = reference.pages()["command-line"]
    for command in ("runs", "show", "models export"):
        assert f"\nsparkdl {command}\n---" in text or f"\nsparkdl {command}\n^^^" in text
