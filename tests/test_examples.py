"""The examples as a user runs them: plain Python, without any setting of Spark."""

import difflib
import importlib.util
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


def needs(package: str) -> pytest.MarkDecorator:
    """Return a mark that skips an example whose framework is not installed."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


def _run(name: str, folder: Path) -> str:
    """Run an example; return what it printed. Kill its processes if it takes too long."""
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
            os.killpg(process.pid, signal.SIGKILL)  # The process and its child, Java.
            raise
    assert process.returncode == 0, err
    return out


@dataclass(frozen=True)
class Ended:
    """An example that has succeeded: the output, and the folder in which it ran."""

    printed: str
    folder: Path


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Ended]]:
    """Wait for an example. Two run at once: Spark and TensorFlow each start in one thread."""

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
        pytest.param("jax_digits.py", marks=[TWO_CORES, needs("jax")]),
        pytest.param("parquet.py", marks=TWO_CORES),
        "predict.py",
        "search.py",
        pytest.param("torch_digits.py", marks=[TWO_CORES, needs("torch")]),
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
    example = ended(name)
    pattern = re.compile(r"^accuracy (0\.\d+|1\.0+) on unseen digits$", re.MULTILINE)
    accuracy = pattern.search(example.printed)
    assert accuracy, example.printed
    assert float(accuracy[1]) > 0.93
    assert len(list(example.folder.glob("runs/*/run.json"))) == (name != "single_process.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resume.py"])
def test_resume_runs_only_the_failed_trial_again(name: str, ended: Callable[[str], Ended]) -> None:
    printed = ended(name).printed
    counts = re.findall(r"^Run neighbors-\S+: COMPLETE, (\d) of 3 trials complete", printed, re.M)
    assert counts == ["2", "3"], printed
    assert "attempts of each trial: [1, 1, 2]" in printed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tfos/linear_regression.py"])
def test_a_pipeline_recovers_its_weights(name: str, ended: Callable[[str], Ended]) -> None:
    printed = ended(name).printed
    weights = re.search(r"^weights (\S+) and (\S+);", printed, re.MULTILINE)
    assert weights, printed
    assert float(weights[1]) == pytest.approx(3.14, abs=0.02)
    assert float(weights[2]) == pytest.approx(1.618, abs=0.02)


def test_four_lines_distribute_a_program() -> None:
    single, distributed = (
        (EXAMPLES / name).read_text().splitlines() for name in ("single_process.py", "allreduce.py")
    )
    changes = [line for line in difflib.ndiff(single, distributed) if line[2:].strip()]
    added = [line[2:].strip() for line in changes if line.startswith("+ ")]
    assert added == [
        "from sparkdl import distribute, experiment",
        "with distribute.strategy().scope():",
        "model = build_model()",
        "accuracy = experiment.allreduce(train, num_workers=2).result",
    ]
    assert sum(line.startswith("- ") for line in changes) == 2
