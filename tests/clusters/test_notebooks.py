"""The notebooks run from top to bottom in a real Jupyter kernel, and are kept without outputs."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

from sparkdl import experiment, models
from sparkdl.runs import Run
from tests.helpers.kernels import Kernel, html_of, outputs_of, text_of
from tests.helpers.processes import eventually, processes_of

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

# In a saved notebook, all outputs of a cell together; plotly.js is in the output of one figure.
MAX_OUTPUTS = 8
MAX_BYTES = 60_000
LIBRARY_BYTES = 3_000_000

RunNotebook = Callable[[str], nbformat.NotebookNode]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(notebook: Path) -> None:
    read = nbformat.read(notebook, as_version=4)
    code = [cell for cell in read.cells if cell.cell_type == "code"]
    assert code
    assert [cell.outputs for cell in code] == [[]] * len(code)
    assert {cell.execution_count for cell in code} == {None}
    # The state of widgets holds outputs too.
    assert set(read.metadata) == {"kernelspec", "language_info"}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_how_long_it_takes_and_links_to_files_that_exist(notebook: Path) -> None:
    read = nbformat.read(notebook, as_version=4)
    texts = [cell.source for cell in read.cells if cell.cell_type == "markdown"]
    assert texts[0].startswith("# ")
    assert re.search(r"takes about .* on a\s+laptop", texts[0])
    for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(texts)):
        if not target.startswith("https://"):
            assert (FOLDER / target.partition("#")[0]).exists(), target


def test_the_page_of_notebooks_lists_all_of_them() -> None:
    page = (FOLDER.parent / "docs/notebooks.md").read_text()
    linked = re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\)", page)
    assert sorted(linked) == [path.stem for path in NOTEBOOKS]


# ---- in a kernel


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.stop()


@pytest.fixture
def run_notebook(kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunNotebook:
    """Runs a notebook by its name; its runs are then those of this process, too."""
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> nbformat.NotebookNode:
        kernel.begin(tmp_path)
        notebook = kernel.run_notebook(FOLDER / f"{name}.ipynb")
        assert_readable(notebook)
        return notebook

    return run


def assert_readable(notebook: nbformat.NotebookNode) -> None:
    """No cell floods the notebook, or shows what TensorFlow and Spark print when they start."""
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        text = json.dumps(outputs)
        has_library = "DecompressionStream" in text
        assert len(outputs) <= MAX_OUTPUTS, cell.source
        assert len(text) < (LIBRARY_BYTES if has_library else MAX_BYTES), cell.source
        printed = "".join(o.text for o in outputs if o.get("name") == "stderr")
        errors = [line for line in printed.splitlines() if " WARN " not in line]  # Spark's log.
        assert not errors, (cell.source, errors)
        assert has_library or "0/0" not in text


def runs() -> list[Run]:
    """The runs of this test, oldest first."""
    files = sorted(Path("runs").glob("*/run.json"), key=lambda file: file.stat().st_mtime_ns)
    return [experiment.load(file.parent) for file in files]


@pytest.mark.slow
def test_first_grid(run_notebook: RunNotebook) -> None:
    notebook = run_notebook("first_grid")
    (run,) = runs()
    assert run.counts() == {"COMPLETE": 6}
    assert run.best.value > 0.9
    launched = outputs_of(notebook, "run = experiment.launch")
    bars = [o.data["text/plain"] for o in launched if "data" in o]
    assert len(bars) == 1
    assert bars[0].startswith("digits: 6 of 6 trials ended · complete 6 · best 0.9")
    assert "6 of 6 trials complete" in html_of(notebook, "run")
    cells = Path(run.path, "source/cells.py").read_text()
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell in cells for cell in code[: code.index("run")])


@pytest.mark.slow
def test_search(run_notebook: RunNotebook) -> None:
    notebook = run_notebook("search")
    (run,) = runs()
    assert len(run.trials) == 25
    assert run.counts()["PRUNED"] > 3
    assert run.best.value > 0.9
    assert "of 20 trials complete" in html_of(notebook, "run")
    (figure,) = outputs_of(notebook, 'run.plot("curves")')
    assert "application/vnd.plotly.v1+json" in figure["data"]
    assert Path(run.path, "report.html").exists()
    # An exported page draws the figures without a network: the first one brings plotly.js.
    pages = [html_of(notebook, f'run.plot("{name}")') for name in ("curves", "parallel")]
    assert ["Plotly.newPlot" in page for page in pages] == [True, True]
    assert [len(page) > 1_000_000 for page in pages] == [True, False]


@pytest.mark.slow
def test_language_models(run_notebook: RunNotebook) -> None:
    pytest.importorskip("peft")
    notebook = run_notebook("language_models")
    adapted, compared = runs()
    assert adapted.best.value > 0.9
    values = {(t.params["model"], t.params["task"]): t.outputs for t in compared.trials}
    assert values["adapted", "topic"]["low"] > 0.8 > values["base", "topic"]["high"]
    assert values["adapted", "length"]["accuracy"] < 0.7
    assert "continued" in html_of(notebook, "scored.limit")


@pytest.mark.slow
def test_distributed_keras(run_notebook: RunNotebook) -> None:
    notebook = run_notebook("distributed_keras")
    alone, together = runs()
    assert together.result["accuracy"] == pytest.approx(alone.result["accuracy"], abs=0.05)
    assert "allreduce" in html_of(notebook, "experiment.compare")
    printed = text_of(notebook, "from pathlib")
    assert re.findall(r"^log-worker-(\d).txt ends with: ", printed, re.M) == ["0", "1"]
    assert "accuracy" in printed


@pytest.mark.slow
def test_dataframe(run_notebook: RunNotebook) -> None:
    notebook = run_notebook("dataframe")
    run, _ = runs()
    assert run.result["accuracy"] > 0.8
    numbers = re.search(r"(\d+) rows to train with, (\d+)", text_of(notebook, "scaled ="))
    assert numbers
    assert [record["rows"] for record in run.trials[0].data] == [int(n) for n in numbers.groups()]
    shapes = text_of(notebook, "def first_batch")
    assert "'pixels': [32, 64]" in shapes


@pytest.mark.slow
def test_petastorm(run_notebook: RunNotebook) -> None:
    notebook = run_notebook("petastorm")
    (run,) = runs()
    assert run.result["accuracy"] > 0.8
    assert [record["rows"] for record in run.trials[0].data] == [1797]
    assert "image (8, 8) of float" in text_of(notebook, "import warnings")


@pytest.mark.slow
def test_parameter_server(run_notebook: RunNotebook) -> None:
    run_notebook("parameter_server")
    (run,) = runs()
    assert run.result["accuracy"] > 0.9
    losses = run.trials[0].history["loss"]
    assert losses.iloc[-1] < losses.iloc[0] / 2


@pytest.mark.slow
def test_compare_and_reproduce(run_notebook: RunNotebook) -> None:
    notebook = run_notebook("compare_and_reproduce")
    near, flat, again = runs()
    assert again.reproduces == near.id
    assert [trial.value for trial in again.trials] == [trial.value for trial in near.trials]
    assert "folds.json" in text_of(notebook, 'Path("folds.json")')
    found = html_of(notebook, "found =")
    assert near.id in found
    assert flat.id in found
    assert "hundredth of the memory" in found
    assert "Plotly" in html_of(notebook, "comparison.figure")
    assert str(near.best.value) in text_of(notebook, "near.best.debug")


@pytest.mark.slow
def test_model_to_predictions(run_notebook: RunNotebook) -> None:
    notebook = run_notebook("model_to_predictions")
    (run,) = runs()
    (version,) = models.list("digits")
    assert (version.run, version.aliases) == (run.id, ("stable",))
    assert version.profile["features"]["image[63]"]["kind"] == "number"
    accuracy = re.search(r"accuracy (\S+) on unseen", text_of(notebook, "accuracy ="))
    assert accuracy
    assert float(accuracy[1]) == pytest.approx(run.best.value, abs=1e-3)


@pytest.mark.slow
def test_train_serve_watch(run_notebook: RunNotebook) -> None:
    notebook = run_notebook("train_serve_watch")
    first, second = models.list("digits")
    assert (first.aliases, second.aliases) == ((), ("canary", "stable"))
    # A window that has just begun or ended with the requests has too few of them.
    calm = text_of(notebook, "import logging")
    assert re.fullmatch(r"No feature of 64 has drifted.* - 0 alerts\n", calm)
    alarm = text_of(notebook, "for _ in range(5)")
    # Pixels that are as often dark as light are the same when they are inverted.
    assert re.match(r"digits/1: [3-6]\d of 64 features have drifted from", alarm.splitlines()[1])
    assert float(alarm.split()[1]) < 0.5
    (figure,) = outputs_of(notebook, "found.figure")
    assert "application/vnd.plotly.v1+json" in figure["data"]
    reasons = text_of(notebook, "decision =")
    assert re.match(r"\d+ features have drifted in 1 or more of the last \d windows", reasons)
    by_version = html_of(notebook, "names = ")
    assert by_version.count("<tr") == 3
    accuracy = re.findall(r"0\.\d+", text_of(notebook, "time.sleep(2)"))
    assert [float(value) > 0.9 for value in accuracy] == [True, True]


@pytest.mark.slow
def test_tensorflowonspark(run_notebook: RunNotebook) -> None:
    notebook = run_notebook("tensorflowonspark")
    (run,) = runs()
    assert run.state == "COMPLETE"
    accuracy = re.search(
        r"accuracy (\S+) on unseen", text_of(notebook, "from pyspark.sql import f")
    )
    assert accuracy
    assert float(accuracy[1]) > 0.8


@pytest.mark.slow
def test_failures(run_notebook: RunNotebook) -> None:
    notebook = run_notebook("failures")
    fails, killed, rank, rank_again, stopped = runs()
    assert "loss diverges with rate=3.0" in text_of(notebook, "print(run.failed")
    assert [trial.attempts for trial in fails.trials] == [1, 1, 2]
    assert (killed.result, killed.trials[0].attempts) == ({"total": 15}, 2)
    assert list(killed.trials[0].history["total"]) == [0, 1, 3, 6, 10, 15]
    assert "worker 1" in text_of(notebook, "from sparkdl import distribute, errors")
    assert (rank.state, rank_again.state, rank_again.result) == ("FAILED", "COMPLETE", 2.5)
    assert stopped.state == "COMPLETE"
    assert [trial.attempts for trial in stopped.trials[:2]] == [1, 1]


# ---- what people do in a notebook

CELL = """
import time
from pathlib import Path
from sparkdl import experiment

