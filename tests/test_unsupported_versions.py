"""Every verb names a version that is not supported, before it starts anything."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkdl import MirroredStrategyRunner, data, doctor, experiment, models, monitoring, serving
from sparkdl.cli.main import main
from sparkdl.cluster.spark import SparkCluster
from sparkdl.errors import ConfigError
from sparkdl.hops import util
from sparkdl.host import supported_versions
from sparkdl.host.supported_versions import WINDOWS
from sparkdl.ml import KerasEstimator
from sparkdl.runner.pipeline.execute import execute
from sparkdl.spark import versions
from sparkdl.tfos import TFCluster, TFParallel
from tests.helpers.in_memory_cluster import InMemoryCluster, raised, returned
from tests.helpers.loops import request_of, train

horovod = importlib.import_module("sparkdl.horovod.spark")
launch_horovod = importlib.import_module("sparkdl.horovod.launch")


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that can be continued, on a host where no Spark may start."""
    monkeypatch.chdir(tmp_path)
    request = request_of(2, name="before", root=str(tmp_path))
    run = execute(request, InMemoryCluster(lambda a: raised("x") if a.number else returned(1.0)))

    def fail(*arguments: Any, **options: Any) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr("sparkdl.cluster.spark._new_session", fail)
    monkeypatch.setattr("sparkdl.cluster.spark.active_session", lambda: None)
    monkeypatch.setattr("sparkdl.doctor.examination.active_session", lambda: None)
    monkeypatch.setattr(SparkCluster, "submit", fail)
    Path("model.keras").touch()

    return run.path


# `replay` goes the way of `reproduce`, with a run of another algorithm.
VERBS: dict[str, Callable[[str], Any]] = {
    "allreduce": lambda path: experiment.allreduce(train, num_workers=2),
    "horovod": lambda path: experiment.horovod(train, num_workers=2),
    "launch": lambda path: experiment.launch(train, {"x": [1.0]}),
    "mirrored": lambda path: experiment.mirrored(train),
    "parameter_server": lambda path: experiment.parameter_server(train, num_workers=1, num_ps=1),
    "reproduce": experiment.reproduce,
    "resume": lambda path: experiment.resume(path, retry="failed"),
    "search": lambda path: experiment.search(train, {"x": [0, 1]}, num_trials=2),
    "MirroredStrategyRunner": lambda path: MirroredStrategyRunner(num_slots=1),
    "horovod.run": lambda path: launch_horovod.run(train, np=2),
    "horovod.spark.run": lambda path: horovod.run(train, num_proc=2),
    "read_log": lambda path: monitoring.read_log(path, PROFILE),
    "watch": lambda path: monitoring.watch(path, PROFILE, to=path),
    "hops.util.num_executors": lambda path: util.num_executors(),
}

PROFILE = {"features": {"x": {"kind": "number"}}}
SIZE: Any = {"batch_size_per_worker": 2}

# These need no Spark.
READERS: dict[str, Callable[[str], Any]] = {
    "csv": lambda path: data.csv(path, **SIZE),
    "delta": lambda path: data.delta(path, **SIZE),
    "images": lambda path: data.images(path, size=(2, 2), **SIZE),
    "parquet": lambda path: data.parquet(path, **SIZE),
    "petastorm": lambda path: data.petastorm(path, **SIZE),
    "tfrecord": lambda path: data.tfrecord(path, **SIZE),
}

WITH_ROWS: dict[str, Callable[[DataFrame], Any]] = {
    "predict": lambda df: experiment.predict(abs, df, feature_cols="x", outputs="float"),
    "local": lambda df: data.local(df).__enter__(),
    "read_tfrecord": lambda df: data.read_tfrecord(df.sparkSession, "records"),
    "write_tfrecord": lambda df: data.write_tfrecord(df, "records"),
    "profile": lambda df: monitoring.profile(df),
    "allreduce": lambda df: experiment.allreduce(train, num_workers=2, data=df),
    "TFCluster.run": lambda df: TFCluster.run(df.sparkSession.sparkContext, abs, [], 1, 0),
    "TFParallel.run": lambda df: TFParallel.run(df.sparkSession.sparkContext, abs, [], 1),
    "KerasEstimator.fit": lambda df: KerasEstimator(abs, featuresCol="x", labelCol="x").fit(df),
}


