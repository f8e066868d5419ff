"""Measure a search whose executors come and go, and a search with an executor that is at fault.

1. A search of 40 trials on a standalone cluster of three workers with dynamic allocation: the
   number of executors and of running trials over time, as a picture with `--picture FILE`; the
   seconds until executors have come, and until those without trials are released. One trial lasts
   longer than all others.
2. A search of 24 trials on three executors, on one of which every trial fails at once, with and
   without `spark.excludeOnFailure.enabled`: wall time, attempts, and states of the trials.

    python benchmarks/executors.py --picture docs/images/executors.svg

The program prints one JSON document.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import pyspark
from lib.machine import machine
from lib.steps import steps_svg
from pyspark.sql import SparkSession

from sparkdl import context, experiment
from sparkdl.cluster.spark import SparkCluster
from sparkdl.errors import AllTrialsFailedError

WORKERS = 3
TRIALS, TRIAL_S, LONG_S = 40, 1.0, 30.0
IDLE_S = 5
FAULTY_TRIALS, FAULTY_TRIAL_S = 24, 3.0
SAMPLE_S = 0.2
READY_S = 60.0

Row = dict[str, Any]


# ---- executors on demand


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Run a master and workers of one core on loopback; yield the URL of the master."""
    with ExitStack() as stack:
        anywhere = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = folder / "master.log"
        stack.enter_context(daemon(log, "master.Master", *anywhere))
        url = found(r"Starting Spark master at (spark://\S+)", log)[1]
        for number in range(WORKERS):
            size = ("--cores", "1", "--memory", "2g", "--work-dir", str(folder / str(number)))
            log = folder / f"worker-{number}.log"
            stack.enter_context(daemon(log, "worker.Worker", *anywhere, *size, url))
            found("Successfully registered with master", log)
        yield url


@contextmanager
def daemon(log: Path, kind: str, *arguments: str) -> Iterator[None]:
    """Run a daemon of Spark until the end of the block."""
    spark = Path(pyspark.__file__).parent
    command = [spark / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *arguments]
    env = {**os.environ, "SPARK_HOME": str(spark)}
    env["SPARK_MASTER_OPTS"] = "-Dspark.master.rest.enabled=false"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def found(text: str, log: Path) -> re.Match[str]:
    """Wait for a text in a log."""
    deadline = time.monotonic() + READY_S
    while not (match := re.search(text, log.read_text())):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{text!r} is not in {log}")
        time.sleep(0.05)
    return match


def wait_a_while(x: int, long_x: int, trial_s: float, long_s: float) -> int:
    """Last for some seconds; one trial lasts longer."""
    time.sleep(long_s if x == long_x else trial_s)
    return x


def on_demand(trials: int, long_s: float, picture: str | None) -> Row:
    """Run a search with dynamic allocation, and count executors and running trials."""
    with tempfile.TemporaryDirectory() as folder, standalone(Path(folder)) as url:
        builder = SparkSession.builder.master(url).config("spark.executor.memory", "1g")
        for name, value in (
            ("enabled", "true"),
            ("shuffleTracking.enabled", "true"),
            ("minExecutors", "0"),
            ("maxExecutors", str(WORKERS)),
            ("executorIdleTimeout", f"{IDLE_S}s"),
        ):
            builder = builder.config(f"spark.dynamicAllocation.{name}", value)
        spark = builder.config("spark.executor.cores", "1").getOrCreate()
        cluster = SparkCluster(spark)
        samples: list[tuple[float, int, int]] = []
        began_s = time.monotonic()
        given = {"x": list(range(trials)), "long_x": [trials - 1], "long_s": [long_s]}
        run = experiment.launch(
            wait_a_while, {**given, "trial_s": [TRIAL_S]}, root=folder, progress=False, wait=False
        )
        while run.state == "RUNNING" or cluster.executors()[0]:
            running = run.counts().get("RUNNING", 0)
            samples.append((time.monotonic() - began_s, cluster.executors()[0], running))
            time.sleep(SAMPLE_S)
        samples.append((time.monotonic() - began_s, 0, 0))
        spark.stop()
    times, executors, running_trials = zip(*samples, strict=True)
    if picture:
        curves = {"executors": executors, "running trials": running_trials}
        title = f"Executors and running trials of a search of {trials} trials"
        Path(picture).write_text(steps_svg(title, times, curves))
    return {
        "trials": trials,
        "all_executors_s": round(next(t for t, n, _ in samples if n == max(executors)), 1),
        "most_executors": max(executors),
        "released_s": round(release_s(samples), 1),
        "idle_timeout_s": IDLE_S,
        "states": run.counts(),
        "wall_s": run.duration_s,
    }


def release_s(samples: list[tuple[float, int, int]]) -> float:
    """Return the longest time for which there were more executors than running trials at the end.

    The time begins with the last moment at which all executors ran trials.
    """
    most = max(n for _, n, _ in samples)
    last_full = max(t for t, _, running in samples if running >= most)
    released = next(t for t, n, _ in samples if t > last_full and n <= 1)
    return released - last_full


# ---- an executor that is at fault


def fail_on_one(x: int, folder: str, trial_s: float) -> int:
    """Fail at once on the executor that has run a trial first."""
    # Spark names the working directory of an executor by its id.
    executor = Path(context.original_cwd).name
    bad = Path(folder, "bad")
    if not bad.exists():
        bad.write_text(executor)
    if bad.read_text() == executor:
        raise OSError("the scratch disk is read-only")
    time.sleep(trial_s)
    return x


def with_a_fault(excludes: bool, trials: int) -> Row:
    """Run a search of which one executor fails every trial."""
    builder = SparkSession.builder.master("local-cluster[3,1,1024]")
    builder = builder.config("spark.executor.memory", "1g")
    spark = builder.config("spark.excludeOnFailure.enabled", str(excludes).lower()).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        given = {"x": list(range(trials)), "folder": [folder], "trial_s": [FAULTY_TRIAL_S]}
        try:
            run = experiment.launch(fail_on_one, given, root=folder, progress=False)
        except AllTrialsFailedError as exc:  # The executor at fault was quick enough to get all.
            assert exc.run
            run = exc.run
        attempts = sum(trial.attempts for trial in run.trials)
    spark.stop()
    return {
        "excludes": excludes,
        "wall_s": run.duration_s,
        "attempts": attempts,
        "states": run.counts(),
        "excluded": run.excluded,
    }


def main() -> None:
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few and short trials")
    parser.add_argument("--picture", metavar="FILE", help="write executors over time as SVG")
    parser.add_argument("--part", choices=("demand", "fault"), help="measure this part only")
    args = parser.parse_args()
    result: Row = {"benchmark": "executors", "machine": machine("pyspark")}
    if args.part != "fault":
        size = (12, 15.0) if args.quick else (TRIALS, LONG_S)
        result["on_demand"] = on_demand(*size, args.picture)
    if args.part != "demand":
        trials = 9 if args.quick else FAULTY_TRIALS
        result["at_fault"] = [with_a_fault(excludes, trials) for excludes in (False, True)]
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
