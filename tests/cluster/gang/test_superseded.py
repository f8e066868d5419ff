"""Ranks of a gang whose trial was started again elsewhere."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sparkdl.cluster.gang.task import _watch
from sparkdl.files import attempts
from sparkdl.files.attempts import Fence


def test_a_rank_of_a_superseded_gang_is_ended(tmp_path: Path) -> None:
    nothing: Any = SimpleNamespace(watch=lambda *_: None)
    attempts.take(str(tmp_path), 0)
    fence = Fence(str(tmp_path), 0, interval_s=0.0)
    assert _watch(nothing, nothing, fence, lambda: None, nothing) is None
    attempts.take(str(tmp_path), 1)
    reason = _watch(nothing, nothing, fence, lambda: None, nothing)
    assert reason == "a later attempt at the trial has started elsewhere"
