"""Measure how much memory and CPU time the driver needs for 10 000 trials and for 1000 slots.

1. 10 000 trials that do nothing, on embedded Spark with two slots: `experiment.launch` of that many
   combinations, and `experiment.search` with `algorithm="random"`. Once a second the memory of the
   driver's two processes, Python and Java, is written down, and the CPU seconds of Python. What
   counts is what a trial costs among the last tenth against the first, and Python's memory at the
   end against that after the first tenth. Java's grows until it collects garbage; there it is the
   heap after a collection, before and after. Then `experiment.load` reads the run.
2. 1000 slots, whose trials report once a second: a program appends to the `metrics.jsonl` of 1000
   trials, and the driver's own loop reads them, asks the pruner for each report, and shows
   progress. Only Spark is simulated. The pruner is asked and not obeyed, so that all slots stay
   busy; a hundred complete trials are there for it to compare with. What counts is the share of a
   core that the driver takes.

    python benchmarks/scale.py --quick

It prints a table, then one JSON document; what it kept on disk is removed. Nothing passes or fails
here: each aim is reported as met or not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Before Spark is loaded: nothing here needs another host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np
import optuna
from lib.floor import session
from lib.machine import machine, resident_mb
from lib.slots import SlotsWithoutSpark
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.plan import Role
from sparkdl.cluster.program.packaging import pack
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.files.layout import RunPaths
from sparkdl.options import Options
from sparkdl.runner.display.progress import Progress
from sparkdl.runner.display.result_files import ResultFiles
from sparkdl.runner.loop.assembly import make_loop
from sparkdl.runner.pipeline.execute import description_of
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runner.request import Request
from sparkdl.runs import Run
from sparkdl.runs.events import ReportsReceived, TrialChanged
from sparkdl.runs.journal import read_journal
from sparkdl.runs.opening import OpenRun, open_run
from sparkdl.runs.states import TrialState
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from sparkdl.search.study_source import StudySource

TRIALS = 10_000
SLOTS, MEASURED_S = 1_000, 20.0
WARM_S = 5.0
COMPLETE, STEPS = 100, 100
PRUNERS = ("median", "asha", "hyperband")
AIM_COST, AIM_MEMORY, AIM_LOAD_S, AIM_CPU, AIM_HEARD = 1.2, 1.2, 2.0, 0.5, 0.9

Row = dict[str, Any]


# ---- many trials


def trivial(i: int) -> int:
    """The trial of the grid."""
    return i


def trivial_too(x: float) -> float:
    """The trial of the search."""
    return x


def used_heap_mb(spark: SparkSession) -> float:
    """Return the heap of Spark's Java process after a garbage collection, in MiB."""
    jvm = spark.sparkContext._jvm
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 2**20


def java() -> int:
    """The process id of Spark's driver, a child of this process."""
    for child in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for pid in child.read_text().split():
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                return int(pid)
    raise RuntimeError("Spark's Java is no child of this process")


