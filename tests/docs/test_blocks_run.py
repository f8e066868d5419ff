"""Python blocks in the pages run, with the names that the text around them introduces."""

import ast
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from pyspark.sql import SparkSession

from sparkdl import context, experiment
from sparkdl.runner.control import remote_driver as asking
from sparkdl.runner.loop import trial_loop
from sparkdl.runner.pipeline import prepare
from sparkdl.runs import Run
from sparkdl.training.identity import Context
from tests.docs.pages import REPOSITORY, Block, blocks_of, pages
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, returned
from tests.helpers.processes import eventually
from tests.helpers.stored_runs import ended

NAMED_RUN = "nightly-2026-11-22"
# Blocks with a mark do not run, see tests/docs/test_code.py.
BLOCKS = [
    block
    for page in pages()
    for block in blocks_of(page)
    if block.language == "python" and not block.marker
]
# These show real trials; the functions of the others are called in this process.
ON_SPARK = {"README.md", "docs/reproducing.md"}


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a test, and its working directory."""
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)


def imports_of(text: str) -> str:
    """Return the imports of a block, which later blocks of its page do not repeat."""
    body = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return ast.unparse(ast.Module(body, []))


def run_block(block: Block, **names: Any) -> dict[str, Any]:
    """Run a block as the body of a module; return the names that it knows at its end."""
    namespace = {"__name__": "page", **names}
    for earlier in blocks_of(REPOSITORY / block.page):
        if earlier.line < block.line and earlier.language == "python":
            exec(imports_of(earlier.text), namespace)  # noqa: S102
    exec(compile(block.text, str(block), "exec"), namespace)  # noqa: S102
    return namespace


# ---- on Spark


def train(learning_rate: float, dropout: float = 0.5) -> dict[str, float]:
    """The training function of blocks that define none; fails in a run with dropout 0."""
    if not dropout and context.run is not None:
        raise ValueError("no dropout")
    return {"accuracy": 1 - learning_rate, "loss": learning_rate}


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in BLOCKS if b.page in ON_SPARK], ids=str)
def test_blocks_run_on_spark(
    block: Block, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"learning_rate": [0.1, 0.2], "dropout": [0.0, 0.5]}
    names: dict[str, Any] = {"train": train, "args": {"learning_rate": [0.1, 0.2]}}
    if "run" in block.text and "run = " not in block.text:
        names["run"] = experiment.launch(train, values, metric="accuracy", progress=False)
    for name, text in {"config/small.yaml": "rate: 1", "labels/animals.txt": "cat dog"}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    after = run_block(block, accuracy=0.9, loss=0.1, **names)
    assert "Traceback" not in capsys.readouterr().err
    if "again" in after:
        assert after["again"].reproduces == names["run"].id


# ---- in this process


def call(attempt: Attempt) -> Outcome:
    """Call the training function in this process, as its trial."""
    trial, run = attempt.task.trial, attempt.task.run
    me = Context(
        folder=attempt.paths.folder, run=run.id, trial=trial.number, params=dict(trial.params)
    )
    with context.acting_as(me):
        value = cloudpickle.loads(attempt.task.program.function)(**trial.params)
    return returned(**value) if isinstance(value, dict) else returned(value)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Lets the verbs use a cluster in memory; the argument is its function for attempts."""
    monkeypatch.setattr(trial_loop, "LOCAL_POLL_S", 0.005)
    monkeypatch.setattr(asking, "LOOK_S", (0.005, 0.005))

    def use(run_task: Callable[[Attempt], Outcome]) -> None:
        cluster = InMemoryCluster(run_task, num_slots=1)
        monkeypatch.setattr(prepare, "SparkCluster", lambda spark: cluster)

    yield use


def square(**params: Any) -> dict[str, float]:
    """A training function for any parameters."""
    numbers = [value for value in params.values() if isinstance(value, int | float)]
    loss = sum(number * number for number in numbers)
    return {"accuracy": 1 - loss, "loss": loss}


@pytest.mark.parametrize(
    "block",
    [b for b in BLOCKS if b.page not in {*ON_SPARK, "docs/control.md", "docs/finding-runs.md"}],
    ids=str,
)
def test_blocks_run(block: Block, in_memory: Callable[[Any], None]) -> None:
    in_memory(call)
    after = run_block(block, train=square, accuracy=0.9, loss=0.1)
    for run in (value for value in after.values() if isinstance(value, Run)):
        assert run.pareto if run.objectives else run.best.value is not None
    assert set(experiment.history()["state"]) <= {"COMPLETE"}


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.page == "docs/control.md"], ids=str)
def test_blocks_control_a_run(block: Block, in_memory: Callable[[Any], None]) -> None:
    def run_task(attempt: Attempt) -> Outcome:
        return attempt.wait() if attempt.number == 3 else returned(0.5)

    in_memory(run_task)
    before = threading.active_count()
    values = {"learning_rate": [0.1 * i for i in range(1, 9)]}
    options: dict[str, Any] = {"run_id": NAMED_RUN, "progress": False, "wait": False}
    live = experiment.launch(square, values, **options)
    after = run_block(block)
    live.wait()
    states = [str(trial.state) for trial in after["run"].trials]
    assert states == ["COMPLETE"] * 3 + ["CANCELLED"] + ["COMPLETE"] * 5
    assert live.trials[8].params == {"learning_rate": 0.003}
    assert eventually(lambda: threading.active_count() <= before + 2)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.page == "docs/finding-runs.md"], ids=str)
def test_blocks_find_runs(block: Block, tmp_path: Path) -> None:
    params = ({"learning_rate": 0.1}, {"learning_rate": 0.001})
    root = str(tmp_path / "runs")
    first = ended(root, "digits-20261121-001928-bfb0", (0.5, 0.95), params).run
    second = ended(root, "digits-20261122-001928-aaaa", (0.6, 0.7), params).run
    after = run_block(block, run=second, path=first.path)
    if "comparison" in after:
        assert "accuracy" in str(after["comparison"])
    if ".tag(" in block.text:
        assert experiment.load(first.path).tags == ["baseline"]
