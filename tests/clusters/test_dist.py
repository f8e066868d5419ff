"""The wheel and the source distribution of `make dist`, in an environment with the core only."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import sparkdl
from tests.clusters.standalone import REPOSITORY

VENV = Path(sys.prefix)


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(each) for each in command], cwd="/", env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist") / "files"
    print(run("bash", REPOSITORY / "scripts" / "dist.sh", VENV, folder))
    return folder


def only(paths: Sequence[Path]) -> Path:
    (path,) = paths
    return path


def committed(*places: str) -> set[str]:
    return set(run("git", "-C", REPOSITORY, "ls-files", *places).splitlines())


def test_the_wheel_has_every_file_of_the_package_and_no_other(dist: Path) -> None:
    with zipfile.ZipFile(only([*dist.glob("*.whl")])) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == committed("sparkdl")


def test_the_source_distribution_has_what_builds_the_wheel(dist: Path) -> None:
    with tarfile.open(only([*dist.glob("*.tar.gz")])) as tar:
        names = {name.partition("/")[2] for name in tar.getnames() if tar.getmember(name).isfile()}
    needed = committed("sparkdl", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
    made = {name for name in names if "egg-info/" in name or name == "PKG-INFO"}
    assert names - made == needed | {"CHANGELOG.md", "MANIFEST.in"}


@pytest.fixture(scope="module")
def bare(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel and what it requires, and nothing else."""
    venv, uv = tmp_path_factory.mktemp("bare") / "venv", VENV / "bin" / "uv"
    run(uv, "venv", "--quiet", "--python", sys._base_executable, venv)  # type: ignore[attr-defined]
    wheel = only([*dist.glob("*.whl")])
    run(uv, "pip", "install", "--quiet", "--python", venv / "bin" / "python", wheel)
    return venv / "bin"


@pytest.fixture(scope="module")
def found(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("runs")
    program = REPOSITORY / "tests" / "clusters" / "programs" / "bare.py"
    others = ("PYTHONPATH", "PYSPARK_PYTHON")
    env = {key: value for key, value in os.environ.items() if key not in others}
    printed = run(bare / "python", program, root, env=env)
    return {"root": str(root), **json.loads(printed.splitlines()[-1])}


def test_the_core_runs_without_a_framework(found: dict[str, Any]) -> None:
    assert found["best"] == {"x": 1}
    assert found["states"] == ["PRUNED", "COMPLETE", "PRUNED"]
    assert found["report"] and found["page"] == 200
    assert found["read"] == {"parquet": 4950.0, "csv": 4950.0}
    assert found["reduced"] == {"mean": 2475.0}
    assert found["loaded"] == []


def test_what_is_missing_is_named_before_spark_starts(found: dict[str, Any]) -> None:
    extras = [re.findall(r"sparkdl-platform\[(\w+)\]", text) for text in found["refused"]]
    assert extras == [["tensorflow"], ["torch"], ["tensorboard"]]
    assert not found["has_started"]


def test_all_agree_on_the_version(found: dict[str, Any], bare: Path) -> None:
    assert found["file"].startswith(str(bare.parent))
    versions = {found["version"], found["installed"], found["recorded"]["sparkdl"]}
    assert versions == {sparkdl.__version__}
    assert run(bare / "sparkdl", "--version").strip() == sparkdl.__version__


def test_the_command_shows_runs(found: dict[str, Any], bare: Path) -> None:
    listed = run(bare / "sparkdl", "runs", "--root", found["root"])
    names = re.findall(r"\S+-\d{8}-\d{6}-\w{4}", listed)
    assert len(names) == 4
    shown = run(bare / "sparkdl", "show", f"{found['root']}/{names[0]}")
    assert "COMPLETE" in shown
    paths = [f"{found['root']}/{name}" for name in names[:2]]
    assert all(name in run(bare / "sparkdl", "compare", *paths) for name in names[:2])
