"""A figure in a notebook has its data for JupyterLab, and HTML for exported pages."""

from types import SimpleNamespace
from typing import Any

import IPython
import IPython.display
import plotly.io
import pytest

from sparkdl.runs import Run, Trial
from sparkdl.runs.views.figures import notebook_figure, plot
from sparkdl.runs.views.figures.notebook_figure import NotebookFigure


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The bundles that are displayed, as in a new kernel of JupyterLab."""
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: shown.append(bundle))
    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")
    monkeypatch.setattr(notebook_figure, "_shown", notebook_figure._Shown())
    return shown


def figure(name: str = "x") -> Any:
    trials = [Trial(i, {name: i}, "", state="COMPLETE", value=i / 2) for i in range(3)]  # type: ignore[arg-type]
    return plot(Run("r", "", name, "launch", trials=trials), "history")


def in_cell(monkeypatch: pytest.MonkeyPatch, cell: str | None) -> None:
    parent = {"metadata": {"cellId": cell} if cell else {}}
    kernel = SimpleNamespace(get_parent=lambda: parent)
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=kernel))


def test_only_one_cell_has_the_library(
    shown: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for cell in ("a", "b", "b", "a"):  # Cell a is run again in the end.
        in_cell(monkeypatch, cell)
        figure()._ipython_display_()
    assert [len(bundle["text/html"]) > 1_000_000 for bundle in shown] == [True, False, False, True]
    assert all("application/vnd.plotly.v1+json" in bundle for bundle in shown)
    assert all("https://cdn.plot.ly/plotly-" in bundle["text/html"] for bundle in shown)


def test_a_frontend_that_does_not_name_its_cells(
    shown: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_cell(monkeypatch, None)
    figure().show()
    figure().show()
    assert [len(bundle["text/html"]) > 1_000_000 for bundle in shown] == [True, False]


def test_text_of_the_user_cannot_end_the_script() -> None:
    html = notebook_figure.figure_html(figure("</script><script>alert(1)"), has_library=False)
    assert html.count("</script>") == 1
    assert "alert(1)" in html


def test_a_renderer_that_the_user_has_chosen_is_used(
    shown: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Any] = []
    monkeypatch.setattr(plotly.io.renderers, "default", "png")
    monkeypatch.setattr(plotly.io, "show", used.append)
    chosen = figure()
    assert isinstance(chosen, NotebookFigure)
    chosen._ipython_display_()
    assert used == [chosen]
    assert not shown
