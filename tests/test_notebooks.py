"""The notebooks run from top to bottom in a real Jupyter kernel, and are kept without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbmake.nb_run import NotebookRun

from sparkdl import experiment

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(notebook: Path) -> None:
    read = nbformat.read(notebook, as_version=4)
    code = [cell for cell in read.cells if cell.cell_type == "code"]
    assert code
    assert [cell.outputs for cell in code] == [[]] * len(code)
    assert {cell.execution_count for cell in code} == {None}
    # The state of widgets holds outputs too.
    assert set(read.metadata) == {"kernelspec", "language_info"}


@pytest.mark.slow
def test_first_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path))
    notebook = next(path for path in NOTEBOOKS if path.stem == "first_grid")
    result = NotebookRun(notebook, default_timeout=300).execute()
    assert result.error is None, result.error.trace
    runs = experiment.history(str(tmp_path))
    assert len(runs) == 1
    run = experiment.load(runs["path"][0])
    assert run.counts() == {"COMPLETE": 6}
    assert "6 of 6 trials complete" in _html_of(result.nb, "run")
    cells = Path(run.path, "source/cells.py").read_text()
    code = [cell.source for cell in result.nb.cells if cell.cell_type == "code"]
    assert all(cell in cells for cell in code[: code.index("run")])


@pytest.mark.slow
def test_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path))
    notebook = next(path for path in NOTEBOOKS if path.stem == "search")
    result = NotebookRun(notebook, default_timeout=300).execute()
    assert result.error is None, result.error.trace
    run = experiment.load(experiment.history(str(tmp_path))["path"][0])
    assert len(run.trials) == 25
    assert run.counts()["PRUNED"] > 3
    assert "of 20 trials complete" in _html_of(result.nb, "run")
    plot = next(cell for cell in result.nb.cells if cell.source == 'run.plot("curves")')
    assert "application/vnd.plotly.v1+json" in plot.outputs[0]["data"]
    assert Path(run.path, "report.html").exists()


def _html_of(notebook: nbformat.NotebookNode, source: str) -> str:
    """What a cell with this source showed as HTML."""
    cell = next(cell for cell in notebook.cells if cell.source == source)
    html: str = cell.outputs[0]["data"]["text/html"]
    return html
