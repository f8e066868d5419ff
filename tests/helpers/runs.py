"""Options for runs started by tests, the ends of runs, and journals on local disks."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdl.errors import RunStoppedError
from sparkdl.runs import Run

__all__ = ["journal_lines", "journal_text", "quiet", "segments", "stopped"]


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
