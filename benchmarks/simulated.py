"""Measure the driver with 1000 slots and 100 000 trials; only Spark is simulated.

The loop of the driver, the run directory and the stores' protocol are those of the package. Slots
are threads that wait. Parts, of which `--parts` chooses:

- `trials`: 100 000 trials that end at once: trials in a second, CPU time, memory, time to load.
- `gangs`: gangs of 8 processes on 1000 slots, which take 2 s each: the share of the slots' time
  that is used; and the driver's decision on the ring of an elastic gang of many ranks, on stores.
- `stores`: the run directory in a store whose requests take 1, 10 and 30 ms: trials in a second
  and requests of a trial.
- `spark`: the one part with Spark: jobs in a second, and their CPU time in the driver's processes.

At the end stand the shortest trials that keep all slots busy, for each part.

    python benchmarks/simulated.py --quick

It prints a table, then one JSON document; what it kept on disk is removed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Before Spark is loaded: nothing here needs another host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.distant import DistantStore
from lib.machine import machine, resident_mb
from lib.slots import InstantTrials

from sparkdl import experiment
from sparkdl.cluster.gang.membership import JoinRequest, Membership
from sparkdl.cluster.plan import Role
from sparkdl.files.rank_files import RankFiles
from sparkdl.options import Options
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.request import Request
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space

SLOTS, TRIALS, STORE_TRIALS = 1_000, 100_000, 3_000
LATENCIES_MS = (1, 10, 30)
GANG, GANG_TRIALS, GANG_S = 8, 1_000, 2.0
RANKS = (8, 64, 200)
JOBS, AT_ONCE = 600, 32

Row = dict[str, Any]


def trivial(i: int) -> int:
    """Return the parameter; never called, as Spark is simulated."""
    return i


def trivial_too(x: float) -> float:
    """Return the parameter of a search."""
    return x


def run_trials(cluster: InstantTrials, kind: str, trials: int, root: str, size: int = 1) -> Row:
    """Run trials, and return the time that they took.

    Args:
        cluster: the slots.
        kind: `launch` or `search`, as the verb.
        trials: number of trials.
        root: the folder of the run.
        size: number of processes of each trial.
    """
    options = {"root": root, "progress": False, "max_failed_trials": 0, "seed": 0}
    is_search = kind == "search"
    settings = SearchSettings(
        space=Space.of({"x": Float(0.0, 1.0)}), algorithm="random", num_trials=trials
    )
    request = Request(
        kind,
        (Role(name="worker", count=size),),
        trivial_too if is_search else trivial,
        Options.parse(options),
        params=None if is_search else [{"i": i} for i in range(trials)],
        search=settings if is_search else None,
        is_gang=size > 1,
    )
    begun, cpu = time.perf_counter(), time.process_time()
    run = execute(request, cluster)
    seconds = time.perf_counter() - begun
    counts = {str(state): count for state, count in run.counts().items()}
    if counts != {"COMPLETE": trials}:
        raise RuntimeError(f"{trials} trials should be COMPLETE, and are {counts}")
    return {
        "kind": kind,
        "trials": trials,
        "seconds": round(seconds, 1),
        "per_s": round(trials / seconds, 1),
        "cpu_ms": round(1e3 * (time.process_time() - cpu) / trials, 3),
        "python_mb": round(resident_mb(os.getpid())),
        "path": run.path,
    }


# ---- the parts


def trials_part(trials: int) -> list[Row]:
    """Many trials that end at once, on a local disk."""
    rows = []
    for kind in ("launch", "search"):
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
            row = run_trials(InstantTrials(SLOTS, 0.0), kind, trials, root)
            begun = time.perf_counter()
            again = experiment.load(row.pop("path"))
            row["load_s"] = round(time.perf_counter() - begun, 2)
            if len(again.trials) != trials:
                raise RuntimeError(f"{len(again.trials)} of {trials} trials were read")
        rows.append(row)
        say(str(row))
    return rows


def stores_part(trials: int) -> list[Row]:
    """Many trials that end at once, in stores of different latency."""
    rows = []
    for latency_ms in LATENCIES_MS:
        for kind in ("launch", "search"):
            root = DistantStore.start(latency_ms / 1e3)
            row = run_trials(InstantTrials(SLOTS, 0.0, DistantStore.put), kind, trials, root)
            row.pop("path")
            requests = DistantStore.requests
            row["latency_ms"] = latency_ms
            row["requests"] = {key: round(requests[key] / trials, 3) for key in sorted(requests)}
            rows.append(row)
            say(str(row))
    return rows


def gangs_part(trials: int) -> dict[str, list[Row]]:
    """Gangs on many slots, and the decisions on the rings of elastic gangs."""
    rows = []
    for seconds in (0.0, GANG_S):
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
            cluster = InstantTrials(SLOTS, seconds)
            row = run_trials(cluster, "launch", trials, root, GANG)
            row.pop("path")
            # The last gangs leave slots empty whoever runs them.
            row["ideal_s"] = -(-trials // (SLOTS // GANG)) * seconds
            rows.append({**row, "size": GANG, "gang_s": seconds})
            say(str(rows[-1]))
    return {"gangs": rows, "rings": [ring_row(size, ms) for ms in LATENCIES_MS for size in RANKS]}


def ring_row(size: int, latency_ms: float) -> Row:
    """Return the time of the driver's decision on the first ring of an elastic gang."""
    files = RankFiles(f"{DistantStore.start(latency_ms / 1e3)}/ranks")
    for rank in range(size):
        request = JoinRequest(rank=rank, incarnation=0, address="10.0.0.1", port=1, node="a")
        DistantStore.put(files.of_numbers("began", rank, 0), b"")
        DistantStore.put(files.of_numbers("here", 0, rank, 0), json.dumps(vars(request)).encode())
    DistantStore.requests.clear()
    begun = time.perf_counter()
    Membership(files, size, 600.0).look()
    row = {
        "ranks": size,
        "latency_ms": latency_ms,
        "decision_s": round(time.perf_counter() - begun, 3),
        "requests": dict(DistantStore.requests),
        # Computed: each rank lists the folder once in this many seconds.
        "poll_s": files.poll_s(size),
        "listings_per_s": round(size / files.poll_s(size), 1),
    }
    say(str(row))
    return row


