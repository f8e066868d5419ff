"""Runs on the driver. Start ranks as processes of this host, whatever the cluster is.

A process has one Spark application. Ranks on this host run in a local one, of another process.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from sparkdl import experiment
from sparkdl.errors import RunStoppedError, TrainingFailedError
from sparkdl.host.os_processes import die_with

# What `spark-submit` and notebooks set for Python: a process that has it joins their application.
_OF_THE_APPLICATION = (
    *("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"),
    *("PYSPARK_DRIVER_PYTHON", "PYSPARK_DRIVER_PYTHON_OPTS", "SPARK_CONNECT_MODE_ENABLED"),
)
_PROGRAM, _RUN = "program.pickle", "run.txt"
# The time that the application gets to cancel its run.
_CANCEL_S = 30.0


def run_locally(train: Callable[[], Any], num_ranks: int, **options: Any) -> Any:
    """Run a function by `experiment.horovod` in processes of this host; return rank 0's value.

    Args:
        train: a function without parameters.
        num_ranks: the number of ranks.
        **options: see `experiment.horovod`.

    Raises:
        TrainingFailedError: if a rank failed, or the application has not started.
        RunStoppedError: if the run was cancelled.
    """
    with tempfile.TemporaryDirectory(prefix="sparkdl-ranks-") as folder:
        program = cloudpickle.dumps((train, num_ranks, options))
        Path(folder, _PROGRAM).write_bytes(program)
        code = _run_and_show([sys.executable, "-m", __name__, folder, str(os.getpid())])
        path = Path(folder, _RUN)
        if not path.exists():
            raise TrainingFailedError(
                f"the Spark application for {num_ranks} ranks on this host has ended with the exit "
                f"code {code}; its output, above, has the reason."
            )
        run = experiment.load(path.read_text())
    run.raise_unless_complete()
    return run.result


def _run_and_show(command: list[str]) -> int:
    """Run a command, and print what it prints, in a notebook too; return its exit code."""
    with subprocess.Popen(
        command,
        env=_environment(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
        except BaseException:
            _end(process)
            raise
    return process.returncode


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()  # It cancels its run.
    try:
        process.communicate(timeout=_CANCEL_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process with an application of its own.

    Example:
        >>> _environment({"PYSPARK_GATEWAY_PORT": "4040", "HOME": "/root"})["HOME"]
        '/root'
    """
    kept = {name: value for name, value in environ.items() if name not in _OF_THE_APPLICATION}
    # Modules beside a script or notebook are found as they are here.
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _run_here(folder: str, driver: int) -> None:
    """Run the program in a folder in a local application, and write the path of its run there."""
    die_with(driver, by=signal.SIGTERM)
    from pyspark.sql import SparkSession

    train, num_ranks, options = cloudpickle.loads(Path(folder, _PROGRAM).read_bytes())
    builder = SparkSession.builder.master(f"local[{num_ranks}]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    try:
        run = experiment.horovod(train, num_workers=num_ranks, logs="all", spark=spark, **options)
    except (TrainingFailedError, RunStoppedError) as exc:
        run = exc.run
    finally:
        spark.stop()
    Path(folder, _RUN).write_text(run.path)


if __name__ == "__main__":
    _run_here(sys.argv[1], int(sys.argv[2]))
