"""The judgement of `sparkdl doctor`: what the facts of driver and executors mean."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from sparkdl.cluster.preflight import PROGRAM_PACKAGES
from sparkdl.cluster.slots import Slots
from sparkdl.cluster.spark_settings import SparkSettings
from sparkdl.doctor import Check, HealthReport, State
from sparkdl.doctor.executor_checks import check_executors
from sparkdl.doctor.facts import Facts
from sparkdl.doctor.root_checks import check_root
from sparkdl.doctor.spark_checks import (
    check_gpus,
    check_network,
    check_num_executors,
    check_settings,
    check_slots,
    check_version,
    start_failure,
    task_failure,
)
from sparkdl.spark import versions
from tests.helpers.facts import executor, facts, probe

STANDALONE = "spark://master:7077"


def settings(master: str = STANDALONE, **conf: str) -> SparkSettings:
    return SparkSettings({k.replace("__", "."): v for k, v in conf.items()}.get, master)


def judged(
    executors: Sequence[Facts], driver: Facts | None = None, num_slots: int = 2
) -> dict[str, list[Check]]:
    """The checks of executors that have answered between 999 s and 1001 s, by state."""
    checks = check_executors(driver or facts(), executors, 999.0, 1001.0, num_slots)
    return by_state(checks)


def by_state(checks: Iterable[Check]) -> dict[str, list[Check]]:
    states: dict[str, list[Check]] = {"ok": [], "note": [], "fault": [], "skipped": []}
    for check in checks:
        states[check.state].append(check)
    return states


def only_fault(checks: dict[str, list[Check]]) -> Check:
    (fault,) = checks["fault"]
    assert fault.remedy.endswith("."), fault.remedy
    return fault


# ---- hosts


def test_healthy_executors_have_no_fault() -> None:
    states = judged([executor(), executor("c")])
    assert not states["fault"] + states["note"] + states["skipped"]
    subjects = [check.subject for check in states["ok"]]
    assert subjects == ["Python", "Packages", "Clocks", "Open files", "Disk space", "Memory"]
    assert "keras 3.15.1" in states["ok"][1].text


def test_packages_of_another_version_and_missing_packages_are_named() -> None:
    states = judged([executor(packages={"keras": "3.1.0"}), executor("c")])
    fault = only_fault(states)
    assert fault.text == "Versions differ: keras 3.1.0 (driver: 3.15.1) on b."
    fault = only_fault(judged([executor(), executor("c", packages={"numpy": "absent"})]))
    assert "absent on executors: numpy on c" in fault.text
    fault = only_fault(judged([executor(pyspark="3.5.0")]))
    assert "pyspark 3.5.0 on b; the driver has pyspark" in fault.text


@pytest.mark.parametrize("name", PROGRAM_PACKAGES)
def test_packages_that_a_program_would_refuse_are_faults(name: str) -> None:
    driver = facts(packages={**facts().packages, name: "2.0"})
    fault = only_fault(judged([executor(packages={name: "1.0"})], driver))
    assert fault.text == f"Versions differ: {name} 1.0 (driver: 2.0) on b."


def test_a_build_of_tensorflow_for_hosts_without_gpus_is_the_same_package() -> None:
    driver = facts(packages={"python": "3.12.1", "tensorflow-cpu": "2.21.0"})

    def checked(**packages: str) -> list[Check]:
        named = {name.replace("_", "-"): version for name, version in packages.items()}
        there = [executor(packages=named)]
        return [c for c in check_executors(driver, there, 1000.0, 1000.0, 1) if c.state == "fault"]

    assert not checked(tensorflow_cpu="absent", tensorflow="2.21.0")
    (other,) = checked(tensorflow_cpu="absent", tensorflow="2.20.0")
    assert "tensorflow 2.20.0 (driver: 2.21.0) on b" in other.text
    (missing,) = checked(tensorflow_cpu="absent")
    assert "absent on executors: tensorflow on b" in missing.text


def test_other_packages_that_differ_are_a_note() -> None:
    packages = {f"package-{number}": "1.0" for number in range(7)}
    states = judged([executor(packages={**packages, "python": "3.12.2"})])
    python, others = states["note"]
    assert not states["fault"]
    assert python.text == "Python 3.12.2 on b; the driver has 3.12.1."
    assert others.text.startswith("7 other packages differ")
    assert others.text.endswith("package-3, package-4 and 2 more")


def test_executors_of_one_host_are_told_apart_by_their_folders() -> None:
    states = judged([executor(folder="/w/0", packages={"keras": "3.1"}), executor(folder="/w/1")])
    assert only_fault(states).text.endswith("on b (in /w/0).")


@pytest.mark.parametrize(("time_s", "text"), [(1900.0, "899 s ahead"), (100.0, "899 s behind")])
def test_clock_that_differs_is_a_fault(time_s: float, text: str) -> None:
    fault = only_fault(judged([executor(), executor("c", time_s=time_s)]))
    assert f"by at least {text} on c" in fault.text
    assert "NTP" in fault.remedy


def test_clock_within_the_time_of_the_job_is_no_fault() -> None:
    assert not judged([executor(time_s=1004.0)])["fault"]


def test_few_open_files_are_a_fault_of_executors_and_of_a_driver_with_many_slots() -> None:
    fault = only_fault(judged([executor(open_files=(64, 64))]))
    assert "only 64 open files on b" in fault.text
    driver = facts(open_files=(1024, 4096))
    assert not judged([executor()], driver)["fault"]
    fault = only_fault(judged([executor()], driver, num_slots=2000))
    assert "at most" not in fault.text
    assert "4096 open files, and 2000 slots need 7628" in fault.text


def test_full_disks_are_a_fault() -> None:
    fault = only_fault(judged([executor(free_mb={"/tmp": 3, "/data": 9000})]))
    assert fault.text.endswith("3 MiB in /tmp on b.")
    fault = only_fault(judged([executor()], facts(free_mb={"/tmp": 0})))
    assert fault.text.endswith("0 MiB in /tmp on the driver.")


def test_limited_memory_is_a_fault_and_small_shared_memory_of_several_gpus_a_note() -> None:
    fault = only_fault(judged([executor(address_space_mb=2048)]))
    assert "spark.executor.pyspark.memory" in fault.remedy
    states = judged([executor(gpus=["0", "1"], shared_memory_mb=64)])
    assert "/dev/shm has 64 MiB on b" in states["note"][0].text
    assert not judged([executor(gpus=["0"], shared_memory_mb=64)])["note"]


# ---- root


def test_root_tells_its_latency() -> None:
    quick = executor("c", root=probe(seconds={"write": 0.05, "read": 0.001, "delete": 0.001}))
    (check,) = check_root("/runs", probe(), [executor(), quick], ())
    assert check.state == "ok"
    assert check.text == (
        "/runs: write 2.0 ms, read 1.0 ms, delete 1.0 ms on the driver; write 2.0 to 50 ms, "
        "read 1.0 ms, delete 1.0 ms on executors"
    )
    slow = executor(root=probe(seconds={"write": 3.0, "read": 0.1, "delete": 0.1}))
    (check,) = check_root("/runs", probe(), [slow], ())
    assert check.state == "note"
    assert "write 3000 ms" in check.text


@pytest.mark.parametrize(
    ("root", "unseen", "text"),
    [
        (probe(sees_driver=False), (), "/runs is not shared: a file that the driver has written"),
        (probe(sees_driver=True, name="x", mark="1"), ("x",), "the driver does not see files"),
        (probe(seconds={}, error="cannot write to /runs (OSError: no)."), (), "cannot write to"),
    ],
)
def test_root_that_executors_cannot_use_is_a_fault(
    root: Any, unseen: Sequence[str], text: str
) -> None:
    states = by_state(check_root("/runs", probe(), [executor("c", root=root), executor()], unseen))
    fault = only_fault(states)
    assert text in fault.text
    assert " on c" in fault.text
    assert "SPARKDL_ROOT" in fault.remedy
    assert not states["ok"]


def test_root_that_the_driver_cannot_use_is_told_once() -> None:
    broken = probe(seconds={}, error="cannot write to /runs (TimeoutError: no answer).")
    fault = only_fault(by_state(check_root("/runs", broken, [executor()], ())))
    assert fault.text.startswith("The driver cannot write to /runs")
    assert "does not answer" in fault.remedy


# ---- Spark


@pytest.mark.parametrize(
    ("error", "subject", "text"),
    [
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in "
            "driver: 3.12, PySpark ...",
            "Python",
            "The executors cannot run the functions of the driver: Python 3.9 there, and 3.12.1 on "
            "the driver.",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/py": error=2, No such file',
            "Python",
            "The executors cannot start Python: there is no program /opt/py.",
        ),
        (
            "ModuleNotFoundError: No module named 'sparkdl'",
            "Packages",
            "The executors cannot import sparkdl.",
        ),
        ("something else\nmore", "Executors", "The executors cannot run a task: something else"),
    ],
)
def test_task_that_cannot_run_names_its_executor(error: str, subject: str, text: str) -> None:
    check = task_failure(error, "3.12.1")
    assert (check.subject, check.state, check.text) == (subject, "fault", text)
    assert check.remedy
    place = "The executor 1 on 10.0.0.7"
    assert task_failure(error, "3.12.1", place).text.startswith(place)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("java.net.UnknownHostException: host1", "SPARK_LOCAL_IP"),
        ("PySparkRuntimeError: [JAVA_GATEWAY_EXITED] Java gateway process exited", "printed above"),
        ("SparkException: All masters are unresponsive!", "--master"),
        ("ValueError: spark.task.cpus is x", "settings of Spark"),
    ],
)
def test_spark_that_cannot_start_is_a_fault(error: str, remedy: str) -> None:
    check = start_failure(f"An error occurred\n: {error}\n\tat org.apache")
    assert check.text == f"Spark cannot be started: {error}"
    assert remedy in check.remedy


def test_versions_of_pyspark_and_spark_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", {"pyspark": "4.1.1"}.get)
    assert [c.state for c in check_version("4.1.0-vendor.2", is_connect=False)] == ["ok"]
    (check,) = check_version("3.5.1", is_connect=False)
    assert (check.state, check.text) == ("fault", "PySpark 4.1.1 drives Spark 3.5.1.")
    assert "pip install 'pyspark==3.5.*', or unset SPARK_HOME" in check.remedy
    (check,) = check_version("3.5.1", is_connect=True)
    assert (check.state, "SPARK_HOME" in check.remedy) == ("note", False)
    assert [c.state for c in check_version("3.4.2", is_connect=True)] == ["fault", "note"]


def test_executors_that_have_not_registered_are_a_fault() -> None:
    assert check_num_executors(settings(), 2, 2, "10.0.0.1").state == "ok"
    assert check_num_executors(settings("local[2]"), 1, 1, "127.0.0.1").state == "ok"
    check = check_num_executors(settings(), 0, 2, "10.0.0.1")
    assert (check.state, "queue" in check.remedy) == ("fault", True)
    check = check_num_executors(settings(), 0, 2, "127.0.0.1")
    assert "unset SPARK_LOCAL_IP, or set spark.driver.host" in check.remedy
    gpus = settings(spark__executor__resource__gpu__amount="2")
    check = check_num_executors(gpus, 0, 2, "10.0.0.1")
    assert "each executor must find 2 GPU(s) by its discovery script" in check.remedy
    dynamic = settings(spark__dynamicAllocation__enabled="true")
    assert check_num_executors(dynamic, 1, 5, "10.0.0.1").state == "ok"


def test_no_slot_is_a_fault_and_idle_cores_are_a_note() -> None:
    large = settings(spark__executor__cores="3", spark__task__cpus="4")
    fault = only_fault(by_state(check_slots(large, Slots(0, 0, "0 slots"))))
    assert "Lower spark.task.cpus" in fault.remedy
    odd = settings(spark__executor__cores="3", spark__task__cpus="2")
    (note,) = by_state(check_slots(odd, Slots(1, 2, "1 slot")))["note"]
    assert note.text.startswith("1 of 3 cores of each executor stay idle")
    gpus = {
        "spark__executor__resource__gpu__amount": "4",
        "spark__task__resource__gpu__amount": "1",
    }
    few = settings(spark__executor__cores="2", **gpus)
    (note,) = by_state(check_slots(few, Slots(2, 2, "2 slots")))["note"]
    assert note.text.startswith("An executor has 4 GPUs and runs only 2 task(s)")


def test_settings_that_matter_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_state(check_settings(settings(), {}))["ok"]
    fault = only_fault(by_state(check_settings(settings(spark__speculation="true"), {})))
    assert fault.remedy == "Start Spark with spark.speculation=false."
    limited = settings(spark__executor__pyspark__memory="2g")
    assert "address space" in only_fault(by_state(check_settings(limited, {}))).text
    dynamic = settings(spark__dynamicAllocation__enabled="true")
    (note,) = by_state(check_settings(dynamic, {"SPARKDL_TEST_X": "1"}))["note"]
    assert "refuses gangs" in note.text
    (note,) = by_state(check_settings(settings(), {"SPARKDL_ROOTS": "/r"}))["note"]
    assert note.remedy == "Did you mean SPARKDL_ROOT?"
    monkeypatch.setenv("SPARKDL_SLOTS", "many")
    fault = only_fault(by_state(check_settings(settings(), {})))
    assert fault.text.startswith("SPARKDL_SLOTS is 'many'; expected int")


GPUS = {"spark__executor__resource__gpu__amount": "2", "spark__task__resource__gpu__amount": "1"}


@pytest.mark.parametrize(
    ("spark", "detects", "there", "state", "text"),
    [
        (settings(), False, executor(), "ok", "none, and none were asked for"),
        (settings(), True, executor(gpus=["0"]), "ok", "1 GPU(s) on b; trials share them"),
        (settings(), False, executor(gpus=["0"]), "note", "but Spark schedules none"),
        (settings(**GPUS), False, executor(gpus=["0"]), "fault", "schedules 2 GPU(s) per executor"),
        (settings(**GPUS), False, executor(), "fault", "the driver library shows no GPU(s) on b"),
        (
            settings(**GPUS),
            False,
            executor(gpus=["0", "1"], assigned_gpus=["0"]),
            "ok",
            "2 per executor, 1 per task",
        ),
        (settings(**GPUS), False, executor(gpus=["0", "1"]), "fault", "assigned no GPU"),
        (
            settings(spark__executor__resource__gpu__amount="2"),
            False,
            executor(gpus=["0", "1"]),
            "note",
            "spark.task.resource.gpu.amount is not set",
        ),
        (
            settings("local[2]", spark__task__resource__gpu__amount="1"),
            False,
            executor(),
            "fault",
            "embedded Spark (local[2]) schedules no GPUs",
        ),
    ],
)
def test_gpus_of_spark_are_compared_with_those_of_the_hosts(
    spark: SparkSettings, detects: bool, there: Facts, state: str, text: str
) -> None:
    (check,) = check_gpus(spark, detects, [there])
    assert check.state == state
    assert text in check.text
    assert bool(check.remedy) == (state != "ok")


def test_gpus_that_others_hold_are_named_once_per_host() -> None:
    held = {"gpus": ["0", "1"], "held_gpus": {"0": "run x, process 3"}, "busy_gpus": ["0", "1"]}
    _, note = check_gpus(settings(), True, [executor(**held), executor(**held)])
    assert note.text == "On b: GPU 0 is held by run x, process 3; a process computes on GPU 1."


def test_addresses_that_other_hosts_cannot_reach_are_a_fault() -> None:
    alone = executor(local_ip="127.0.0.1")
    assert check_network(settings(), "10.0.0.1", [alone]).state == "ok"
    check = check_network(settings(), "10.0.0.1", [alone, executor("c")])
    assert check.state == "fault"
    assert "SPARK_LOCAL_IP is 127.0.0.1 on b" in check.text
    assert check_network(settings(), "10.0.0.1", []).state == "skipped"
    assert check_network(settings("local[2]"), "127.0.0.1", []).state == "ok"


def test_report_counts_its_faults_and_wraps_its_lines() -> None:
    long = Check("Root", State.FAULT, "word " * 40, "Mend it.")
    lines = str(HealthReport([long, long])).splitlines()
    assert lines[-1] == "2 faults."
    assert max(map(len, lines)) <= 100
    assert str(HealthReport([])) == "No faults."
    assert HealthReport([long]).to_dict()["checks"][0]["remedy"] == "Mend it."
