"""A driver of the soak: one verb after the other on one root, until it is told to stop.

    python driver.py FOLDER ROOT SEED

A driver that takes the place of a killed one first resumes the runs that are not ended.
"""

import faulthandler
import functools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.sql import SparkSession

from lib.machine import resident_mb
from lib.soak import programs
from sparkdl import experiment, search
from sparkdl.errors import SparkDLError
from sparkdl.tfos import TFCluster

WORKERS = 2
KINDS = ("launch", "search", "promote", "pbt", "gang", "fed", "elastic", "cluster")
PAUSE_S = 1.0
KEPT = 20
# The others need a DataFrame, or an application that is gone.
RESUMED = ("launch", "search", "promote", "pbt", "gang", "elastic")
# A program that is killed may crash this often, besides losses, which are not counted.
RESTARTS = 3


class Driver:
    """Runs verbs and writes a line about each to `ends.jsonl`.

    Args:
        folder: the folder of the soak.
        root: the root of the runs of this driver.
        seed: decides the order of the verbs.
    """

    def __init__(self, folder: Path, root: str, seed: int) -> None:
        self._folder, self._root = folder, root
        self._notes = str(folder / "notes.jsonl")
        self._chance = random.Random(seed)
        self._options = {"root": root, "progress": False, "max_restarts": RESTARTS}

    def work(self) -> None:
        """Run verbs until the file `stop` appears."""
        self._resume_all()
        gateway = SparkSession.active().sparkContext._gateway
        while not (self._folder / "stop").exists() and gateway.proc.poll() is None:
            kind = self._chance.choice(KINDS)
            self._do(kind, functools.partial(getattr(self, f"_{kind}")))

    def _resume_all(self) -> None:
        runs = experiment.history(self._root)
        for path, state, name in zip(runs["path"], runs["state"], runs["run"], strict=True):
            kind = name.split("-")[0]
            if state in ("RUNNING", "FAILED") and kind in RESUMED and path not in self._resumed():
                self._do(f"{kind}, resumed", functools.partial(self._resume, path, kind))

    def _resumed(self) -> set[str]:
        """Return the runs that ended for a driver of this soak."""
        ends = self._folder / "ends.jsonl"
        lines = ends.read_text().splitlines() if ends.exists() else []
        return {json.loads(line).get("path") for line in lines}

    def _do(self, kind: str, verb: Callable[[], dict[str, Any]]) -> None:
        begun = time.time()
        self._say("begins.jsonl", {"kind": kind})
        try:
            found = verb()
        except (SparkDLError, OSError) as exc:
            found = {"error": repr(exc)[:2000], **_described(getattr(exc, "run", None))}
        except Exception as exc:  # noqa: BLE001 A fault of Spark's own job, such as a feed's.
            found = {"other_error": repr(exc)[:2000]}
        self._say("ends.jsonl", {"kind": kind, "seconds": time.time() - begun, **found})
        self._remove_old()
        if "state" not in found:
            time.sleep(PAUSE_S)  # Nothing was started, as on a full disk.

    def _remove_old(self) -> None:
        """Keep the newest runs of a local root: the small disk holds some hundred of them."""
        if "://" not in self._root and Path(self._root).exists():
            runs = sorted(Path(self._root).iterdir(), key=lambda path: path.stat().st_mtime)
            for path in runs[:-KEPT]:
                shutil.rmtree(path, ignore_errors=True)

    def _say(self, name: str, line: dict[str, Any]) -> None:
        rss_mb = round(resident_mb(os.getpid()))
        more = {"t": time.time(), "driver": os.environ["SOAK_DRIVER"], "rss_mb": rss_mb}
        with (self._folder / name).open("a") as file:
            file.write(json.dumps({**more, **line}) + "\n")

    # ---- verbs

    def _launch(self) -> dict[str, Any]:
        train = functools.partial(programs.square, notes=self._notes)
        run = experiment.launch(
            train,
            {"x": list(range(8))},
            name="launch",
            metric="value",
            direction="max",
            **self._options,
        )
        return self._squares(run)

    @staticmethod
    def _squares(run: Any) -> dict[str, Any]:
        complete = [trial for trial in run.trials if trial.state == "COMPLETE"]
        wrong = [t.number for t in complete if t.value != t.params["x"] ** 2]
        wrong += [t.number for t in complete if _content(t) != str(t.params["x"] ** 2)]
        return {**_described(run), "wrong": wrong}

    def _search(self) -> dict[str, Any]:
        train = functools.partial(programs.objective, notes=self._notes)
        run = experiment.search(
            train,
            {"x": search.Float(0.0, 1.0)},
            name="search",
            direction="min",
            num_trials=8,
            pruner="median",
            **self._options,
        )
        return self._minima(run)

    @staticmethod
    def _minima(run: Any) -> dict[str, Any]:
        complete = [trial for trial in run.trials if trial.state == "COMPLETE"]
        wrong = [t.number for t in complete if abs(t.value - (t.params["x"] - 0.3) ** 2) > 1e-9]
        return {**_described(run), "wrong": wrong}

    def _promote(self) -> dict[str, Any]:
        pruner = {"asha": {"promote": True, "grace": 2, "reduction": 2}}
        return self._steps(self._lasting("promote", pruner=pruner))

    def _pbt(self) -> dict[str, Any]:
        return self._steps(self._lasting("pbt", algorithm={"pbt": {"population": 4}}))

    def _lasting(self, name: str, **how: Any) -> Any:
        train = functools.partial(programs.lasting, notes=self._notes)
        space = {"x": search.Float(0.0, 1.0)}
        options: dict[str, Any] = {"metric": "loss", "direction": "min", **self._options}
        return experiment.search(train, space, name=name, num_trials=12, **how, **options)

    @staticmethod
    def _steps(run: Any) -> dict[str, Any]:
        """Check that each trial has made its steps, and those of the trials before it, once."""
        wrong = []
        for trial in run.trials:
            line = [trial]
            while line[-1].parent is not None:
                line.append(run.trials[line[-1].parent])
            steps = len(line) * programs.INTERVAL
            loss = programs.loss_of(trial.params["x"], steps)
            found = (trial.outputs.get("steps"), trial.value)
            if trial.state == "COMPLETE" and found != (steps, loss):
                wrong.append((trial.number, found, (steps, loss)))
        return {**_described(run), "wrong": wrong}

    def _gang(self) -> dict[str, Any]:
        train = functools.partial(programs.gang, notes=self._notes)
        run = experiment.allreduce(train, num_workers=WORKERS, name="gang", **self._options)
        return self._result(run, "gang")

    def _fed(self) -> dict[str, Any]:
        train = functools.partial(programs.fed, notes=self._notes)
        rows = SparkSession.active().range(programs.ROWS).repartition(6)
        run = experiment.allreduce(
            train, num_workers=WORKERS, data=rows, name="fed", **self._options
        )
        return self._result(run, "fed")

    def _elastic(self) -> dict[str, Any]:
        train = functools.partial(programs.elastic, notes=self._notes)
        run = experiment.allreduce(
            train, num_workers=WORKERS, elastic=True, name="elastic", **self._options
        )
        return self._result(run, "elastic")

    @staticmethod
    def _result(run: Any, kind: str) -> dict[str, Any]:
        right = run.result == programs.expected(kind, WORKERS)
        return {**_described(run), "wrong": [] if right else [run.result]}

    def _resume(self, path: str, kind: str) -> dict[str, Any]:
        run = experiment.resume(path, progress=False)
        if kind == "launch":
            return self._squares(run)
        if kind in ("promote", "pbt"):
            return self._steps(run)
        return self._minima(run) if kind == "search" else self._result(run, kind)

    def _cluster(self) -> dict[str, Any]:
        context = SparkSession.active().sparkContext
        fed = TFCluster.InputMode.SPARK
        arguments = {"notes": self._notes}
        cluster = TFCluster.run(context, programs.node, arguments, WORKERS, 0, input_mode=fed)
        try:
            rows = cluster.inference(context.parallelize(range(200), 4)).collect()
        finally:
            cluster.shutdown()
        right = rows == programs.expected("cluster", WORKERS)
        return {"run": cluster.run.id, "state": "COMPLETE", "wrong": [] if right else rows}


def _described(run: Any) -> dict[str, Any]:
    if run is None:
        return {}
    trials = [
        {"number": t.number, "state": str(t.state), "attempts": t.attempts, "error": t.error}
        for t in run.trials
    ]
    return {"run": run.id, "path": run.path, "state": str(run.state), "trials": trials}


def _content(trial: Any) -> str:
    from sparkdl.files import storage

    return storage.read(storage.join(trial.path, trial.outputs["file"])).decode()


def main() -> None:
    """Start Spark, and work."""
    folder, root, seed = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    builder = SparkSession.builder.master(f"local-cluster[{WORKERS},1,1024]")
    settings = {
        "spark.executor.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
        # A stopped executor is lost in seconds.
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "5s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "20000",
        "spark.executor.heartbeatInterval": "2s",
        "spark.sparkdl.root": root,
    }
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    Driver(Path(folder), root, int(seed)).work()
    spark.stop()  # Raises, if its Java was killed.


if __name__ == "__main__":
    main()
