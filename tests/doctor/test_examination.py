"""`sparkdl doctor` over a cluster in memory: which checks are made, and what is left behind."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

from sparkdl.cluster.spark_context import FailedTask
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.doctor import examination, root_probe
from sparkdl.doctor.examination import examine_cluster
from sparkdl.doctor.report import Check
from sparkdl.doctor.root_probe import probe_root
from sparkdl.files import storage
from tests.helpers.in_memory_cluster import InMemoryCluster, killed


class Cluster(InMemoryCluster):
    """A cluster of the version of PySpark that fails with a given error."""

    version = pyspark.__version__
    error: Exception | None = None
    num_executors = 1

    def executors(self) -> tuple[int, int]:
        return self.num_executors, 2 if self.num_executors != 1 else 1

    def submit(self, task: Any, *args: Any, **options: Any) -> list[Any]:
        if self.error:
            raise self.error
        return super().submit(task, *args, **options)


@pytest.fixture(autouse=True)
def without_holding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "HOLD_S", 0.0)


def examined(root: str, cluster: Cluster) -> dict[str, list[Check]]:
    """The checks by their subjects."""
    checks: dict[str, list[Check]] = {}
    for check in examine_cluster(cluster, root, lambda line: None):
        checks.setdefault(check.subject, []).append(check)
    return checks


def test_healthy_cluster(root: str) -> None:
    checks = examined(root, Cluster())
    assert list(checks) == list(examination.SUBJECTS[1:])
    states = {check.state for every in checks.values() for check in every}
    assert not states & {"fault", "skipped"}, checks
    text = checks["Root"][0].text
    assert text.startswith(f"{root}: write ")
    assert " ms on the driver; write " in text
    assert text.endswith(" ms on executors")
    assert os.listdir(root) == []


def test_root_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    checks = examined(str(tmp_path / "new"), Cluster())
    assert checks["Root"][0].state == "ok"
    assert os.listdir(tmp_path) == []


def test_session_of_spark_connect_needs_no_java(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Connect(Cluster):
        tasks_outlive_driver = True

    monkeypatch.setattr(examination, "SparkCluster", lambda spark: Connect())
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    report = examination.examine(root, spark=object())  # type: ignore[arg-type]
    java = report.checks[0]
    assert (java.subject, java.state) == ("Java", "skipped")
    assert report.is_healthy


def test_folders_above_a_new_root_are_not_made(tmp_path: Path) -> None:
    assert examined(f"{tmp_path}/a/b/runs", Cluster())["Root"][0].state == "ok"
    assert not [*tmp_path.iterdir()]


def test_root_that_the_driver_may_not_look_at_is_a_fault(tmp_path: Path) -> None:
    (check,) = examined(f"{tmp_path}/{'x' * 300}/runs", Cluster())["Root"]
    assert check.state == "fault"
    assert "File name too long" in check.text


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ("write", "The driver cannot write to"),
        ("remove", "The driver cannot delete a file in"),
    ],
)
def test_root_that_refuses_an_operation(
    root: str, monkeypatch: pytest.MonkeyPatch, operation: str, text: str
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage, operation, refuse)
    (fault,) = examined(root, Cluster())["Root"]
    assert fault.state == "fault"
    assert fault.text.startswith(text)
    assert "Permission denied" in fault.text


def test_root_that_hangs_is_given_up(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(root_probe, "LIMIT_S", 0.05)
    monkeypatch.setattr(storage, "write", lambda *_: answers.wait(240))
    begun_s = time.monotonic()
    probe = probe_root(f"{root}/.doctor-1", "driver")
    answers.set()
    assert time.monotonic() - begun_s < 120
    assert "cannot write to" in probe.error
    assert "no answer within 0.05 s" in probe.error


def test_folder_of_an_executor_that_is_another_one_stays_empty(root: str) -> None:
    probe = probe_root(f"{root}/.doctor-1", "executor-0", driver_mark="abc")
    assert (probe.sees_driver, probe.error, probe.mark) == (False, "", "")
    assert os.listdir(root) == []


def cancels(cluster: Cluster) -> Exception:
    return killed()


def lacks(cluster: Cluster) -> Exception:
    return JobFailed(JobEnd.ERROR, "ModuleNotFoundError: No module named 'pyarrow'")


@pytest.mark.parametrize(
    ("error", "subject", "text"),
    [
        (cancels, "Executors", "have not answered within"),
        (lacks, "Packages", "cannot import pyarrow"),
    ],
)
def test_job_that_fails_is_a_fault(
    root: str, error: Callable[[Cluster], Exception], subject: str, text: str
) -> None:
    cluster = Cluster()
    cluster.error = error(cluster)
    checks = examined(root, cluster)
    assert [check.state for check in checks[subject] if text in check.text] == ["fault"]
    assert checks["Network"][0].state == "skipped"
    assert os.listdir(root) == []


def test_executors_that_have_not_come_are_not_asked(root: str) -> None:
    cluster = Cluster()
    cluster.num_executors = 0
    cluster.error = AssertionError("a job would wait indefinitely")
    fault, skipped = examined(root, cluster)["Executors"]
    assert (fault.state, skipped.state) == ("fault", "skipped")
    assert "Only 0 of 2 executors" in fault.text
    assert skipped.text == "not checked: no executor has registered"


def test_executor_that_has_not_answered_is_a_fault(root: str) -> None:
    cluster = Cluster()
    cluster.num_executors = 2
    _, fault = examined(root, cluster)["Executors"]
    assert fault.text == "1 of 2 executors have answered."


def test_executors_on_which_tasks_fail_are_named(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [
        FailedTask("10.0.0.7", "2", "ModuleNotFoundError: No module named 'pyarrow'"),
        FailedTask("10.0.0.7", "2", "ModuleNotFoundError: No module named 'pyarrow'"),
        FailedTask("10.0.0.8", "3", 'Cannot run program "/opt/py": error=2'),
    ]
    monkeypatch.setattr(examination, "failed_tasks", lambda session, tag: tasks)
    fails, misses = Cluster(), Cluster()
    fails.error = lacks(fails)
    misses.num_executors = 3  # One of them has answered.
    for cluster in (fails, misses):
        checks = examined(root, cluster)
        faults = [c for every in checks.values() for c in every if c.state == "fault"]
        named = [c.text for c in faults if c.text.startswith("The executor ")]
        assert named == [
            "The executor 3 on 10.0.0.8 cannot start Python: there is no program /opt/py.",
            "The executor 2 on 10.0.0.7 cannot import pyarrow.",
        ]
        assert not [c for c in faults if "have answered" in c.text]


def test_no_slot_is_a_fault(root: str) -> None:
    checks = examined(root, Cluster(num_slots=0))
    assert checks["Slots"][0].state == "fault"
    assert checks["Executors"][1].text == "not checked: there is no slot"
