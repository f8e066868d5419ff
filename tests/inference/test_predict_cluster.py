"""`experiment.predict` with executors in separate processes."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.inference import model_cache
from tests.helpers.models import dense, numbers, save, values
from tests.helpers.runs import quiet
from tests.helpers.spark import start_gpu_session

pytestmark = pytest.mark.slow


def counting_model(folder: Path, layers: Any) -> Any:
    """Return a model that creates a file in `folder` whenever it is loaded."""
    import keras

    @keras.saving.register_keras_serializable("tests")
    class Counting(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "folder": str(folder)}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            name = f"{os.getpid()}-{os.urandom(8).hex()}"
            Path(config.pop("folder"), name).touch()
            return cls(**config)

    return keras.Sequential([layers[0], Counting(), *layers[1:]])


@pytest.mark.acceptance("A24")
@pytest.mark.parametrize("given", ["path", "in memory"])
def test_scoring_10000_rows_in_7_partitions_gives_10000_predictions(
    three_executors: SparkSession, tmp_path: Path, given: str
) -> None:
    import keras

    loads = tmp_path / "loads"
    loads.mkdir()
    layers = [keras.layers.Input((20,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(10)]
    model = counting_model(loads, layers)
    model.save(tmp_path / "model.keras")
    x = np.random.default_rng(0).normal(size=(10_000, 20)).astype("float32")
    rows = [(f"key-{i}", i, row.tolist()) for i, row in enumerate(x)]
    schema = "key string, id int, features array<float>"
    df = three_executors.createDataFrame(rows, schema).repartition(7)
    scored = experiment.predict(
        str(tmp_path / "model.keras") if given == "path" else model,
        df,
        feature_cols="features",
        batch_size=64,
    )
    for path in loads.iterdir():
        path.unlink()  # The file that the driver's load created.
    assert scored.rdd.getNumPartitions() == 7
    found = scored.orderBy("id").collect()
    assert [row.key for row in found] == [row[0] for row in rows]
    assert np.allclose([row.features for row in found], x)
    expected = model.predict(x, verbose=0)
    assert np.allclose([row.prediction for row in found], expected, rtol=1e-4, atol=1e-5)
    assert scored.count() == 10_000  # This computes all rows again.
    loaded_by = [path.name.split("-")[0] for path in loads.iterdir()]
    # Once in each Python worker, of which there may be several in a slot; not in each of 14 tasks.
    assert 1 <= len(loaded_by) == len(set(loaded_by)) < 14


@pytest.mark.parametrize("name", ["m.keras", "m.h5", "folder", "tf_keras", "tf_keras.h5"])
def test_predict_loads_files_of_every_format(
    three_executors: SparkSession, tmp_path: Path, name: str
) -> None:
    model = dense(2)
    path = tmp_path / name
    if name.startswith("tf_keras"):
        import tf_keras

        model = tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.Dense(1)])
        path = path if path.suffix else path.with_suffix(".keras")
        save(model, path)
    elif name == "folder":
        model.export(path)
    else:
        save(model, path)
    df = numbers(three_executors)
    expected = model.predict(values(df, "x0", "x1"), verbose=0)
    scored = experiment.predict(path, df, feature_cols=["x0", "x1"])
    assert np.allclose(values(scored, "prediction"), expected, atol=1e-5)


def test_predict_accepts_a_run_and_a_trial(three_executors: SparkSession, root: str) -> None:
    def train(bias: float) -> dict[str, Any]:
        import keras

        from sparkdl.keras import save

        layer = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Sequential([keras.layers.Input((2,)), layer])
        layer.bias.assign([bias])
        return {"score": bias, "model": save(model, "m.keras"), "words": "no path"}

    run = experiment.launch(train, {"bias": [1.0, 5.0, 3.0]}, metric="score", **quiet(root))
    df = numbers(three_executors)
    total = values(df, "x0", "x1").sum(1)
    for model, bias in ((run, 5.0), (run.trials[2], 3.0), (experiment.load(run.path), 5.0)):
        scored = experiment.predict(model, df, feature_cols=["x0", "x1"])
        assert np.allclose(values(scored, "prediction")[:, 0], total + bias, atol=1e-5)


def test_predict_sends_the_users_own_classes_to_executors(
    three_executors: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classes are in a module beside the program, which executors do not have."""
    (tmp_path / "keras_own_layers.py").write_text(
        "import keras\n"
        "OFFSET = 7.0\n"
        "@keras.saving.register_keras_serializable()\n"
        "class Shifted(keras.layers.Layer):\n"
        "    def call(self, x):\n"
        "        return helper(x)\n"
        "def helper(x):\n"
        "    return x + OFFSET\n"
        "@keras.saving.register_keras_serializable()\n"
        "def doubled(x):\n"
        "    return 2 * x\n"
        "class Whole(keras.Model):\n"
        "    def __init__(self, **options):\n"
        "        super().__init__(**options)\n"
        "        self.dense = keras.layers.Dense(1, activation=doubled)\n"
        "        self.shifted = Shifted()\n"
        "    def call(self, x, training=True):\n"
        "        return {'y': -self.shifted(self.dense(x)) if training else self.dense(x)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("keras_own_layers")
    try:
        import keras

        df = numbers(three_executors)
        model = keras.Sequential(
            [keras.layers.Input((2,)), own.Shifted(), keras.layers.Dense(1, own.doubled)]
        )
        x = values(df, "x0", "x1")
        scored = experiment.predict(model, df, feature_cols=["x0", "x1"])
        assert np.allclose(values(scored, "prediction"), model.predict(x, verbose=0), atol=1e-4)
        whole = own.Whole()
        whole(x)
        scored = experiment.predict(whole, df, feature_cols=["x0", "x1"])
        assert np.allclose(values(scored, "prediction"), whole(x, training=False)["y"], atol=1e-4)
    finally:
        del sys.modules["keras_own_layers"]


def test_a_model_on_s3(s3: str, three_executors: SparkSession, tmp_path: Path) -> None:
    from sparkdl.files import storage

    model = dense(2)
    model.save(tmp_path / "m.keras")
    model.export(tmp_path / "m", verbose=False)
    storage.copy(tmp_path / "m.keras", f"{s3}/models/m.keras")
    storage.copy(tmp_path / "m", f"{s3}/models/m")
    df = numbers(three_executors)
    expected = model.predict(values(df, "x0", "x1"), verbose=0)
    for name in ("m.keras", "m"):
        scored = experiment.predict(f"{s3}/models/{name}", df, feature_cols=["x0", "x1"])
        assert np.allclose(values(scored, "prediction"), expected, atol=1e-5)


@pytest.mark.usefixtures("own_application")
def test_a_worker_sees_the_gpu_of_its_task_and_the_next_task_does_not(tmp_path: Path) -> None:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import tensorflow as tf
        from pyspark import TaskContext

        seen: list[dict[str, str]] = []
        tf.config.list_logical_devices = lambda: seen.append(dict(os.environ))
        before = dict(os.environ)
        model_cache.start_framework("keras", False)
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context
        row = {
            "given": context.resources()["gpu"].addresses[0],
            "seen": seen[0]["CUDA_VISIBLE_DEVICES"],
            "threads": seen[0]["TF_NUM_INTRAOP_THREADS"],
            "same": dict(os.environ) == before,
        }
        yield pa.RecordBatch.from_pylist([row])

    session = start_gpu_session("local-cluster[1,2,1024]", 2, tmp_path)
    try:
        schema = "given string, seen string, threads string, same boolean"
        rows = session.range(2, numPartitions=2).mapInArrow(task, schema).collect()
    finally:
        session.stop()
    assert {row.given for row in rows} == {"0", "1"}
    assert all(row.seen == row.given and row.same for row in rows)
    assert {row.threads for row in rows} == {"1"}
