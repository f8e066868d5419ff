"""Functions on modules that the program imports later."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from sparkdl.host.late_imports import after_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported."""
    name = f"late_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("import os\nfine = 1 / len(os.environ.get('LATE', ''))\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LATE", "1")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    return name


def test_a_module_that_was_only_looked_for_is_changed_when_it_is_imported(module: str) -> None:
    changed: list[str] = []
    after_import(module, lambda imported: changed.append(imported.__name__))
    assert importlib.util.find_spec(module)
    assert not changed
    importlib.import_module(module)
    importlib.import_module(module)
    assert changed == [module]


def test_an_import_that_fails_at_first_is_followed(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[float] = []
    after_import(module, lambda imported: changed.append(imported.fine))
    monkeypatch.setenv("LATE", "")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(module)
    monkeypatch.setenv("LATE", "1")
    importlib.import_module(module)
    assert changed == [1]