def spark_part(jobs: int) -> Row:
    """Jobs of one empty task on executors of their own: what each costs the driver."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("simulated")
    for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(key, "false")
    spark = builder.config("spark.executor.memory", "1g").getOrCreate()
    try:
        jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
        spark.sparkContext.setLogLevel("ERROR")

        def job(_: int) -> None:
            rows = spark.range(1, numPartitions=1).mapInArrow(_same(), "id long").collect()
            if len(rows) != 1:
                raise RuntimeError(f"a job of one row gave {len(rows)} rows")

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(job, range(2 * AT_ONCE)))  # Java compiles, executors start.
            begun, cpu, java = time.perf_counter(), time.process_time(), cpu_s(jvm)
            list(pool.map(job, range(jobs)))
        seconds = time.perf_counter() - begun
        row = {
            "jobs": jobs,
            "per_s": round(jobs / seconds, 1),
            "python_ms": round(1e3 * (time.process_time() - cpu) / jobs, 2),
            "java_ms": round(1e3 * (cpu_s(jvm) - java) / jobs, 2),
        }
        say(str(row))
        return row
    finally:
        spark.stop()


def _same() -> Callable[[Any], Any]:
    # An inner function is pickled by value: the Python workers cannot import this module.
    def same(batches: Any) -> Any:
        yield from batches

    return same


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, see proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- reporting


def limits(result: Row) -> list[Row]:
    """Return the shortest trials with which each component keeps all slots busy."""
    rates: dict[str, float] = {}
    for row in result.get("trials", ()):
        rates[f"the driver's loop, {row['kind']}"] = row["per_s"]
    for row in result.get("stores", ()):
        rates[f"a store of {row['latency_ms']} ms, {row['kind']}"] = row["per_s"]
    if spark := result.get("spark"):
        rates["Spark's driver, as measured"] = spark["per_s"]
        rates["Spark's driver, one core for itself"] = 1e3 / (spark["java_ms"] + spark["python_ms"])
    return [
        {"component": name, "per_s": round(rate, 1), "shortest_s": round(SLOTS / rate, 1)}
        for name, rate in sorted(rates.items(), key=lambda item: item[1])
    ]


def table(result: Row) -> str:
    """Return the result for a person."""
    lines = []
    for row in result.get("trials", ()):
        lines += [
            f"{row['trials']} trials, {row['kind']}: {row['per_s']} in a second, {row['cpu_ms']} "
            f"ms of CPU each, {row['python_mb']} MiB, loaded in {row['load_s']} s"
        ]
    for row in result.get("stores", ()):
        lines += [
            f"{row['trials']} trials, {row['kind']}, store of {row['latency_ms']} ms: "
            f"{row['per_s']} in a second; requests of a trial: {row['requests']}"
        ]
    for row in result.get("gangs", {}).get("gangs", ()):
        lines += [
            f"{row['trials']} gangs of {row['size']}, {row['gang_s']} s each: {row['seconds']} s "
            f"(ideal {row['ideal_s']}), {row['cpu_ms']} ms of CPU each"
        ]
    for row in result.get("gangs", {}).get("rings", ()):
        lines += [
            f"ring of {row['ranks']}, store of {row['latency_ms']} ms: decided in "
            f"{row['decision_s']} s with {row['requests']}; {row['listings_per_s']} listings a "
            f"second, one in {row['poll_s']} s of each rank"
        ]
    if row := result.get("spark"):
        lines += [
            f"Spark: {row['per_s']} jobs in a second; CPU of the driver for each: Java "
            f"{row['java_ms']} ms, Python {row['python_ms']} ms"
        ]
    lines += ["", f"{f'all of {SLOTS} slots are busy if a trial takes':<50}{'at least':>12}"]
    for row in result["limits"]:
        lines += [f"{row['component']:<50}{row['shortest_s']:>10.1f} s"]
    return "\n".join(lines)


def say(text: str) -> None:
    """Show that it goes on, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the trials")
    parts = ("trials", "gangs", "stores", "spark")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    options = parser.parse_args()
    share = 50 if options.quick else 1
    measures: dict[str, Callable[[], Any]] = {
        "trials": lambda: trials_part(TRIALS // share),
        "gangs": lambda: gangs_part(GANG_TRIALS // min(share, 4)),
        "stores": lambda: stores_part(STORE_TRIALS // min(share, 10)),
        "spark": lambda: spark_part(JOBS // min(share, 4)),
    }
    result: Row = {"benchmark": "simulated", "machine": machine("optuna"), "slots": SLOTS}
    result |= {part: measures[part]() for part in options.parts}
    result["limits"] = limits(result)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
