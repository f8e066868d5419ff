"""`sparkdl doctor` names real faults of real executors, each of which a test has planted.

Executors find their Python by a script that first spoils something for one of them.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl.cli.main import main
from sparkdl.cluster.gpus import locks
from sparkdl.doctor import Check, HealthReport, examination, examine
from sparkdl.files import storage
from tests.helpers.processes import eventually
from tests.helpers.spark import JAVA_OPTIONS

pytestmark = pytest.mark.slow

CAN_MOUNT = shutil.which("unshare") and not subprocess.run(["unshare", "-m", "true"]).returncode
needs_mounts = pytest.mark.skipif(not CAN_MOUNT, reason="mount namespaces cannot be made here")

# The script of an executor's Python. Each executor works in a folder that ends in its number.
PYTHON = """#!/bin/bash
case "$PWD" in
  */{numbers[0]}) {zero} ;;
  */{numbers[1]}) {one} ;;
  */{numbers[2]}) {two} ;;
esac
exec {python} "$@"
"""
MOUNTED = """exec unshare -m bash -c {command} {python} "$@" """


# What Python runs at its start to be without pyarrow.
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture(scope="module")
def numbers(three_executors: SparkSession) -> list[str]:
    """The numbers of the executors, which are other ones if an earlier test has ended some."""

    def number(_: int) -> str:
        time.sleep(0.3)
        return os.path.basename(os.getcwd())

    tasks = three_executors.sparkContext.parallelize(range(6), 6).map(number)
    seen: list[set[str]] = []
    assert eventually(lambda: seen.append(set(tasks.collect())) or len(seen[-1]) == 3)
    return sorted(seen[-1], key=int)


def write_python(
    folder: Path, numbers: list[str], zero: str = ":", one: str = ":", two: str = ":"
) -> str:
    """Write a Python that runs a command of the shell first, and return its path.

    Args:
        folder: the folder of the script.
        numbers: the numbers of the executors.
        zero, one, two: the commands of the first, second and third executor.
    """
    script = folder / "python"
    text = PYTHON.format(numbers=numbers, zero=zero, one=one, two=two, python=sys.executable)
    script.write_text(text)
    script.chmod(0o755)
    return str(script)


def mounted(command: str, before: str = ":") -> str:
    """The command of the shell for an executor that sees other file systems than the others."""
    quoted = "'" + f'{command} && exec "$0" "$@"' + "'"
    return f"{before}; " + MOUNTED.format(command=quoted, python=sys.executable)


def startup(folder: Path, code: str) -> str:
    """The command of the shell for an executor whose Python runs some code at its start."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return f"export PYTHONPATH={folder}:$PYTHONPATH"


@pytest.fixture
def diagnosed(
    three_executors: SparkSession, numbers: list[str], root: str, tmp_path: Path
) -> Iterator[Callable[..., HealthReport]]:
    """Examine three executors with another Python each time."""
    context = three_executors.sparkContext
    before = context.pythonExec

    def run(**commands: str) -> HealthReport:
        context.pythonExec = write_python(tmp_path, numbers, **commands)
        return examine(root, spark=three_executors)

    yield run
    context.pythonExec = before


def only_fault(report: HealthReport) -> Check:
    (fault,) = report.faults
    assert fault.remedy
    return fault


# ---- the job of the examination runs, and brings the faults of each executor


@pytest.fixture(scope="module")
def spoilt(
    three_executors: SparkSession, numbers: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Check]:
    """The faults of three executors, of which each has three, by subject."""
    if not CAN_MOUNT:
        pytest.skip("mount namespaces cannot be made here")
    folder = tmp_path_factory.mktemp("spoilt")
    for name in ("root", "full"):
        (folder / name).mkdir()
    (folder / "packages" / "keras-1.0.dist-info").mkdir(parents=True)
    hidden = "import os\nlist_names = os.listdir\nos.listdir = lambda path='.': [" + (
        "n for n in list_names(path) if not n.startswith('cloudpickle-')]\n"
    )
    ahead = "import time\nclock = time.time\ntime.time = lambda: clock() + 3600\n"
    commands = {
        "zero": f"ulimit -n 64; export PYTHONPATH={folder}/packages:$PYTHONPATH",
        "one": mounted(f"mount -t tmpfs none {folder}/root", startup(folder / "hidden", hidden)),
        "two": mounted(
            f"mount --bind {folder}/root {folder}/root && "
            f"mount -o remount,bind,ro {folder}/root && "
            f"mount -t tmpfs -o size=8m none {folder}/full",
            f"{startup(folder / 'ahead', ahead)}; export TMPDIR={folder}/full",
        ),
    }
    context = three_executors.sparkContext
    before, context.pythonExec = context.pythonExec, write_python(folder, numbers, **commands)
    try:
        report = examine(str(folder / "root"), spark=three_executors)
    finally:
        context.pythonExec = before
    assert os.listdir(folder / "root") == []
    assert not report.is_healthy
    return {check.text: check for check in report.faults}


