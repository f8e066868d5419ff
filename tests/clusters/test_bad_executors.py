"""Searches on clusters of which one executor is at fault."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import context, experiment
from sparkdl.errors import AllTrialsFailedError
from tests.helpers.processes import processes_of
from tests.helpers.runs import journal_lines, quiet
from tests.helpers.spark import Applications, start_session

pytestmark = pytest.mark.slow

EXCLUDING = {
    # Not for the whole application: each test has another executor that is at fault.
    "spark__excludeOnFailure__taskAndStage__enabled": "true",
    "spark__executor__memory": "1g",
}


@pytest.fixture(scope="module")
def three_excluding(applications: Applications) -> Iterator[SparkSession]:
    """Three executors of one slot, with Spark's exclusion of executors."""
    applications.stop()
    session = start_session("local-cluster[3,1,1024]", **EXCLUDING)
    yield session
    session.stop()


def faulty(x: int, error: str, folder: str, everywhere: bool = False) -> float:
    """Fail on the executor that has run a trial first, or on all executors."""
    # Spark names the working directory of an executor by its id.
    executor = Path(context.original_cwd).name
    bad = Path(folder, "bad")
    try:
        with bad.open("x") as file:
            file.write(executor)
    except FileExistsError:
        while not bad.read_text():
            time.sleep(0.01)
    if everywhere or bad.read_text() == executor:
        raise RuntimeError(error)
    time.sleep(0.3)
    return float(x)


def attempts_of(trial: Any) -> list[str]:
    """The ids of the executors that the attempts at a trial have run on."""
    files = sorted(Path(trial.path, "attempts").glob("*.json"))
    return [json.loads(file.read_text())["executor_id"] for file in files]


def launch(root: str, folder: Path, error: str, num_trials: int = 9, **params: Any) -> Any:
    given = {"x": list(range(num_trials)), "error": [error], "folder": [str(folder)], **params}
    return experiment.launch(faulty, given, **quiet(root))


def test_executor_with_a_gpu_fault_is_excluded_and_named(
    three_excluding: SparkSession, root: str, tmp_path: Path
) -> None:
    run = launch(root, tmp_path, "CUDA error: an uncorrectable ECC error was encountered")
    bad = (tmp_path / "bad").read_text()
    assert {t.state for t in run.trials} == {"COMPLETE"}
    [(name, reason)] = run.excluded.items()
    assert name.startswith(f"executor {bad} on host ")
    assert reason.startswith("GPU fault in trial")
    assert f"Excluded: {name}, {reason}" in str(run)
    assert name in Path(run.report()).read_text()
    assert experiment.load(run.path).excluded == run.excluded
    places = [executor for trial in run.trials for executor in attempts_of(trial)]
    # A trial that Spark had before the fault may still start there.
    assert 1 <= places.count(bad) <= 3
    assert len(places) == len(run.trials) + places.count(bad)
    assert not processes_of(run.id)


def test_executor_with_failures_alike_is_excluded_and_its_trials_run_again(
    three_excluding: SparkSession, root: str, tmp_path: Path
) -> None:
    run = launch(root, tmp_path, "the scratch disk cannot be written")
    bad = (tmp_path / "bad").read_text()
    assert {t.state for t in run.trials} == {"COMPLETE"}
    [event] = [e for e in journal_lines(run.path) if e["event"] == "excluded"]
    assert event["executor"] == bad
    assert event["reason"].startswith("RuntimeError at ")
    again = [trial.number for trial in run.trials if len(attempts_of(trial)) == 2]
    assert 2 <= len(again) <= 4
    assert set(event["trials"]) <= set(again)
    assert all(attempts_of(run.trials[n])[0] == bad for n in again)
    assert all(attempts_of(trial)[-1] != bad for trial in run.trials)
    assert not processes_of(run.id)


def test_function_that_fails_everywhere_excludes_no_executor(
    three_excluding: SparkSession, root: str, tmp_path: Path
) -> None:
    with pytest.raises(AllTrialsFailedError) as caught:
        launch(root, tmp_path, "CUDA error: an illegal access", 5, everywhere=[True])
    run = caught.value.run
    assert {t.state for t in run.trials} == {"FAILED"}
    assert not run.excluded
    # One trial ran again, to find out.
    assert sum(len(attempts_of(trial)) for trial in run.trials) == len(run.trials) + 1
    assert not processes_of(run.id)
