"""Whatever a file of a run holds, its readers show the run, or name the file that is damaged."""

import contextlib
import shutil
from pathlib import Path

import pytest

from sparkdl import experiment
from sparkdl.cli.main import main
from sparkdl.errors import SparkDLError

KEPT = Path(__file__).parents[1] / "data/kept_runs/0.1.0/runs/line"
FILES = sorted(path.relative_to(KEPT) for path in KEPT.rglob("*.json*"))
# Of the trials, which are alike, the files of one.
SOME = [path for path in FILES if path.parts[0] != "trials" or path.parts[1] == "0"]

DAMAGES = {
    "empty": lambda data: b"",
    "torn": lambda data: data[: len(data) // 2],
    "no text": lambda data: bytes(range(128, 256)),
    "a list": lambda data: b"[]\n",
    "a number": lambda data: b"17\n",
    "other keys": lambda data: b'{"state": 3, "params": 7, "number": "x", "metrics": []}\n',
    "deep": lambda data: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("path", SOME, ids=str)
def test_a_damaged_file_hides_no_reason(
    path: Path, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(KEPT, tmp_path / "runs/line")
    data = (run / path).read_bytes()
    (run / path).write_bytes(DAMAGES[damage](data))

    def read() -> None:
        for trial in experiment.load(str(run)).trials:
            str((trial.params, trial.value, trial.reports(), trial.checkpoints, trial.outputs))

    readers = (
        lambda: str(experiment.load(str(run))),
        read,
        lambda: experiment.history(str(tmp_path / "runs")),
        lambda: experiment.compare([str(run), str(run)]),
    )
    for reader in readers:
        with contextlib.suppress(SparkDLError):
            reader()
    # The command prints an error of its own kind; any other would leave it.
    assert main(["card", str(run)]) in (0, 2)