def train(value):
    while value > 1 and not Path({mark!r}).exists():
        time.sleep(0.05)
    return float(value)

run = experiment.launch(train, {{"value": [1, 2, 3]}}, name="cell")
"""


@pytest.mark.slow
def test_the_stop_button_cancels_the_run_which_is_finished_later(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a cell that runs again works: it makes another run, with the new code."""
    monkeypatch.chdir(tmp_path)
    kernel.begin(tmp_path)
    cell = CELL.format(mark=str(tmp_path / "mark"))
    request = kernel.start(cell)

    def is_half_done() -> bool:
        return [run.counts() for run in runs()] == [{"RUNNING": 2, "COMPLETE": 1}]

    assert eventually(is_half_done, 60)
    kernel.interrupt()
    printed = kernel.finish(request, allow_errors=True)
    (run,) = runs()
    assert printed.endswith("KeyboardInterrupt")
    assert f"experiment.resume({run.path!r})" in printed
    assert (run.state, run.reason) == ("CANCELLED", "interrupted")
    assert run.counts() == {"COMPLETE": 1, "CANCELLED": 2}
    assert eventually(lambda: not processes_of(run.id))

    (tmp_path / "mark").touch()
    resumed = "import sys; run = experiment.resume(sys.last_value.run, progress=False)"
    kernel.run(f"from sparkdl import experiment\n{resumed}")
    assert runs()[0].counts() == {"COMPLETE": 3}

    kernel.run(cell)
    kernel.run(cell.replace("float(value)", "value + 0.5"))
    assert [[trial.value for trial in run.trials] for run in runs()] == [
        [1.0, 2.0, 3.0],
        [1.0, 2.0, 3.0],
        [1.5, 2.5, 3.5],
    ]
