"""Airflow in an environment of its own, with a database and a folder of DAGs for each test.

Airflow narrows the versions of packages that sparkdl uses, so that it is not installed beside
sparkdl. The environment is made once, which needs an index of packages. The variable
SPARKDL_TEST_AIRFLOW names another folder than ~/.cache/sparkdl/airflow.
"""

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Airflow"]

ENVIRONMENT = Path(
    os.environ.get("SPARKDL_TEST_AIRFLOW", Path.home() / ".cache" / "sparkdl" / "airflow")
)
PACKAGES = ("apache-airflow>=3.1,<4", "apache-airflow-providers-standard")
INSTALL_S = 900


def _python() -> Path:
    """Return the Python of the environment; the test is skipped where it cannot be made."""
    python, mark = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".done"
    ENVIRONMENT.parent.mkdir(parents=True, exist_ok=True)
    with open(ENVIRONMENT.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            for arguments in (
                ["venv", "--python", sys.executable, "--clear", str(ENVIRONMENT)],
                ["pip", "install", "--python", str(python), *PACKAGES],
            ):
                _uv(arguments)
            mark.touch()
    return python


def _uv(arguments: list[str]) -> None:
    env = dict(os.environ)
    pip = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(pip, capture_output=True, text=True)
    if index := env.get("PIP_INDEX_URL") or done.stdout.strip():
        env["UV_DEFAULT_INDEX"] = index  # uv does not read the settings of pip.
    try:
        subprocess.run(
            [sys.executable, "-m", "uv", *arguments],
            env=env,
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
    except (subprocess.SubprocessError, OSError) as exc:
        text = str(getattr(exc, "stderr", "") or exc).strip()
        pytest.skip(f"there is no Airflow in {ENVIRONMENT}, and it cannot be installed: {text}")


class Airflow:
    """An Airflow whose files are in a folder.

    Args:
        folder: the folder.
        dag: the file of a DAG.
        env: variables for the tasks.
    """

    def __init__(self, folder: Path, dag: Path, env: Mapping[str, str]) -> None:
        self._python = _python()
        self._dag = folder / "dags" / dag.name
        self._dag.parent.mkdir(parents=True)
        shutil.copy(dag, self._dag)
        self._database = folder / "airflow.db"
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AIRFLOW"))}
        self._env = {
            **outer,
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self._dag.parent),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self._database}",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            **env,
        }
        done = subprocess.run(
            [self._python, "-m", "airflow", "db", "migrate"],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr

    def test(self, log: Path) -> "subprocess.Popen[bytes]":
        """Start a run of the DAG by `dag.test()`."""
        with log.open("wb") as output:
            return subprocess.Popen(
                [self._python, self._dag],
                env=self._env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def query(self, text: str) -> list[Any]:
        """Return the rows of a query of Airflow's database."""
        with sqlite3.connect(f"file:{self._database}?mode=ro", uri=True, timeout=30) as database:
            return database.execute(text).fetchall()
