"""`sparkdl plan` over real programs and real Spark: nothing is trained, nothing is written."""

from pathlib import Path

import pytest

from sparkdl.cli.dry_run import plan_program
from sparkdl.files import storage

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

EXAMPLES = Path(__file__).parents[2] / "examples"

DATA = """
from pyspark.sql import SparkSession
from sparkdl import experiment

def train():
    raise SystemExit("trained")

rows = SparkSession.builder.getOrCreate().range(10)
run = experiment.allreduce(train, num_workers=2, data=rows)
print(run.result)
"""

FED = """
from pyspark import SparkContext
from sparkdl.tfos import TFCluster

def main_fun(args, ctx):
    raise SystemExit("trained")

cluster = TFCluster.run(SparkContext.getOrCreate(), main_fun, [], 2, 0)
cluster.shutdown()
"""

TOO_LARGE = """
from sparkdl import experiment

experiment.allreduce(lambda: None, num_workers=5)
"""


@pytest.mark.parametrize(
    ("program", "kind", "name", "num_trials", "at_once"),
    [
        (EXAMPLES / "grid_search.py", "launch", "digits", 6, 2),
        (EXAMPLES / "search.py", "search", "train", 12, 2),
        (EXAMPLES / "hops" / "grid_digits.py", "launch", "digits grid", 2, 2),
        (DATA, "allreduce", "train", 1, 1),
        (FED, "tfos", "main_fun", 1, 1),
    ],
    ids=["grid", "search", "hops", "data", "tfos"],
)
def test_program_is_planned(
    root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str | Path,
    kind: str,
    name: str,
    num_trials: int,
    at_once: int,
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    if isinstance(program, str):
        path = tmp_path / "program.py"
        path.write_text(program)
        program = path
    plan = plan_program(str(program))
    assert not plan.refused + plan.error
    assert plan.ends_where == "uses the result of a run"
    (run,) = plan.runs
    found = (run.kind, run.name, run.num_trials, run.at_once)
    assert found == (kind, name, num_trials, at_once)
    assert "2 slots of local[2]" in run.slots
    assert storage.list_names(root) == []


def test_program_that_asks_for_too_many_slots_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(TOO_LARGE)
    plan = plan_program(str(path))
    assert plan.refused.startswith("SlotsError: allreduce needs 5 slots at once")
    assert "Start Spark with master local[5]" in str(plan)
