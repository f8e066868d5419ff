"""Verbs in a session of the user's own, whose workers would run another Python than the driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl.spark.python import use_driver_python

pytestmark = pytest.mark.slow

INHERITED = ("JAVA_HOME", "TMPDIR", "SPARK_SUBMIT_OPTS")  # The last lets the JVM start faster.
PROGRAM = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from sparkdl import data, experiment, monitoring
from sparkdl.errors import PreflightError

settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
context = spark.sparkContext
df = spark.range(6).selectExpr("cast(id as float) x", "id % 2 AS week")
Path("log.jsonl").write_text(
    '{"id": "a", "time": 0, "model": "m", "inputs": {"x": [7, 8]}, "outputs": {}}'
)
profile = monitoring.profile(df.select("x"))


VERBS = {
    "launch": lambda: experiment.launch(lambda: 1.0, root="runs", progress=False).best.value,
    "predict": lambda: experiment.predict(
        lambda x: x * 2, df, feature_cols="x", outputs="float"
    ).count(),
    "profile": lambda: monitoring.profile(df)["features"]["x"]["n"],
    "drift": lambda: len(monitoring.drift(df, df, metrics=["ks"]).drifted),
    "read_log": lambda: monitoring.read_log(".", profile, inputs={"x": "x"}).count(),
    "write_tfrecord": lambda: data.write_tfrecord(df, "records"),
    "read_tfrecord": lambda: data.read_tfrecord(spark, "records").count(),
}
for name, verb in VERBS.items():
    context.pythonExec = "python3"  # As without an earlier verb of sparkdl.
    print("result", name, verb())
context.pythonExec = "python3"
monitoring.profile(df)
print("python", context.pythonExec == sys.executable)
context.pythonExec, context.master = "python3", "spark://host:7077"  # As on a cluster.
other = spark.newSession().range(6).selectExpr("cast(id as float) x")
try:
    experiment.predict(lambda x: x * 2, other, feature_cols="x", outputs="float")
except PreflightError as error:
    print("refused", "cannot import sparkdl" in str(error), "is not set, and" in str(error))
"""


def run_program(folder: Path) -> str:
    """Run the program where the `python3` of the PATH lacks sparkdl and everything else."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "python3").write_text("#!/bin/sh\necho \"No module named 'sparkdl'\" >&2\nexit 1\n")
    (programs / "python3").chmod(0o755)
    (folder / "program.py").write_text(PROGRAM)
    clean = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HOME": str(folder),
        **{name: os.environ[name] for name in INHERITED if name in os.environ},
    }
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_verb_runs_the_drivers_python(tmp_path: Path) -> None:
    lines = run_program(tmp_path).splitlines()
    results = [line.split()[1:] for line in lines if line.startswith("result")]
    assert dict(results) == {
        "launch": "1.0",
        "predict": "6",
        "profile": "6",
        "drift": "0",
        "read_log": "2",
        "write_tfrecord": "6",
        "read_tfrecord": "6",
    }
    assert lines[-2:] == ["python True", "refused True True"]


class Session:
    """A session whose application has this master."""

    def __init__(self, master: str) -> None:
        self._sc = type("Context", (), {"master": master, "pythonExec": "python3"})()


@pytest.mark.parametrize(
    ("master", "variable", "expected"),
    [
        ("local[*]", None, sys.executable),
        ("local-cluster[2,1,1024]", None, sys.executable),
        ("local[*]", "/opt/python", "python3"),
        ("spark://host:7077", None, "python3"),
        ("yarn", None, "python3"),
    ],
)
def test_the_users_choice_and_other_hosts_are_left_alone(
    master: str, variable: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if variable:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)
    session = Session(master)
    use_driver_python(session)  # type: ignore[arg-type]
    assert session._sc.pythonExec == expected


def test_a_session_of_spark_connect_is_left_alone() -> None:
    use_driver_python(object())  # type: ignore[arg-type]