@pytest.mark.parametrize(
    ("subject", "executor", "text", "remedy"),
    [
        ("Open files", 0, "only 64 open files on", "ulimit -n"),
        ("Packages", 0, "Versions differ: keras 1.0 (driver: ", "--archives"),
        ("Packages", 1, "absent on executors: cloudpickle on", "--archives"),
        ("Root", 1, "is not shared: a file that the driver has written", "NFS, HDFS"),
        ("Root", 2, "Read-only file system", "write and delete there"),
        ("Clocks", 2, "s ahead on", "NTP"),
        ("Disk space", 2, "MiB in ", "TMPDIR"),
    ],
)
def test_fault_of_one_executor_is_named_with_its_place_and_remedy(
    spoilt: dict[str, Check],
    numbers: list[str],
    subject: str,
    executor: int,
    text: str,
    remedy: str,
) -> None:
    (fault,) = (check for check in spoilt.values() if text in check.text)
    assert fault.subject == subject
    assert f"/{numbers[executor]})" in fault.text
    assert remedy in fault.remedy


def test_nothing_else_is_a_fault_of_these_executors(spoilt: dict[str, Check]) -> None:
    assert len(spoilt) == 7, spoilt


# ---- the job fails: Spark repeats the task on the executor with the fault


def test_other_python_of_one_executor_is_named(
    diagnosed: Callable[..., HealthReport], numbers: list[str], tmp_path: Path
) -> None:
    code = (
        "import collections, os, sys\n"
        "Version = collections.namedtuple('V', 'major minor micro releaselevel serial')\n"
        "old = Version(3, 9, 1, 'final', 0)\n"
        # The daemon of the workers imports packages that know its real version.
        "os.register_at_fork(after_in_child=lambda: setattr(sys, 'version_info', old))\n"
    )
    fault = only_fault(diagnosed(one=startup(tmp_path / "old", code)))
    here = ".".join(map(str, sys.version_info[:3]))
    assert fault.subject == "Python"
    assert fault.text.startswith(f"The executor {numbers[1]} on ")
    assert fault.text.endswith(f": Python 3.9 there, and {here} on the driver.")
    assert "PYSPARK_PYTHON" in fault.remedy


def test_package_that_an_executor_cannot_import_is_named(
    diagnosed: Callable[..., HealthReport], numbers: list[str], tmp_path: Path
) -> None:
    fault = only_fault(diagnosed(two=startup(tmp_path / "lacks", HIDDEN)))
    assert fault.subject == "Packages"
    assert fault.text.startswith(f"The executor {numbers[2]} on ")
    assert fault.text.endswith(" cannot import pyarrow.")


def test_python_that_no_executor_has_is_named(
    three_executors: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(three_executors.sparkContext, "pythonExec", "/opt/no/python")
    faults = examine(root, spark=three_executors).faults
    assert {fault.subject for fault in faults} == {"Python"}
    assert faults[0].text.startswith("The executor ")
    assert faults[0].text.endswith("cannot start Python: there is no program /opt/no/python.")


# ---- no fault


def test_healthy_executors_are_told_on_the_command_line(
    three_executors: SparkSession,
    root: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examination, "HOLD_S", 3.0)
    assert main(["doctor", "--root", root, "--json"]) == 0, capsys.readouterr().out
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["healthy"]
    texts = {check["subject"]: check["text"] for check in report["checks"]}
    assert texts["Executors"].startswith("3 of 3 executors of local-cluster[3,1,1024]")
    assert texts["Slots"].startswith("3 trial(s) at once")
    assert " ms on executors" in texts["Root"]
    assert "Asking 3 slots" in captured.err
    assert storage.list_names(root) == []


def test_locks_of_gpus_are_seen_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")
    assert locks.held_devices(["0"]) == {}
    with locks.locked_devices(["0", "1"], 1, "run x, process 7"):
        assert locks.held_devices(["0", "1"]) == {"0": "run x, process 7"}
        assert locks.held_devices(["0", "1"]) == {"0": "run x, process 7"}
    assert locks.held_devices(["0", "1"]) == {}


# ---- programs of their own


def doctor(*words: str, **environ: str) -> Any:
    """Exit code and report of `sparkdl doctor` as a program of its own, without the disk."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))}
    env = {**outer, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": JAVA_OPTIONS, **environ}
    code = "import sys; from sparkdl.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "doctor", "--json", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=480)
    report = json.loads(done.stdout)
    report["checks"] = [c for c in report["checks"] if c["subject"] != "Disk space"]
    return done.returncode, report


def test_missing_java_is_the_first_fault_and_spark_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    code, report = doctor("--root", str(tmp_path), PATH=str(tmp_path / "bin"), JAVA_HOME="")
    first, *others = report["checks"]
    assert code == 1
    assert (first["subject"], first["state"]) == ("Java", "fault")
    assert first["remedy"].startswith("Install Java 17")
    states = {check["subject"]: check["state"] for check in others}
    assert (states["Executors"], states["Root"]) == ("skipped", "ok")
    assert "fault" not in states.values()
    assert os.listdir(tmp_path) == ["bin"]


def test_spark_is_started_with_the_options_and_speculation_is_named(tmp_path: Path) -> None:
    options = ["--master", "local[3]", "--conf", "spark.speculation=true"]
    code, report = doctor("--root", str(tmp_path), *options, "--conf", "spark.ui.enabled=false")
    assert code == 1
    (fault,) = (check for check in report["checks"] if check["state"] == "fault")
    assert fault["text"].startswith("spark.speculation is true")
    texts = {check["subject"]: check["text"] for check in report["checks"]}
    assert texts["Executors"] == "Spark is embedded (local[3]): the driver runs the tasks"
    assert texts["Slots"].startswith("3 trial(s) at once")
