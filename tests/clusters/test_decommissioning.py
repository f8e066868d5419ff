"""Trials on executors that Spark decommissions: they are told, and go on elsewhere."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import context, experiment
from tests.helpers.processes import eventually, is_alive, jvm_of, processes_of
from tests.helpers.runs import journal_lines, quiet
from tests.helpers.spark import start_session

pytestmark = pytest.mark.slow

NUM_STEPS = 100


@pytest.fixture
def two_leaving(own_application: None) -> Iterator[SparkSession]:
    """Two executors that end some seconds after they were decommissioned."""
    session = start_session(
        "local-cluster[2,1,1024]",
        spark__executor__memory="1g",
        spark__decommission__enabled="true",
        spark__executor__decommission__forceKillTimeout="6s",
    )
    yield session
    session.stop()


def count(folder: str) -> dict[str, Any]:
    """Count steps, and commit the number of steps only when the executor is about to end."""
    first = 0
    if directory := context.get_checkpoint():
        first = int(Path(directory, "step").read_text())
    Path(folder, f"begun-{context.attempt}").write_text(str(first))
    last = first
    for step in range(first, NUM_STEPS):
        if context.should_stop():
            Path(folder, "noticed").touch()
            state = Path("state")
            state.mkdir(exist_ok=True)
            (state / "step").write_text(str(step))
            context.report({"steps": step}, step=step, checkpoint=state)
        last = step
        # The process may be ended at any moment: the file is never half written.
        aside = Path(folder, ".last")
        aside.write_text(str(last))
        aside.rename(Path(folder, f"last-{context.attempt}"))
        time.sleep(0.1)
    return {"first": first, "steps": last + 1}


def worker_of(trial: str, attempt: int = 0) -> int:
    file = Path(trial, "attempts", f"{attempt}.json")
    assert eventually(file.exists), file
    return int(json.loads(file.read_text())["pid"])


def test_trial_on_a_decommissioned_executor_commits_and_goes_on_elsewhere(
    two_leaving: SparkSession, root: str, tmp_path: Path
) -> None:
    run = experiment.launch(
        count, {"folder": [str(tmp_path)]}, metric="steps", wait=False, **quiet(root)
    )
    trial = run.trials[0].path
    worker = worker_of(trial)
    executor = jvm_of(worker)
    assert eventually((tmp_path / "begun-0").exists)
    assert not (tmp_path / "noticed").exists()
    os.kill(executor, signal.SIGPWR)  # As the daemon of a host that is about to end does.
    assert eventually((tmp_path / "noticed").exists)
    run.wait()
    assert run.state == "COMPLETE"
    outputs = run.trials[0].outputs
    # The last commit may be of a step that the first attempt did not begin, or one behind. So the
    # second attempt leaves no step out, and repeats at most two.
    last = int((tmp_path / "last-0").read_text())
    assert outputs["steps"] == NUM_STEPS
    assert last - 1 <= outputs["first"] <= last + 1
    ends = [e["state"] for e in journal_lines(run.path) if e["event"] == "trial"]
    assert ends == ["RUNNING", "LOST", "RUNNING", "COMPLETE"]
    starts = [Path(trial, "attempts", f"{n}.json").read_text() for n in (0, 1)]
    assert len({json.loads(text)["executor_id"] for text in starts}) == 2
    assert eventually(lambda: not is_alive(worker) and not is_alive(executor))
    assert not processes_of(run.id)
