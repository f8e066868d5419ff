"""A23: a run directory that one executor does not see is told before any trial."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment
from sparkdl.errors import PreflightError
from tests.helpers.spark import start_session

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"]).returncode != 0,
        reason="giving one executor another view of the disk needs a mount namespace of its own",
    ),
]

# An executor's Python. That of executor 1 finds an empty folder where the runs should be.
PYTHON = """#!/bin/bash
case "$PWD" in
  */1) exec unshare -m bash -c 'mount -t tmpfs none "$0" && exec "$@"' {hidden!r} {python} "$@" ;;
  *) exec {python} "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def half_blind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder which one of two executors finds empty."""
    folder = tmp_path_factory.mktemp("half_blind")
    shared = folder / "shared"
    shared.mkdir()
    wrapper = folder / "python"
    wrapper.write_text(PYTHON.format(hidden=str(shared), python=sys.executable))
    wrapper.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(wrapper))
        session = start_session("local-cluster[2,1,1024]", spark__executor__memory="1g")
        yield shared
        session.stop()


@pytest.mark.acceptance("A23")
def test_a_run_directory_that_an_executor_cannot_see_is_refused(
    half_blind: Path, tmp_path: Path
) -> None:
    def train(x: int) -> int:
        (tmp_path / "called").touch()
        return x

    root = str(half_blind)
    with pytest.raises(PreflightError) as caught:
        experiment.launch(train, {"x": [0, 1, 2, 3]}, root=root, progress=False)
    said = str(caught.value)
    assert f"executor on host {os.uname().nodename}" in said
    assert "/1" in said
    assert "does not see the run directory" in said
    assert "SPARKDL_ROOT" in said
    assert not (tmp_path / "called").exists()
    assert experiment.history(root)["state"].tolist() == ["FAILED"]


def test_versions_that_differ_are_named(
    half_blind: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other() -> dict[str, Any]:
        return {"python": "3.9", "sparkdl": "0.0.1"}

    monkeypatch.setattr("sparkdl.runs.provenance.versions", other)
    with pytest.raises(PreflightError, match=r"python 3\.1\d \(driver: 3\.9\), sparkdl"):
        experiment.launch(lambda: 0, root=str(tmp_path), progress=False)
