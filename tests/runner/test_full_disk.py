"""A disk that is full for a while under the directory of a run."""

import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdl import experiment
from sparkdl.errors import SparkDLError
from sparkdl.runs import Run
from tests.helpers.processes import eventually
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

FULL_S = 5.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user cannot mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Write a file until the disk is full."""
    path = disk / "other"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 14, 1 << 8, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as exc:
                assert exc.errno == errno.ENOSPC
    return path


def test_disk_that_is_full_for_a_while(small_disk: Path, tmp_path: Path) -> None:
    """The run waits, or stops and says so; what is COMPLETE ran once; resume finishes the run."""
    calls = tmp_path / "calls"
    calls.mkdir()

    def train(x: int) -> int:
        (calls / f"{x}-{time.time_ns()}").touch()
        time.sleep(0.2)
        return x

    def hog() -> None:
        eventually(lambda: len(list(calls.iterdir())) >= 10)
        other = fill(small_disk)
        time.sleep(FULL_S)
        other.unlink()

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        run: Run = experiment.launch(train, {"x": list(range(50))}, **quiet(str(small_disk)))
    except (OSError, SparkDLError) as exc:
        assert "space" in str(exc)
        run = exc.run  # type: ignore[union-attr]
    finally:
        thread.join()
    counts = run.counts()
    assert run.state != "RUNNING"
    if counts != {"COMPLETE": 50}:
        run = experiment.resume(run.path, retry="failed", progress=False)
    assert run.counts() == {"COMPLETE": 50}
    numbers = [path.name.split("-")[0] for path in calls.iterdir()]
    repeated = {number for number in numbers if numbers.count(number) > 1}
    assert not {t.number for t in run.trials if t.attempts == 1} & set(map(int, repeated))
