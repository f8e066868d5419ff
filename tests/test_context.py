"""`context`, `devices` and `tensorboard` outside a run, and reports in a run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sparkdl import context, devices, tensorboard


def test_context_outside_a_run_is_rank_0_of_1(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (context.rank, context.world_size, context.is_chief, context.trial) == (0, 1, True, 0)
    assert (context.local_rank, context.local_world_size, context.role) == (0, 1, "worker")
    context.report(0.5)
    context.report({"loss": 0.25}, step=2)
    assert capsys.readouterr().out == "value=0.5\nstep 2: loss=0.25\n"
    assert Path(tensorboard.logdir()).is_dir()
    with pytest.raises(AttributeError, match="world_size"):
        context.wold_size  # noqa: B018
    assert {"rank", "checkpoint_dir", "get_checkpoint"} <= set(dir(context))
    with pytest.raises(NotADirectoryError, match="'modle' does not exist; expected a directory"):
        context.report(0.5, checkpoint="modle")


def test_report_in_a_run_appends_json_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(context.VARIABLE, "{}")
    context.activate(context.Context(run="r", trial=3, folder=str(tmp_path)))
    assert context.trial == 3
    context.report(1)
    context.report({"a": 2.5})
    context.report({"a": 3}, step=10)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 10]
    assert lines[2]["metrics"] == {"a": 3.0}
    with pytest.raises(TypeError, match="a='high' of type str"):
        context.report({"a": "high"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("0,1", ["0", "1"]), ("", []), ("-1", []), ("1,-1,0", ["1"]), ("GPU-ab", ["GPU-ab"])],
)
def test_gpus_are_the_visible_devices(
    visible: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.gpus() == expected
    assert devices.get_num_gpus() == len(expected)


def test_each_rank_has_its_own_logdir(tmp_path: Path) -> None:
    folder = str(tmp_path)
    chief = context.Context(world_size=2, folder=folder)
    other = context.Context(rank=1, index=1, world_size=2, folder=folder)
    assert chief.logdir == str(tmp_path / "tensorboard")
    assert other.logdir == str(tmp_path / "tensorboard/worker-1")


def test_an_elected_chief_needs_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code of other threads may read the environment while a ring loses its chief."""
    monkeypatch.setenv(context.VARIABLE, "{}")
    context.activate(context.Context(rank=1, world_size=2))
    before = os.environ[context.VARIABLE]
    try:
        context.elect(1)
        assert context.is_chief
        assert os.environ[context.VARIABLE] == before
    finally:
        context.activate(context.Context())
    assert context.chief == 0