@contextmanager
def sampled(samples: list[Row], every_s: float) -> Iterator[None]:
    """Write down memory and CPU seconds, as long as this goes on."""
    over, jvm = threading.Event(), java()

    def look() -> None:
        while True:
            samples.append(
                {
                    "time": time.time(),
                    "python_mb": resident_mb(os.getpid()),
                    "java_mb": resident_mb(jvm),
                    "cpu_s": time.process_time(),
                }
            )
            if over.wait(every_s):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def many_row(spark: SparkSession, name: str, run_trials: Callable[[], Run], trials: int) -> Row:
    """Run many trials in one way, and read them back."""
    samples: list[Row] = []
    heap_mb = [used_heap_mb(spark)]
    with sampled(samples, 1.0 if trials > 1000 else 0.1):
        run = run_trials()
    heap_mb.append(used_heap_mb(spark))
    run.raise_for_failures()
    load_s, cpu_s = [], []
    for _ in range(3):
        begun, cpu = time.perf_counter(), time.thread_time()
        again = experiment.load(run.path)
        load_s.append(time.perf_counter() - begun)
        cpu_s.append(time.thread_time() - cpu)
    assert len(again.trials) == trials
    ends = sorted(end for trial in run.trials for _, end in trial.spans if end)
    tenth = trials // 10
    marks = {"begin": run.trials[0].spans[0][0], "first": ends[tenth - 1]}
    marks |= {"before the last": ends[-tenth - 1], "end": ends[-1]}
    at = {mark: _at(samples, when) for mark, when in marks.items()}
    costs = {
        key: [
            (at["first"][key] - at["begin"][key]) / tenth,
            (at["end"][key] - at["before the last"][key]) / tenth,
        ]
        for key in ("time", "cpu_s")
    }
    return {
        "name": name,
        "trials": trials,
        "seconds": round(run.duration_s, 1),
        "idle": run.idle,
        "load_s": round(min(load_s), 3),
        "load_cpu_s": round(min(cpu_s), 3),
        "wall_ms": [round(1e3 * cost, 2) for cost in costs["time"]],
        "cpu_ms": [round(1e3 * cost, 2) for cost in costs["cpu_s"]],
        "heap_mb": [round(mb, 1) for mb in heap_mb],
        **{
            key: [round(at[mark][key], 1) for mark in ("begin", "first", "end")]
            for key in ("python_mb", "java_mb")
        },
    }


def _at(samples: list[Row], when: float) -> Row:
    """Between two samples."""
    times = [sample["time"] for sample in samples]
    return {
        key: float(np.interp(when, times, [sample[key] for sample in samples]))
        for key in samples[0]
    }


def many_rows(trials: int) -> list[Row]:
    """The first part."""
    spark = session("scale")
    try:
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
            common = {"spark": spark, "root": root, "progress": False, "max_failed_trials": 0}
            # The first trials of an application read the disk.
            experiment.launch(trivial, {"i": list(range(20))}, **common)
            ways: dict[str, Callable[[], Run]] = {
                "launch": lambda: experiment.launch(trivial, {"i": list(range(trials))}, **common),
                "search": lambda: experiment.search(
                    trivial_too,
                    {"x": Float(0.0, 1.0)},
                    algorithm="random",
                    num_trials=trials,
                    **common,
                ),
            }
            rows = []
            for name, run_trials in ways.items():
                say(f"{trials} trials: {name}")
                rows.append(many_row(spark, name, run_trials, trials))
                say(str(rows[-1]))
            return rows
    finally:
        spark.stop()


# ---- many slots


