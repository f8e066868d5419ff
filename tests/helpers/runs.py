"""Options for runs started by tests, and the ends of runs."""

from collections.abc import Callable
from typing import Any

import pytest

from sparkdl.errors import RunStoppedError
from sparkdl.runs import Run

__all__ = ["quiet", "stopped"]


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
