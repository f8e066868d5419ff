"""SIGTERM, with which schedulers end jobs, cancels runs; the log of a batch job tells its end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment
from tests.helpers.processes import eventually, processes_of

pytestmark = pytest.mark.slow

EXIT_S = 60.0

BEGIN = """
import atexit, os, signal, sys, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
from sparkdl import experiment

here = Path(__file__).parent

def train(x):
    (here / "calls" / f"{x}-{os.getpid()}").touch()
    if x > 0 and not (here / "quick").exists():
        time.sleep(300)
    return x

def launch(**options):
    return experiment.launch(
        train, {"x": [0, 1, 2]}, root=str(here / "runs"), run_id="sigterm", if_exists="resume",
        **options,
    )

if __name__ == "__main__":
    builder = SparkSession.builder.config("spark.ui.enabled", "false")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master("local[2]")
    spark = builder.getOrCreate()
"""

PROGRAMS = {
    "foreground": """
    try:
        launch()
    finally:
        print("the program tidies up")
    """,
    "background": """
    launch(wait=False)
    try:
        time.sleep(300)
    except Exception:
        print("SIGTERM is no exception of the program")
    """,
    "background of a program that has ended": "launch(wait=False)",
    "thread of the user": """
    signal.signal(signal.SIGUSR1, lambda *_: None)
    first = experiment.launch(
        lambda: 1, root=str(here / "runs"), run_id="first", wait=False, progress=False
    )
    thread = threading.Thread(target=launch)
    thread.start()
    while not (here / "runs/sigterm/run.json").exists():
        time.sleep(0.1)
    first.wait()
    thread.join()
    """,
}


class Program:
    """A program whose run is in the middle: trial 0 is complete, the others go on."""

    def __init__(self, folder: Path, body: str, *command: str) -> None:
        (folder / "calls").mkdir(exist_ok=True)
        self.folder = folder
        file = folder / "program.py"
        file.write_text(f"{BEGIN}    {body.strip()}\n")
        self.process = subprocess.Popen(
            [*(command or [sys.executable]), str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def is_in_the_middle(self) -> bool:
        path = self.folder / "runs/sigterm"
        return (path / "run.json").exists() and experiment.load(str(path)).counts() == {
            "COMPLETE": 1,
            "RUNNING": 2,
        }

    def end(self, to_group: bool = False) -> tuple[float, str, str]:
        """Send SIGTERM in the middle; return the seconds until the end, and what was printed."""
        try:
            assert eventually(self.is_in_the_middle, 120), self.process.communicate(timeout=5)
            begun = time.monotonic()
            (os.killpg if to_group else os.kill)(self.process.pid, signal.SIGTERM)
            out, err = self.process.communicate(timeout=EXIT_S)
        except BaseException:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        return time.monotonic() - begun, out, err


def last_line(out: str) -> dict[str, Any]:
    line = out.strip().split("\n")[-1]
    assert line.startswith("sparkdl: "), out
    content: dict[str, Any] = json.loads(line.removeprefix("sparkdl: "))
    return content


def check_cancelled(folder: Path) -> None:
    run = experiment.load(str(folder / "runs/sigterm"))
    assert (run.state, run.counts()) == ("CANCELLED", {"COMPLETE": 1, "CANCELLED": 2})
    assert eventually(lambda: not processes_of("sigterm"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_sigterm_cancels_the_run_and_the_program_exits_with_143(tmp_path: Path, name: str) -> None:
    program = Program(tmp_path, PROGRAMS[name])
    seconds, out, err = program.end()
    assert program.process.returncode == 143, f"{out}\n{err}"
    assert seconds < 28  # Many schedulers kill after 30 s.
    check_cancelled(tmp_path)
    assert "no exception of the program" not in out
    assert ("the program tidies up" in out) == (name == "foreground")
    path = str(tmp_path / "runs/sigterm")
    assert f"To finish it: sparkdl resume {path}" in out
    line = last_line(out)
    assert (line["run"], line["state"], line["exit_code"]) == ("sigterm", "CANCELLED", 143)
    assert line["reason"] == "terminated by SIGTERM"
    assert line["counts"] == {"COMPLETE": 1, "CANCELLED": 2}
    assert line["root"] == str(tmp_path / "runs")


def test_sigterm_of_a_program_with_its_own_handler_is_left_to_the_handler(tmp_path: Path) -> None:
    body = """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    launch()
    """
    program = Program(tmp_path, body)
    program.end()
    assert program.process.returncode == 7
    assert eventually(lambda: not processes_of("sigterm"))


def test_sigterm_has_its_former_effect_after_the_run(tmp_path: Path) -> None:
    (tmp_path / "quick").touch()
    body = """
    launch(wait=False).wait()
    print("over", flush=True)
    time.sleep(300)
    """
    program = Program(tmp_path, body)
    assert program.process.stdout
    assert any(line == "over\n" for line in program.process.stdout)
    program.process.send_signal(signal.SIGTERM)
    program.process.communicate(timeout=EXIT_S)
    assert program.process.returncode == -signal.SIGTERM


def test_sigterm_of_a_forked_child_leaves_the_runs_of_its_parent(tmp_path: Path) -> None:
    body = """
    import multiprocessing
    def wait(x):
        while not (here / "quick").exists():
            time.sleep(0.05)
        return x
    run = experiment.launch(wait, {"x": [0, 1]}, root=str(here / "runs"), wait=False)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join(30)
    print("child", child.exitcode, flush=True)
    (here / "quick").touch()
    print("run", run.wait().state, flush=True)
    """
    program = Program(tmp_path, body)
    try:
        out, err = program.process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.process.pid, signal.SIGKILL)
    assert "child -15\n" in out, err
    assert "run COMPLETE\n" in out, err


def python_of(java: int) -> int:
    """The program that a spark-submit runs."""
    for task in Path(f"/proc/{java}/task").iterdir():
        for child in (task / "children").read_text().split():
            if "program.py" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
    raise LookupError(f"process {java} has not started the program")


SUBMIT = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]


@pytest.mark.parametrize("receiver", ["java", "group"])
def test_spark_submit_ends_with_143_and_its_retry_finishes_the_run(
    tmp_path: Path, receiver: str
) -> None:
    program = Program(tmp_path, "launch()", *SUBMIT)
    java = program.process.pid
    assert eventually(program.is_in_the_middle, 120)
    python = python_of(java)
    _, out, err = program.end(to_group=receiver == "group")
    assert program.process.returncode == 143, err
    assert eventually(lambda: not Path(f"/proc/{python}").exists(), 15)
    check_cancelled(tmp_path)
    if receiver == "group":
        return
    calls = len(list((tmp_path / "calls").glob("0-*")))

    (tmp_path / "quick").touch()
    again = Program(tmp_path, "launch()", *SUBMIT)
    out, err = again.process.communicate(timeout=120)
    assert again.process.returncode == 0, err
    line = last_line(out)
    assert (line["state"], line["counts"], line["exit_code"]) == ("COMPLETE", {"COMPLETE": 3}, 0)
    assert line["best"] == {"trial": 2, "value": 2, "params": {"x": 2}}
    assert len(list((tmp_path / "calls").glob("0-*"))) == calls == 1
