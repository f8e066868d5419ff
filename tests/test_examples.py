"""The examples as a person runs them: plain Python, without a word about Spark."""

import difflib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAM_S = 240.0
# Embedded Spark has as many slots as there are cores.
TWO_CORES = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two workers need two slots")


def _run(name: str, folder: Path) -> str:
    """What an example printed. It ends well, and so do its processes."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))}
    env = {**outer, "SPARK_LOCAL_IP": "127.0.0.1", "SPARKDL_ROOT": str(folder / "runs")}
    command = [sys.executable, EXAMPLES / name]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=PROGRAM_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # Java, a child of it, too.
            raise
    assert process.returncode == 0, err
    return out


@dataclass(frozen=True)
class Ended:
    """An example that has ended well: what it printed, and the folder it ran in."""

    printed: str
    folder: Path


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Ended]]:
    """Waits for an example. Two run at once: Spark and TensorFlow start in one thread each."""

    def run(name: str) -> Ended:
        folder = tmp_path_factory.mktemp("example")
        return Ended(_run(name, folder), folder)

    chosen = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in chosen if hasattr(item, "callspec")]
    with ThreadPoolExecutor(2) as pool:
        programs = {name: pool.submit(run, name) for name in names}
        yield lambda name: programs[name].result()
        for program in programs.values():
            program.cancel()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "single_process.py",
        pytest.param("allreduce.py", marks=TWO_CORES),
        "parameter_server.py",
        pytest.param("dataframe.py", marks=TWO_CORES),
        "predict.py",
        "search.py",
        pytest.param("horovod/elastic_digits.py", marks=TWO_CORES),
        pytest.param("horovod/keras_digits.py", marks=TWO_CORES),
        pytest.param("horovod/session_digits.py", marks=TWO_CORES),
        pytest.param("horovod/tape_digits.py", marks=TWO_CORES),
        "tfos/digits_spark.py",
        "tfos/digits_tensorflow.py",
        "tfos/servers_digits.py",
        "tfos/stream_digits.py",
    ],
)
def test_an_example_learns(name: str, ended: Callable[[str], Ended]) -> None:
    one = ended(name)
    accuracy = re.compile(r"^accuracy (0\.\d+|1\.0+) on digits it has not seen$", re.MULTILINE)
    found = accuracy.search(one.printed)
    assert found, one.printed
    assert float(found[1]) > 0.93
    assert len(list(one.folder.glob("runs/*/run.json"))) == (name != "single_process.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tfos/linear_regression.py"])
def test_a_pipeline_finds_its_weights(name: str, ended: Callable[[str], Ended]) -> None:
    printed = ended(name).printed
    found = re.search(r"^weights (\S+) and (\S+);", printed, re.MULTILINE)
    assert found, printed
    assert float(found[1]) == pytest.approx(3.14, abs=0.02)
    assert float(found[2]) == pytest.approx(1.618, abs=0.02)


def test_three_lines_make_a_program_distributed() -> None:
    before, after = (
        (EXAMPLES / name).read_text().splitlines() for name in ("single_process.py", "allreduce.py")
    )
    changes = list(difflib.ndiff(before, after))
    assert sum(line.startswith("+ ") for line in changes) == 3
    assert sum(line.startswith("- ") for line in changes) == 2