def with_versions(monkeypatch: pytest.MonkeyPatch, **old: str) -> None:
    """Let other versions of some packages be installed."""
    found = {name: supported_versions.installed(name) for name in supported_versions.WINDOWS}
    for module in (supported_versions, versions):
        monkeypatch.setattr(module, "installed", {**found, **old}.get)


@pytest.mark.parametrize("name", VERBS)
def test_a_spark_or_arrow_that_is_too_old_is_refused(
    name: str, saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, version in {"pyspark": "3.4.1", "pyarrow": "10.0.1"}.items():
        with_versions(monkeypatch, **{package: version})
        with pytest.raises(ConfigError, match=rf"{package} {version} .*is too old.*pip install"):
            VERBS[name](saved)


@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_an_arrow_that_is_too_old(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_versions(monkeypatch, pyarrow="10.0.1")
    with pytest.raises(ConfigError, match=r"pyarrow 10\.0\.1 .*is too old.*pip install"):
        READERS[name](str(tmp_path / "none"))


@pytest.mark.parametrize("name", WITH_ROWS)
def test_a_session_that_is_too_old_is_refused(
    name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = spark.range(3).selectExpr("float(id) AS x")
    before = spark.sparkContext.statusTracker().getJobIdsForGroup(None)
    with_versions(monkeypatch, pyspark="3.4.1")
    with pytest.raises(ConfigError, match=r"pyspark 3.4.1 .*is too old for sparkdl"):
        WITH_ROWS[name](df)
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(None) == before


def uses_keras() -> None:
    import keras

    keras.backend.clear_session()


KERAS: dict[str, Callable[[str], Any]] = {
    "allreduce": lambda path: experiment.allreduce(uses_keras, num_workers=2),
    "horovod": lambda path: experiment.horovod(uses_keras, num_workers=2),
    "launch": lambda path: experiment.launch(uses_keras),
    "launch, PyTorch": lambda path: experiment.launch(uses_keras, framework="torch"),
    "mirrored": lambda path: experiment.mirrored(uses_keras),
    "parameter_server": lambda path: experiment.parameter_server(train, num_workers=1, num_ps=1),
    "try_one": lambda path: experiment.try_one(uses_keras),
    "search": lambda path: experiment.search(lambda x: uses_keras(), {"x": [0]}, num_trials=1),
    "export": lambda path: models.export("model.keras", "name"),
    "serve": lambda path: serving.start("model.keras", port=0),
}


@pytest.mark.parametrize("name", KERAS)
def test_a_keras_that_is_too_old_is_refused(
    name: str, saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_versions(monkeypatch, keras="3.0.0", tensorflow="2.16.1")
    with pytest.raises(ConfigError, match=r"keras 3\.0\.0 .*is too old.*pip install 'keras>="):
        KERAS[name](saved)


def test_programs_without_keras_do_not_need_a_supported_one(
    saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_versions(monkeypatch, keras="3.0.0", tensorflow="2.9.0")
    with pytest.raises(AssertionError, match="Spark starts"):
        experiment.launch(train)


def test_reading_runs_needs_no_supported_version(
    saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_versions(monkeypatch, pyspark="3.4.1", pyarrow="10.0.1", keras="3.0.0")
    assert len(experiment.load(saved).trials) == 2
    assert main(["runs", "--root", str(Path(saved).parent)]) == 0


def test_the_command_line_and_the_doctor_name_versions(
    saved: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_versions(monkeypatch, pyspark="3.4.1", keras="3.0.0")
    assert main(["reproduce", saved]) == 2
    assert "sparkdl: pyspark 3.4.1 (" in capsys.readouterr().err
    report = doctor.examine()
    faults = {fault.subject: fault for fault in report.faults}
    assert faults["Spark"].text.startswith("pyspark 3.4.1 (")
    assert faults["Packages"].remedy.endswith(f"'keras>={WINDOWS['keras'].oldest}'")
    with_versions(monkeypatch, pyspark="9.0.0", keras="3.0.0")
    found = [check for check in doctor.examine().checks if check.text.startswith("pyspark 9.0.0 ")]
    assert [check.state for check in found] == ["note"]
