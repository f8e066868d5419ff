"""A script in the place of a function runs as `python script.py` does, in each rank."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment
from sparkdl.cli.main import main
from sparkdl.errors import ConfigError, TrainingFailedError
from tests.helpers.runs import quiet

SCRIPT = """
import json, os, sys
from beside import describe

class Held:
    pass

if __name__ == "__main__":
    import pickle
    assert isinstance(pickle.loads(pickle.dumps(Held())), Held)
    told = describe(sys.argv, __file__, sys.path[0], os.getcwd())
    with open(os.environ.get("RANK", "alone") + ".json", "w") as file:
        json.dump(told, file)
    sys.exit(0)
"""
BESIDE = "def describe(argv, file, path, cwd):\n    return [argv[1:], argv[0], file, path, cwd]\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in two files; the working directory is another one."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "train.py").write_text(SCRIPT)
    (tmp_path / "program" / "beside.py").write_text(BESIDE)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "program" / "train.py"


def by_verb(verb: Callable[..., Any]) -> Callable[[Path, list[str], str], Any]:
    def start(script: Path, args: list[str], root: str) -> None:
        run = verb(script, args=args, num_workers=2, **quiet(root))
        assert (run.result, Path(run.path).name.rsplit("-", 3)[0]) == (None, "train")

    return start


def by_command(*words: str) -> Callable[[Path, list[str], str], Any]:
    def start(script: Path, args: list[str], root: str) -> None:
        assert main([*words, "--root", root, "../program/train.py", *args]) == 0

    return start


STARTS = {
    "allreduce": by_verb(experiment.allreduce),
    "horovod": by_verb(experiment.horovod),
    "torchrun": by_command("torchrun", "-np", "2", "--rdzv-backend", "c10d", "--standalone"),
    "torchrun by node": by_command("torchrun", "--nnodes=1", "--nproc_per_node=2"),
    "horovodrun": by_command("horovodrun", "-np", "2"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("start", STARTS)
def test_each_rank_runs_it_as_python_does(start: str, script: Path, root: str) -> None:
    args = ["--epochs", "3", "-x", "a b"]
    subprocess.run([sys.executable, script, *args], check=True)
    STARTS[start](script, args, root)
    alone = json.loads(Path("alone.json").read_text())
    assert [json.loads(Path(f"{rank}.json").read_text()) for rank in range(2)] == [alone, alone]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_its_error_is_told(script: Path, root: str) -> None:
    script.write_text("def main():\n    raise ValueError('no data today')\nmain()\n")
    with pytest.raises(TrainingFailedError, match="no data today") as caught:
        experiment.allreduce(script, num_workers=1, **quiet(root))
    log = Path(caught.value.run.trials[0].path, "log-worker-0.txt").read_text()
    assert f'File "{script}", line 2, in main' in log


@pytest.mark.parametrize(
    ("train", "args", "message"),
    [
        ("nowhere.py", [], r"script 'nowhere\.py' cannot be read"),
        ("train.py", "--epochs 3", r"args is '--epochs 3'; expected the words"),
        (lambda: 0, ["--epochs"], r"args is \['--epochs'\], and train is a function"),
    ],
)
@pytest.mark.parametrize("verb", [experiment.allreduce, experiment.horovod])
def test_refused_before_anything_starts(
    verb: Any, train: Any, args: Any, message: str, script: Path, root: str
) -> None:
    train = script if train == "train.py" else train
    with pytest.raises(ConfigError, match=message):
        verb(train, args=args, num_workers=2, **quiet(root))
    assert list(Path(root).iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_its_encoding_and_its_name_are_its_own(script: Path, root: str) -> None:
    """A script that declares Latin-1, and one whose name begins as the interpreter's."""
    named = script.with_name("python_train.py")
    named.write_bytes(
        "# coding: latin-1\nassert __cached__ is None and 'ä' == chr(228)\n".encode("latin-1")
    )
    assert main(["torchrun", "-np", "1", "--root", root, str(named)]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-np", "2", "-m", "pkg.train", "--lr", "1"], "-m pkg.train: .* such as pkg/train.py"),
        (["--nproc-per-node=2", "--module", "pkg.train"], "-m pkg.train: "),
        (["--nproc-per-node", "gpu", "train.py"], "'gpu' is no number: .*Pass -np 4"),
        (["--nproc_per_node=auto", "train.py"], "'auto' is no number: "),
        (["--nnodes=1:4", "train.py"], "'1:4' is no number: .*elastic=True"),
    ],
)
def test_what_torchrun_takes_and_spark_decides_is_refused_with_the_way_out(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["torchrun", *words])
    assert re.search(message, capfd.readouterr().err)


@pytest.mark.parametrize("words", [["train.py"], ["-np", "2", "--nnodes", "2", "train.py"]])
def test_torchrun_wants_one_number_of_ranks(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["torchrun", *words])
    assert "expected -np, or --nnodes" in capfd.readouterr().err
