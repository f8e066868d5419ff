"""The DAG of the examples under a real Airflow, while a step is killed and the data drifts."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl import models
from sparkdl.errors import ModelNotFoundError
from tests.clusters.airflow import Airflow
from tests.clusters.standalone import REPOSITORY
from tests.helpers.processes import eventually
from tests.helpers.spark import JAVA_OPTIONS

EXAMPLES = REPOSITORY / "examples"
CIRCLE = EXAMPLES / "train_and_serve.py"
STEP_S = 240.0


def _program() -> Any:
    spec = importlib.util.spec_from_file_location("circle", CIRCLE)
    assert spec and spec.loader
    program = importlib.util.module_from_spec(spec)
    sys.modules["circle"] = program
    spec.loader.exec_module(program)
    return program


@pytest.fixture
def airflow(tmp_path: Path) -> Airflow:
    outer = {k: v for k, v in os.environ.items() if k.startswith("SPARKDL_")}
    env = {
        "SPARKDL_PYTHON": sys.executable,
        "SPARKDL_CIRCLE": str(CIRCLE),
        "SPARKDL_FOLDER": str(tmp_path / "bikes"),
        "SPARKDL_LOOK_S": "1",
        "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
        "PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell",
        "PYTHONPATH": str(REPOSITORY),
    }
    return Airflow(
        tmp_path / "airflow", EXAMPLES / "airflow" / "train_and_serve.py", {**outer, **env}
    )


def _processes(folder: Path) -> dict[int, list[str]]:
    """The command lines of the processes that work for the DAG in a folder, by number."""
    found = {}
    mark = f"SPARKDL_FOLDER={folder}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                line = (entry / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
                found[int(entry.name)] = line
    return found


@contextlib.contextmanager
def _run_of(airflow: Airflow, log: Path, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A run of the DAG, whose processes are ended however the test goes."""
    process = airflow.test(log)
    try:
        yield process
    finally:
        for number in _processes(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()


def _kill_step(step: str, folder: Path) -> None:
    """Kill the driver of a step when its run has begun."""

    def drivers() -> list[int]:
        if not list(folder.glob(f"runs/bikes-*-{step}/run.json")):
            return []
        lines = _processes(folder).items()
        return [n for n, line in lines if line[1:3] == [str(CIRCLE), step]]

    found = eventually(drivers, STEP_S)
    assert isinstance(found, list) and found
    os.kill(found[0], signal.SIGKILL)


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Yield the address of a server of its own process, as beside a real Airflow."""
    program = str(Path(sys.executable).with_name("sparkdl"))
    command = [program, "serve", "bikes", "--alias", "stable"]
    command += ["--weight", "canary=30", "--port", "0", "--root", str(folder / "runs")]
    command += ["--log", str(folder / "log")]
    output = folder / "server.log"
    with output.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        address = re.compile(r"is served at (\S+)")
        assert eventually(
            lambda: bool(server.poll() is not None or address.search(output.read_text())), 120
        )
        found = address.search(output.read_text())
        assert found, output.read_text()
        yield found[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _alias(root: str, alias: str) -> int:
    """The version of an alias; 0 if there is no alias."""
    with contextlib.suppress(ModelNotFoundError):
        return models.get("bikes", alias=alias, root=root).version
    return 0


def _tasks(airflow: Airflow) -> list[tuple[str, int]]:
    """The tasks of the newest run that have succeeded, with the number of their tries."""
    newest = "(SELECT run_id FROM dag_run ORDER BY id DESC LIMIT 1)"
    order = f"WHERE run_id = {newest} AND state = 'success' ORDER BY start_date"
    query = f"SELECT task_id, try_number FROM task_instance {order}"
    return [(name, tries) for name, tries in airflow.query(query)]


TASKS = ["prepare", "search", "train", "export_if_better", "canary", "promote_or_roll_back"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_dag_trains_again_when_inputs_drift_though_a_step_is_killed(
    airflow: Airflow, tmp_path: Path
) -> None:
    program = _program()
    place = program.Place(tmp_path / "bikes")
    folder, log = place.folder, tmp_path / "first.log"
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_run_of(airflow, log, folder))
        _kill_step("train", folder)
        eventually(lambda: first.poll() is not None or bool(_alias(place.root, "canary")), STEP_S)
        assert first.poll() is None, log.read_text()[-5000:]
        url = stack.enter_context(_server(folder))
        program.ask(place, url, "summer")
        assert airflow.query("SELECT * FROM asset_event") == []
        while first.poll() is None:
            program.ask(place, url, "winter")
        assert first.returncode == 0, log.read_text()[-5000:]
        tries = [(name, 1 + (name == "train")) for name in [*TASKS, "monitor", "next_round"]]
        assert _tasks(airflow) == tries
        assert "temperature has drifted in" in log.read_text()
        # The asset schedules the next run, which `dag.test()` starts here.
        assert len(airflow.query("SELECT * FROM asset_event")) == 1
        assert len(airflow.query("SELECT * FROM dag_schedule_asset_reference")) == 1

        log = tmp_path / "second.log"
        second = stack.enter_context(_run_of(airflow, log, folder))
        while second.poll() is None and _alias(place.root, "stable") < 2:
            program.ask(place, url, "winter")
        # The new version waits for the next drift.
        while second.poll() is None:
            program.ask(place, url, "summer")
        assert second.returncode == 0, log.read_text()[-5000:]
        assert [name for name, _ in _tasks(airflow)] == [*TASKS, "monitor", "next_round"]
        assert "promoted: bikes/1 errs by" in log.read_text()
        assert re.search(r"learned from bikes-\d+-\d+-search", log.read_text())


STAND_IN = """
import pathlib, sys
calls = pathlib.Path(__file__).with_name("calls")
step = sys.argv[1]
calls.open("a").write(step + "\\n")
# The first look at a canary fails, and the second one ends well. Nothing ever drifts.
first = calls.read_text().split().count(step) == 1
sys.exit({"decide": 1 if first else 0, "monitor": 99}.get(step, 0))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_dag_goes_on_after_an_error_of_a_sensor_and_after_its_time(tmp_path: Path) -> None:
    circle, dag = tmp_path / "circle.py", tmp_path / "dag.py"
    circle.write_text(STAND_IN)
    text = (EXAMPLES / "airflow" / "train_and_serve.py").read_text()
    assert "timedelta(days=90)" in text
    dag.write_text(text.replace("timedelta(days=90)", "timedelta(seconds=3)"))
    env = {"SPARKDL_PYTHON": sys.executable, "SPARKDL_CIRCLE": str(circle), "SPARKDL_LOOK_S": "1"}
    env["SPARKDL_FOLDER"] = str(tmp_path / "bikes")
    airflow, log = Airflow(tmp_path / "airflow", dag, env), tmp_path / "airflow.log"
    with _run_of(airflow, log, tmp_path / "bikes") as run:
        assert run.wait(400) == 0, log.read_text()[-5000:]
    assert (tmp_path / "calls").read_text().split().count("decide") == 2
    skipped = airflow.query("SELECT task_id FROM task_instance WHERE state = 'skipped'")
    assert skipped == [("monitor",)]
    assert [name for name, _ in _tasks(airflow)] == [*TASKS, "next_round"]
    assert len(airflow.query("SELECT * FROM asset_event")) == 1
