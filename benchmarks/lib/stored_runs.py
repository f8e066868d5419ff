"""Make runs that have ended, without Spark."""

import json
import shutil
from pathlib import Path

from sparkdl import experiment
from sparkdl.runs.events import Event, RunEnded, TrialChanged
from sparkdl.runs.opening import RunDescription, open_run
from sparkdl.runs.states import RunState, TrialState

__all__ = ["TRIALS", "make_runs"]

TRIALS = 20


def make_run(root: str, run_id: str) -> str:
    """Make a run that has ended; return its directory."""
    description = RunDescription(
        id=run_id,
        name="digits",
        kind="launch",
        description=None,
        metric="accuracy",
        direction="max",
        params=[{"lr": 0.1 / (n + 1), "units": 16 * n, "opt": "adam"} for n in range(TRIALS)],
        seed=1,
        secrets=(),
        facts={"user": "ann", "git_commit": "0" * 40, "versions": {"python": "3.12"}},
    )
    opened = open_run(root, description, "error")
    ends: list[Event] = []
    for number in range(TRIALS):
        value = number / TRIALS
        metrics = {"accuracy": value, "loss": 1 - value}
        ends.append(
            TrialChanged(
                number=number,
                state=TrialState.COMPLETE,
                attempt=0,
                value=value,
                metrics=metrics,
                outputs=metrics,
                shape="dict",
            )
        )
    opened.record(*ends)
    opened.close(RunEnded(state=RunState.COMPLETE, duration_s=60.0))
    return opened.run.path


def make_runs(root: str, count: int) -> None:
    """Make many runs as copies of one, and tag every tenth."""
    first = make_run(root, "run-0")
    summary = json.loads(Path(first, "summary.json").read_text())
    for number in range(1, count):
        path = Path(root, f"run-{number}")
        shutil.copytree(first, path)
        row = {**summary, "run": path.name, "best": number / count}
        (path / "summary.json").write_text(json.dumps(row))
    for number in range(0, count, 10):
        experiment.load(f"{root}/run-{number}").tag("tenth")