class Asked(optuna.pruners.BasePruner):
    """Asks a pruner, and lets the trial go on whatever it says."""

    def __init__(self, pruner: optuna.pruners.BasePruner) -> None:
        self.pruner, self.stopped = pruner, 0

    def prune(self, study: optuna.study.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """See `optuna.pruners.BasePruner`."""
        self.stopped += int(self.pruner.prune(study, trial))
        return False


class SimulatedCluster(SlotsWithoutSpark):
    """A cluster without Spark, whose trials run until they are cancelled.

    Args:
        slots: number of slots; when a trial runs in each, a program starts to write reports.
        seconds: seconds for which that program writes.

    Attributes:
        writing: set when the program has started.
        writer: the program.
    """

    def __init__(self, slots: int, seconds: float) -> None:
        super().__init__(slots)
        self._seconds = seconds
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._numbers: set[int] = set()
        self.writing = threading.Event()
        self.writer: subprocess.Popen[bytes] | None = None

    def submit(self, task: Any, schema: str, **_: Any) -> list[Any]:
        """Run until `cancel` is called."""
        paths = RunPaths(task.run_path)
        trial = paths.trial(task.number)
        Path(trial.attempts).mkdir()
        Path(trial.log).write_text("It prints a line.\n" * 20)
        Path(trial.attempt(0)).write_text("{}")
        with self._lock:
            self._numbers.add(task.number)
            if len(self._numbers) == self._slots:
                numbers = (str(min(self._numbers)), str(self._slots), str(self._seconds))
                command = [sys.executable, __file__, "--write", paths.folder, *numbers]
                self.writer = subprocess.Popen(command)
                self.writing.set()
        self._over.wait()
        raise JobFailed(JobEnd.CANCELLED, "the measurement is over")

    def cancel(self, tag: str) -> None:
        """End all trials."""
        self._over.set()


def write(folder: str, first: int, slots: int, seconds: float) -> None:
    """Append to the metrics of many trials, each once a second, evenly over that second."""
    paths, random = RunPaths(folder), np.random.default_rng(0)
    files = [paths.trial(first + slot).metrics for slot in range(slots)]
    begun = time.monotonic()
    for step in range(int(seconds)):
        for slot, path in enumerate(files):
            due = begun + step + slot / slots
            if (wait_s := due - time.monotonic()) > 0:
                time.sleep(wait_s)
            line = json.dumps({"step": step, "metrics": {"value": random.random() * (step + 1)}})
            with open(path, "a") as file:
                file.write(line + "\n")


def complete(opened: OpenRun, proposals: StudySource) -> None:
    """Trials that came before."""
    random = np.random.default_rng(1)
    for _ in range(COMPLETE):
        trial = proposals.next()
        value = float(random.random())
        opened.record(TrialChanged(number=trial.number, state=TrialState.RUNNING))
        proposals.observe_reports([(trial, step, {"value": value * step}) for step in range(STEPS)])
        end = TrialChanged(number=trial.number, state=TrialState.COMPLETE, value=value * STEPS)
        opened.record(end)
        proposals.observe_end(trial)


def slots_row(root: str, name: str, slots: int, measured_s: float) -> Row:
    """One pruner."""
    pruners: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
        "median": optuna.pruners.MedianPruner,
        "asha": optuna.pruners.SuccessiveHalvingPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
    }
    asked = Asked(pruners[name]())
    space = Space.of({"x": Float(0.0, 1.0)})
    search = SearchSettings(
        space=space, algorithm="random", pruner=asked, num_trials=COMPLETE + slots
    )
    options = Options.parse({"metric": "value", "run_id": name, "seed": 0})
    roles = (Role(name="worker", count=1),)
    request = Request("search", roles, trivial_too, options, search=search)
    # The writer goes on longer than is measured, as trials do.
    cluster = SimulatedCluster(slots, 3 * WARM_S + measured_s)
    prepared = prepare(request, pack(trivial_too), cluster)
    opened = open_run(root, description_of(prepared), "error")
    proposals = StudySource.create(opened, search, (), say)
    complete(opened, proposals)
    progress = Progress(opened.run, prepared.plan, is_shown=True)
    loop = make_loop(prepared, opened, proposals, progress, [ResultFiles(opened.run, say)])
    found: Row = {}

    def measure_and_end() -> None:
        cluster.writing.wait()
        time.sleep(WARM_S)
        found["from"], cpu, wall = time.time(), time.process_time(), time.monotonic()
        time.sleep(measured_s)
        found["cpu"] = (time.process_time() - cpu) / (time.monotonic() - wall)
        found["to"] = time.time()
        loop.cancel(None)

    thread = threading.Thread(target=measure_and_end)
    thread.start()
    with open(os.devnull, "w") as nowhere, redirected(nowhere):
        loop.execute()
    thread.join()
    if cluster.writer:
        cluster.writer.terminate()
        cluster.writer.wait()
    events = [e for e in read_journal(opened.paths.journal) if isinstance(e, ReportsReceived)]
    heard = sum(len(e.reports) for e in events if found["from"] <= (e.time or 0.0) < found["to"])
    return {
        "name": name,
        "slots": slots,
        "cores": round(found["cpu"], 3),
        "heard_per_s": round(heard / measured_s, 1),
        "would_stop": asked.stopped,
    }


@contextmanager
def redirected(to: Any) -> Iterator[None]:
    """Redirect the progress display to a stream: no terminal is part of the measurement."""
    before, sys.stdout = sys.stdout, to
    try:
        yield
    finally:
        sys.stdout = before


