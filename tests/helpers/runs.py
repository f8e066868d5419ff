"""Options for runs started by tests, the ends of runs, and journals on local disks."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment
from sparkdl.errors import ControlError, RunStoppedError
from sparkdl.files import storage
from sparkdl.runs import Run, RunState, TrialState
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.opening import RunDescription, open_run

__all__ = [
    "end_soon",
    "journal_lines",
    "journal_text",
    "quiet",
    "run_with_outputs",
    "segments",
    "stopped",
]


def quiet(root: str, **options: Any) -> dict[str, Any]:
    """The options of a run that says nothing."""
    return {"root": root, "progress": False, **options}


def stopped(call: Callable[[], Run]) -> Run:
    """The run of a call that raises `RunStoppedError`, as its run ended early."""
    with pytest.raises(RunStoppedError) as caught:
        call()
    run: Run = caught.value.run
    assert f"ended {run.state}" in str(caught.value)
    return run


def end_soon(run: Run) -> float:
    """Set a time limit that is over soon, however long it took to get here; return the limit."""
    limit_s = 0.3
    while True:
        try:
            run.set(timeout_s=limit_s)
            return limit_s
        except ControlError as exc:  # It is over already, and is refused.
            found = re.search(r"the first trial started (\d+) s ago", str(exc))
            assert found, exc
            limit_s = float(found[1]) + 1.5


def segments(path: str | os.PathLike[str]) -> list[Path]:
    """The files of the journal of a run, oldest first."""
    return sorted(Path(path, "journal").glob("*.jsonl"))


def journal_text(path: str | os.PathLike[str]) -> str:
    """The text of the journal of a run, without the lines that begin a session."""
    texts = [segment.read_text() for segment in segments(path)]
    lines = "".join(texts).splitlines(keepends=True)
    return "".join(line for line in lines if '"event": "session"' not in line)


def journal_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The events in the journal of a run, as they are stored."""
    return [json.loads(line) for line in journal_text(path).splitlines()]


def run_with_outputs(
    root: str, metrics: Mapping[str, Sequence[float]], files: Mapping[str, Sequence[Path]]
) -> Run:
    """A run that has ended, with a trial for each value of the metric, and with its files.

    Args:
        root: the folder of the runs.
        metrics: the metric, and its values by trial.
        files: the returned files, by their name and by trial.
    """
    ((metric, values),) = metrics.items()
    description = RunDescription(
        id="one",
        name="one",
        kind="launch",
        description=None,
        metric=metric,
        direction="max",
        params=[{"lr": (number + 1) / 10} for number in range(len(values))],
        seed=1,
        secrets=(),
        facts={"git_commit": "abc"},
    )
    opened = open_run(root, description, "error")
    for number, value in enumerate(values):
        outputs: dict[str, Any] = {metric: value}
        for name, paths in files.items():
            outputs[name] = f"artifacts/{name}/{paths[number].name}"
            url = storage.join(opened.paths.trial(number).folder, outputs[name])
            storage.write(url, paths[number].read_bytes())
        done = TrialChanged(
            number=number,
            state=TrialState.COMPLETE,
            value=value,
            metrics={metric: value},
            outputs=outputs,
            attempt=0,
        )
        opened.journal.write([done])
    opened.journal.write([RunEnded(state=RunState.COMPLETE, duration_s=1.0)])
    opened.journal.close()
    opened.owner.release()
    return experiment.load(opened.run.path)
