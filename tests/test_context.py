"""`context`, `devices` and `tensorboard` outside a run, and reports in a run."""

import errno
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl import context, devices, distribute, tensorboard


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


def reported(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(context.VARIABLE, "{}")
    context._forget_reporter()
    context.activate(context.Context(run="r", folder=str(tmp_path), task_cwd="/tmp"))
    return tmp_path


def test_steps_are_whole_numbers(in_a_run: Path) -> None:
    context.report(1.0, step=np.int64(3))  # type: ignore[arg-type]
    context.report(1.0, step=4.0)  # type: ignore[arg-type]
    for step in (0.25, "two", math.inf):
        with pytest.raises(ValueError, match=f"got step={step!r}; expected a whole number"):
            context.report(1.0, step=step)  # type: ignore[arg-type]
    assert [line["step"] for line in reported(in_a_run)] == [3, 4]


def test_a_metric_without_a_number_is_left_out(in_a_run: Path) -> None:
    context.report({"loss": None, "accuracy": 0.5})
    assert reported(in_a_run) == [{"step": 0, "metrics": {"accuracy": 0.5}}]
    with pytest.raises(TypeError, match="value=None of type NoneType"):
        context.report(None)  # type: ignore[arg-type]


class Loss:
    """A number like a tensor of PyTorch that requires its gradient."""

    def detach(self) -> float:
        return 0.5

    def __float__(self) -> float:
        warnings.warn("Converting a tensor with requires_grad=True to a scalar ...", stacklevel=1)
        return 0.5


def test_a_loss_that_still_has_its_gradient_is_a_number(in_a_run: Path) -> None:
    context.report(Loss())  # type: ignore[arg-type]
    context.report({"loss": Loss()})  # type: ignore[dict-item]
    assert [line["metrics"] for line in reported(in_a_run)] == [{"value": 0.5}, {"loss": 0.5}]
    assert distribute.mean({"loss": Loss()}) == {"loss": 0.5}


def test_a_tensor_of_torch_is_reported_without_a_warning(in_a_run: Path) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.ones(1, requires_grad=True)
    context.report({"loss": (weight * 0.5).sum(), "one": weight})
    assert reported(in_a_run)[0]["metrics"] == {"loss": 0.5, "one": 1.0}


def test_a_full_disk_tears_no_line_and_loses_none(
    in_a_run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, room = os.write, 100

    def scarce(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        num_written = write(descriptor, data[:room])
        room -= num_written
        return num_written

    monkeypatch.setattr(os, "write", scarce)
    for step in range(5):
        context.report({"loss": float(step)})
    assert "No space left on device" in caplog.text and len(caplog.records) == 1
    assert (in_a_run / "metrics.jsonl").stat().st_size == 100
    room = 10_000
    context.report({"loss": 5.0})
    assert [line["step"] for line in reported(in_a_run)] == list(range(6))


def test_a_half_line_of_an_earlier_process_is_ended_first(in_a_run: Path) -> None:
    (in_a_run / "metrics.jsonl").write_text('{"step": 0, "metr')
    context.report({"loss": 1.0})
    lines = (in_a_run / "metrics.jsonl").read_text().splitlines()
    assert lines == ['{"step": 0, "metr', '{"step": 0, "metrics": {"loss": 1.0}}']


def test_the_original_working_directory(in_a_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert context.original_cwd == "/tmp"
    monkeypatch.setenv(context.VARIABLE, "{}")
    assert context.original_cwd == os.getcwd()


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