def slots_rows(slots: int, measured_s: float) -> list[Row]:
    """The second part."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
        for name in PRUNERS:
            say(f"{slots} slots: {name}")
            rows.append(slots_row(root, name, slots, measured_s))
            say(str(rows[-1]))
    return rows


# ---- reporting


def say(text: str) -> None:
    """Show that it goes on, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def aims(many: list[Row], slots: list[Row]) -> list[Row]:
    """Return the aims of the benchmark."""
    found = []
    for row in many:
        name, size = row["name"], row["trials"]
        found += [
            (f"{name}: a trial's cost, last tenth / first", _ratio(row["wall_ms"]), AIM_COST),
            (f"{name}: Python's memory, end / first tenth", _ratio(row["python_mb"]), AIM_MEMORY),
            (f"{name}: Java's heap, after / before", _ratio(row["heap_mb"]), AIM_MEMORY),
            (f"{name}: seconds to load {size} trials", row["load_s"], AIM_LOAD_S),
        ]
    found += [(f"{r['slots']} slots, {r['name']}: cores", r["cores"], AIM_CPU) for r in slots]
    # A driver that gets no core keeps up with nothing, and takes little.
    kept_up = all(row["heard_per_s"] > AIM_HEARD * row["slots"] for row in slots)
    return [
        {"aim": aim, "value": value, "at_most": most, "met": value <= most}
        for aim, value, most in found
    ] + [{"aim": "all reports were heard in time", "value": kept_up, "met": kept_up}]


def _ratio(values: list[float]) -> float:
    return round(values[-1] / values[-2], 3)


def table(result: Row) -> str:
    """The result for a person."""
    lines = [f"{'a trial costs, first .. last tenth':<36}{'wall':>20}{'CPU, Python':>20}"]
    for row in result["many"]:
        wall, cpu = (f"{row[k][0]:.1f} .. {row[k][1]:.1f} ms" for k in ("wall_ms", "cpu_ms"))
        lines += [f"{row['trials']} trials, {row['name']:<22}{wall:>20}{cpu:>20}"]
    heads = ("Python", "Java", "Java's heap")
    lines += ["", f"{'MiB: begin, first tenth, end':<30}" + "".join(f"{h:>20}" for h in heads)]
    for row in result["many"]:
        each = [row[key] for key in ("python_mb", "java_mb", "heap_mb")]
        memory = "".join(f"{', '.join(f'{mb:.0f}' for mb in values):>20}" for values in each)
        lines += [f"{row['name']:<30}{memory}"]
    lines += ["", f"{'slots that report once a second':<36}{'cores':>8}{'heard in a second':>20}"]
    for row in result["slots"]:
        label = f"{row['slots']}, {row['name']}"
        lines += [f"{label:<36}{row['cores']:>8.3f}{row['heard_per_s']:>20.0f}"]
    lines += [""]
    for aim in result["aims"]:
        value = f": {aim['value']:.3g}, at most {aim['at_most']}" if "at_most" in aim else ""
        lines += [f"{aim['aim']}{value}: {'met' if aim['met'] else 'NOT MET'}"]
    return "\n".join(lines)


def measure(quick: bool) -> Row:
    """Everything, as the JSON document."""
    about = machine("optuna")
    trials, slots, measured_s = (200, 100, 5.0) if quick else (TRIALS, SLOTS, MEASURED_S)
    second = slots_rows(slots, measured_s)  # First, as Spark's threads are not among these.
    first = many_rows(trials)
    return {
        "benchmark": "scale",
        "machine": about,
        "setting": {"trials": trials, "slots": slots, "measured_s": measured_s},
        "many": first,
        "slots": second,
        "aims": aims(first, second),
    }


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="200 trials, 100 slots")
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)  # The program of part 2.
    options = parser.parse_args()
    if options.write:
        folder, first, slots, seconds = options.write
        write(folder, int(first), int(slots), float(seconds))
        return
    result = measure(options.quick)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
