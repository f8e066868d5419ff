"""Runs through Spark Connect, for a client of `tests.clusters.connect_client`."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from pyspark.sql import SparkSession

from sparkdl import context, data, experiment, search
from sparkdl.errors import SparkDLError
from tests.clusters.programs.trials import summary
from tests.programs.feeding import mapped, note, notes


def _report(x: float) -> float:
    # A low value is reported until the driver has read one and prunes the trial.
    for step in range(5 if x >= 0.5 else 1000):
        context.report({"value": x}, step=step)
        time.sleep(0.05)
    return x


def pruned_search(spark: SparkSession, root: str) -> Any:
    """Search with a pruner, in a root that is a URL."""
    run = experiment.search(
        _report,
        {"x": search.Float(0.0, 1.0)},
        num_trials=8,
        pruner=optuna.pruners.ThresholdPruner(lower=0.5),
        seed=1,
        parallelism=1,
        root=root,
        progress=False,
    )
    return summary(run)


def _held(number: int, folder: str) -> int:
    told = Path(folder, f"{number}.written")  # Who finds the file reads all of it.
    told.write_text(str(os.getpid()))
    told.rename(Path(folder, f"trial-{number}"))
    time.sleep(200)
    return number


def _ended(run: Any, begun_s: float) -> dict[str, Any]:
    states = [str(trial.state) for trial in run.trials]
    return {"states": states, "reason": run.reason, "seconds": time.monotonic() - begun_s}


def _start(folder: str, trials: int, slots: int) -> Any:
    """Start trials that take long, and wait until they hold all slots."""
    numbers = {"number": list(range(trials)), "folder": [folder]}
    run = experiment.launch(_held, numbers, wait=False, progress=False)
    while sum(name.startswith("trial-") for name in os.listdir(folder)) < slots:
        time.sleep(0.05)
    return run


def _end(run: Any) -> None:
    run.cancel()
    try:
        run.wait()
    except SparkDLError as exc:
        assert exc.run is run


def cancelled(spark: SparkSession, folder: str, slots: int) -> Any:
    """Cancel a run of more trials than slots."""
    run = _start(folder, 2 * slots, slots)
    time.sleep(3)  # The loop counts the slots every two seconds.
    begun_s = time.monotonic()
    _end(run)
    return _ended(run, begun_s)


def _limited(folder: str, trials: int, timeout_s: float) -> Any:
    numbers = {"number": list(range(trials)), "folder": [folder]}
    try:
        return experiment.launch(_held, numbers, timeout_s=timeout_s, progress=False)
    except SparkDLError as exc:
        return exc.run


def timed_out(spark: SparkSession, folder: str, slots: int, limit_s: float) -> Any:
    """Let a run of more trials than slots reach its time limit."""
    begun_s = time.monotonic()
    return _ended(_limited(folder, 2 * slots, limit_s), begun_s)


def timed_out_behind_another(spark: SparkSession, folder: str, slots: int) -> Any:
    """Let a run whose checks wait behind the trials of another run reach its time limit."""
    other = _start(folder, slots, slots)
    try:
        begun_s = time.monotonic()
        return _ended(_limited(folder, 1, 1), begun_s)
    finally:
        _end(other)


def held(spark: SparkSession, folder: str, trials: int) -> Any:
    """Run trials until the client is killed."""
    _start(folder, trials, 1).wait()


def too_large(spark: SparkSession, size: int, elastic: bool = False) -> Any:
    """Start a gang that does not fit."""
    begun_s = time.monotonic()
    try:
        experiment.allreduce(_mean, num_workers=size, elastic=elastic, progress=False)
    except SparkDLError as exc:
        return {"error": f"{type(exc).__name__}: {exc}", "seconds": time.monotonic() - begun_s}


def _mean() -> float:
    import numpy as np

    import sparkdl.horovod as hvd

    hvd.init()
    return float(hvd.allreduce(np.array([hvd.rank() + 1.0]))[0])


def horovod(spark: SparkSession) -> Any:
    """Average over two ranks by Horovod's API."""
    return experiment.horovod(_mean, num_workers=2, progress=False).result


def _replicas() -> float:
    from sparkdl import distribute

    return float(distribute.strategy().num_replicas_in_sync)


def mirrored(spark: SparkSession) -> Any:
    """Train on the devices of an executor."""
    return experiment.mirrored(_replicas, progress=False).result


def _fails_once(number: int, folder: str) -> int:
    Path(folder, f"tried-{number}-{time.time_ns()}").touch()
    if number == 1 and not Path(folder, "go").exists():
        raise ValueError("not yet")
    return number


def resumed(spark: SparkSession, folder: str) -> Any:
    """Resume a run of which a trial has failed."""
    numbers = {"number": [0, 1], "folder": [folder]}
    run = experiment.launch(_fails_once, numbers, progress=False)
    before = [str(trial.state) for trial in run.trials]
    Path(folder, "go").touch()
    again = experiment.resume(run.path, retry="failed", progress=False)
    tried = sorted(name.split("-")[1] for name in os.listdir(folder) if name != "go")
    return {"before": before, "after": [str(t.state) for t in again.trials], "tried": tried}


def records(spark: SparkSession, folder: str) -> Any:
    """Write and read TFRecord files."""
    table = spark.range(100, numPartitions=3).selectExpr("id", "cast(id * 2 as float) twice")
    data.write_tfrecord(table, f"{folder}/records")
    read = data.read_tfrecord(spark, f"{folder}/records")
    return read.selectExpr("count(*)", "sum(id)", "sum(twice)").first().asDict()


