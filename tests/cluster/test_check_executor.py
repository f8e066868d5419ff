"""The check of one executor."""

import json
import os
import pwd
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from sparkdl.cluster import preflight
from sparkdl.cluster.preflight import (
    check_executor,
    different_builds,
    raise_for_problems,
    versions_of,
)
from sparkdl.errors import PreflightError
from sparkdl.files import polling, storage
from sparkdl.files.layout import RunPaths


@pytest.fixture
def paths(root: str) -> RunPaths:
    paths = RunPaths(root)
    storage.write(paths.run, json.dumps({"id": "run"}))
    return paths


def test_executor_that_writes_leaves_nothing(paths: RunPaths) -> None:
    before = sorted(Path(paths.folder).iterdir())
    assert check_executor("run", paths, {}, (), None, writes=True) is None
    assert sorted(Path(paths.folder).iterdir()) == before


@pytest.mark.parametrize("operation", ["write", "remove"])
def test_executor_that_cannot_write_is_named_with_its_user(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage, operation, refused)
    assert check_executor("run", paths, {}, (), None) is None  # The executor reads only.
    problem = check_executor("run", paths, {}, (), None, writes=True) or ""
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert problem.startswith(f"executor on host {os.uname().nodename} cannot write to")
    assert f"as user {user} (PermissionError: [Errno 13] Permission denied)" in problem
    assert f"Let user {user} write there, or set root= (or SPARKDL_ROOT)" in problem


@pytest.mark.parametrize("operation", ["read", "write", "remove"])
def test_store_that_fails_for_a_moment_is_no_problem(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(polling.time, "sleep", slept.append)
    work, errors = getattr(storage, operation), [OSError(116, "Stale file handle")] * 2

    def fail_twice(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        return work(*args)

    monkeypatch.setattr(storage, operation, fail_twice)
    assert check_executor("run", paths, {}, (), None, writes=True) is None
    assert slept == [0.5, 1.0]


def test_store_that_goes_on_failing_is_named_after_the_given_time(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(storage, "read", fail)
    problem = check_executor("run", paths, {}, (), None, patience_s=0.0) or ""
    assert "does not see the run directory" in problem


def test_run_directory_that_is_closed_to_the_user_is_told_with_the_setting(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage, "read", refuse)
    problem = check_executor("run", paths, {}, (), None) or ""
    assert f"may not read the run directory {paths.folder} as user" in problem
    assert "SPARKDL_PERMISSIONS" in problem
    # An object store that refuses has no permissions of folders.
    problem = check_executor("run", RunPaths("s3://bucket/run"), {}, (), None) or ""
    assert "does not see the run directory s3://bucket/run (PermissionError" in problem


def test_executor_that_sees_another_run_or_lacks_a_module_is_named(paths: RunPaths) -> None:
    assert "sees another run, run, in" in (check_executor("other", paths, {}, (), None) or "")
    problem = check_executor("run", paths, {"python": "2.7"}, (), None) or ""
    assert "(driver: 2.7)" in problem
    problem = check_executor("run", paths, {}, ["no_such_module.part"], None) or ""
    assert "lacks the module(s) no_such_module, which" in problem
    assert f"its Python is {sys.executable}. Install them there" in problem


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ("/left/over/python", "(spark.pyspark.python) is /left/over/python, and the driver runs "),
        (None, "PYSPARK_PYTHON (spark.pyspark.python) is not set, and the driver runs "),
        (sys.executable, f"The executors run the Python of the driver, {sys.executable}."),
    ],
)
def test_the_choice_of_a_python_that_lacks_a_module_is_named(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, chosen: str | None, sentence: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if chosen:
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
    problem = check_executor("run", paths, {}, ["no_such_module"], None)
    with pytest.raises(PreflightError) as caught:
        raise_for_problems([problem, None])
    assert sentence in str(caught.value).splitlines()[-1]
    with pytest.raises(PreflightError) as caught:
        raise_for_problems([check_executor("other", paths, {}, (), None)])
    assert "Python" not in str(caught.value)


def test_executor_of_another_spark_is_named(paths: RunPaths) -> None:
    release = ".".join(pyspark.__version__.split(".")[:2])
    same = versions_of(f"{release}.77-vendor.1")
    assert check_executor("run", paths, same, (), None) is None
    problem = check_executor("run", paths, versions_of("3.4.1"), (), None) or ""
    assert f"has pyspark {release} (driver: 3.4). Install the driver's versions there" in problem


def test_packages_that_the_program_imports_must_be_the_drivers(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"torch": "2.15.0+cpu", "transformers": "5.24.0", "jax": "0.10.2"}
    monkeypatch.setattr(preflight, "installed_packages", lambda: here)
    wanted = versions_of(pyspark.__version__, ["torch.nn", "transformers", "peft"])
    assert (wanted["torch"], wanted["transformers"]) == ("2.15.0", "5.24.0")
    assert not {"jax", "peft"} & set(wanted)
    # Another build is no other version, and other packages are not compared.
    here |= {"torch": "2.15.0+cu126", "jax": "0.9.0"}
    assert check_executor("run", paths, wanted, (), None) is None
    here["torch"] = "2.14.1"
    del here["transformers"]
    problem = check_executor("run", paths, wanted, (), None) or ""
    assert "has torch 2.14.1 (driver: 2.15.0), transformers absent (driver: 5.24.0)." in problem
    assert "pip install 'sparkdl-platform[huggingface]'" in problem


def test_builds_of_executors_with_gpus_must_be_equal() -> None:
    driver = {"torch": "2.15.0", "nvidia-nccl-cu13": "2.30.4", "numpy": "2.4.6"}

    def executor(host: str, gpus: list[str], **packages: str) -> dict[str, Any]:
        named = {name.replace("_", "-"): version for name, version in packages.items()}
        return {"host": host, "gpus": gpus, "packages": named}

    equal = [executor("a", ["H100"]), executor("b", ["H100"], numpy="2.4.5")]
    assert different_builds(equal, driver) is None
    assert different_builds([executor("a", []), executor("b", [], torch="1")], driver) is None
    other = executor("c", ["H100"], torch="2.15.0+cu126", nvidia_nccl_cu13="absent")
    assert different_builds([*equal, other], driver) == (
        "executors have different builds of what connects their GPUs: nvidia-nccl-cu13 2.30.4, "
        "torch 2.15.0 on a, b; torch 2.15.0+cu126 on c. Install the same build on all of them."
    )