def tensorflowonspark(spark: SparkSession) -> Any:
    """Pass the session to the API of TensorFlowOnSpark."""
    from sparkdl.tfos import TFCluster

    try:
        TFCluster.run(spark, _mean, {}, 1, 0)
    except SparkDLError as exc:
        return str(exc)


def lacks_a_package(spark: SparkSession) -> Any:
    """Run a function whose package only the executors have."""

    def measure() -> float:
        import scipy.stats

        return float(scipy.stats.norm.cdf(0.0))

    sys.modules["scipy"] = None  # type: ignore[assignment]
    try:
        return experiment.launch(measure, spark=spark, progress=False).result
    finally:
        del sys.modules["scipy"]


def without_context(spark: SparkSession) -> Any:
    """Return the names of what a client lacks."""
    import pyspark

    from sparkdl.cluster.spark import SparkCluster

    cluster = SparkCluster(spark)
    begun_s = time.monotonic()
    cluster.wait_for_executors(2)
    return {
        "has_context": hasattr(pyspark, "SparkContext"),
        "waited_s": time.monotonic() - begun_s,
        "master": cluster.master,
    }


def _patient(start: Callable[[], Any]) -> Any:
    """Start a stream, again if its Python worker took longer than the 10 s that Spark gives it."""
    for _ in range(4):
        try:
            return start()
        except Exception as exc:
            if "Python worker failed to connect back" not in str(exc):
                raise
    return start()


def watched(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Watch a log of two hours, of which the second is unlike the training data."""
    from sparkdl import monitoring
    from tests.helpers.logs import PROFILE

    options: dict[str, Any] = {"to": f"{folder}/results", "min_rows": 10, "idle_s": 60}
    options |= {"metrics": ["ks"], "columns": ["age"], "available_now": True}
    first = _patient(lambda: monitoring.watch(f"{folder}/log", PROFILE, **options)).new_drift
    monitoring.acknowledge(f"{folder}/results")
    # The log is idle only once.
    again = _patient(lambda: monitoring.watch(f"{folder}/log", PROFILE, **options))
    return {
        "statuses": first.table["status"].tolist(),
        "alerts": len(again.alerts),
        "unreadable": first.left_out["unreadable"]["num"],
        "again": len(again.new_drift.table) + len(again.new_drift.left_out),
    }


def keras_stages(spark: SparkSession, folder: str) -> Any:
    """See `_stages`."""
    import keras

    from sparkdl.ml import KerasEstimator

    net = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    net.compile(keras.optimizers.SGD(0.1), "mse")
    return _stages(spark, folder, KerasEstimator(net))


def torch_stages(spark: SparkSession, folder: str) -> Any:
    """See `_stages`."""
    import torch

    from sparkdl.ml import TorchEstimator

    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return _stages(spark, folder, TorchEstimator(net, optimizer=optimizer, loss=torch.nn.MSELoss()))


def _stages(spark: SparkSession, folder: str, estimator: Any) -> Any:
    """Train and apply a pipeline, save and load it; overwriting it is refused."""
    from pyspark.ml import Pipeline, PipelineModel

    df = spark.range(64).selectExpr("(id % 8) / 8.0d AS x", "(id % 8) / 4.0d AS label")
    options = {"epochs": 40, "batchSize": 8, "numWorkers": 2, "runOptions": {"progress": False}}
    estimator.setParams(featuresCol=["x"], **options)
    fitted = Pipeline(stages=[estimator]).fit(df)
    fitted.stages[0].save(f"{folder}/saved")
    again = type(fitted.stages[0]).load(f"{folder}/saved")
    expected = [row.prediction for row in fitted.transform(df).orderBy("x").collect()]
    found = [row.prediction for row in PipelineModel([again]).transform(df).orderBy("x").collect()]
    try:
        again.write().overwrite().save(f"{folder}/saved")
    except SparkDLError as exc:
        return {"error": str(exc), "is_same": expected == found, "last": found[-1]}


def preloaded(spark: SparkSession, trials: int) -> Any:
    """Return the values of trials, and the processes that have loaded what they read."""

    def load() -> Any:
        return {"pid": os.getpid(), "weights": [0.5] * 10}

    def train(x: int) -> Any:
        base = context.preloaded
        return {"server": base["pid"], "value": x * sum(base["weights"])}

    params = {"x": list(range(trials))}
    run = experiment.launch(train, params, preload=load, metric="value", progress=False)
    servers = {trial.outputs["server"] for trial in run.trials}
    return {"values": [trial.value for trial in run.trials], "servers": len(servers)}


def _sum_of_ids(number: int, folder: str) -> int:
    rows = data.dataset("train", batch_size_per_worker=64, feature_cols="id", epochs=2)
    total = sum(int(i) for batch in rows for i in batch)
    ((disk, inode),) = mapped()
    is_held = any(Path(disk, "sparkdl-rows").glob("*/socket"))
    note(Path(folder), "trial", number=number, file=[disk, inode], is_held=is_held)
    return total


def shared_rows(spark: SparkSession, folder: str, trials: int) -> Any:
    """Return the sums of the ids that trials read, and what the trials note of their files."""
    frame = spark.range(0, 2000, 1, 4).selectExpr("id", "repeat('x', 1000) filling")
    params = {"number": list(range(trials)), "folder": [folder]}
    run = experiment.launch(_sum_of_ids, params, data=frame, progress=False)
    sums = [trial.value for trial in run.trials]
    return {"sums": sums, "notes": notes(Path(folder), "trial")}
