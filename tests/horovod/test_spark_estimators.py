"""Horovod's estimators for Spark, against Keras itself."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml.feature import OneHotEncoder
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession

import sparkdl.horovod.spark.keras as hvd
from sparkdl.errors import ConfigError
from sparkdl.horovod.spark.common.backend import Backend, SparkBackend
from sparkdl.horovod.spark.common.store import DBFSLocalStore, HDFSStore, Store

POINTS = np.random.default_rng(3).normal(size=(16, 4)).astype("f4")
TARGETS = POINTS @ np.array([1, -2, 3, 0.5], "f4") + 1
CLASSES = (POINTS[:, 0] > 0).astype(int)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    data = [
        (Vectors.dense(point), float(target), float(of), int(number % 4 == 0), number + 0.5)
        for number, (point, target, of) in enumerate(zip(POINTS, TARGETS, CLASSES, strict=True))
    ]
    return spark.createDataFrame(data, ["x", "y", "c", "v", "w"])


def network(units: int = 1, activation: str | None = None) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Reshape((4,)), keras.layers.Dense(units, activation)]
    return keras.Sequential([keras.layers.Input((2, 2)), *layers])


@pytest.mark.slow
def test_a_fit_equals_that_of_keras_with_the_global_batch(rows: DataFrame, tmp_path: Path) -> None:
    """Each step has all rows that train, so that their order does not count."""
    import keras

    expected = network()
    expected.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    is_validation = np.arange(16) % 4 == 0
    x, y = POINTS.reshape(-1, 2, 2), TARGETS[:, None]
    history = expected.fit(
        x[~is_validation],
        y[~is_validation],
        sample_weight=np.arange(16)[~is_validation] + 0.5,
        batch_size=12,
        epochs=3,
        validation_data=(x[is_validation], y[is_validation], np.arange(16)[is_validation] + 0.5),
        verbose=0,
    ).history
    output = io.StringIO()
    estimator = hvd.KerasEstimator(
        backend=SparkBackend(num_proc=2, env={"A": "b"}, verbose=0, stdout=output),
        callbacks=[keras.callbacks.LambdaCallback(on_train_end=lambda logs: print("over"))],
        store=Store.create(str(tmp_path)),
        model=network(),
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=keras.losses.mean_squared_error,
        metrics=["mae"],
        feature_cols=["x"],
        label_cols=["y"],
        sample_weight_col="w",
        validation="v",
        batch_size=6,
        inmemory_cache_all=True,
    )
    model = estimator.fit(rows, {estimator.epochs: 3})
    assert {"[0]<stdout>:over", "[1]<stdout>:over"} <= set(output.getvalue().splitlines())
    for name, values in history.items():
        np.testing.assert_allclose(model.getHistory()[name], values, rtol=1e-4, err_msg=name)
    predictions = expected.predict(x, verbose=0)[:, 0]
    loaded = _saved_and_loaded(model, tmp_path)
    for each in (model, loaded.setOutputCols(["y__output"])):
        found = [row.y__output for row in each.transform(rows).select("y__output").collect()]
        np.testing.assert_allclose(found, predictions, rtol=1e-4)
    assert (tmp_path / "runs" / model.getRunId() / "run.json").is_file()


def _saved_and_loaded(model: Any, folder: Path) -> Any:
    model.save(str(folder / "model"))
    return hvd.KerasModel.load(str(folder / "model"))


def certainty(labels: Any, outputs: Any) -> Any:
    """Mix labels and outputs, as a metric of Keras 2 may, where both are in single precision."""
    import tensorflow as tf

    return tf.reduce_max(outputs + 0.0 * labels, axis=-1)


def classes(values: Any) -> Any:
    import keras

    return keras.ops.softmax(values)


@pytest.mark.slow
def test_vectors_of_classes_are_predicted_as_vectors(rows: DataFrame, tmp_path: Path) -> None:
    """The best epoch is the first one: the learning rate is a catastrophe."""
    import keras

    encoder = OneHotEncoder(inputCols=["c"], outputCols=["classes"], dropLast=False)
    df = encoder.fit(rows).transform(rows)
    best = keras.callbacks.ModelCheckpoint("best.keras", monitor="loss", save_best_only=True)
    compiled = network(2, classes)
    compiled.compile("adam", "categorical_crossentropy")
    model = hvd.KerasEstimator(
        num_proc=1,
        store=Store.create(str(tmp_path)),
        model=compiled,
        optimizer=keras.optimizers.SGD(-1.0),
        metrics=[certainty],
        custom_objects={"classes": classes},
        feature_cols=["x"],
        label_cols=["classes"],
        batch_size=16,
        epochs=3,
        random_seed=1,
        callbacks=[keras.callbacks.TerminateOnNaN()],
        checkpoint_callback=best,
        verbose=0,
    ).fit(df)
    losses = model.getHistory()["loss"]
    assert len(model.getHistory()["certainty"]) == 3
    assert losses == sorted(losses)
    found = model.setOutputCols(["p"]).transform(df).select("p", "c").collect()
    loss = -np.mean([np.log(row.p[int(row.c)]) for row in found])
    # The loss of the second epoch is that of the weights after the first one.
    np.testing.assert_allclose(loss, losses[1], rtol=1e-4)


@pytest.mark.slow
def test_whole_labels_get_whole_predictions(rows: DataFrame) -> None:
    import keras

    model = network()
    model.layers[-1].set_weights([np.array([[1.0], [0], [0], [0]]), np.zeros(1)])
    stage = hvd.KerasModel(
        model=model, feature_columns=["x"], label_columns=["n"], label_type="int"
    )
    found = [row.n__output for row in stage.transform(rows).collect()]
    assert found == np.round(POINTS[:, 0]).astype(int).tolist()
    assert keras.__version__


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"run_id": "a"}, "run_id is 'a', .*experiment.resume"),
        ({"transformation_fn": print}, "apply it to the DataFrame before fit"),
        ({"train_steps_per_epoch": 3}, r"fit df.limit\(n\)"),
        ({"gradient_compression": "fp16"}, "experiment.horovod"),
        ({"num_proc": 2, "backend": SparkBackend(2)}, r"SparkBackend\(num_proc=2\)"),
        ({"backend": Backend()}, "expected a SparkBackend"),
        ({"feature_cols": "x"}, "feature_cols is 'x'; expected a list"),
        ({"label_cols": ["a", "b"]}, "experiment.allreduce"),
        ({"model": object()}, "expected a model of Keras 3"),
    ],
)
def test_what_is_not_carried_is_refused(
    params: dict[str, Any], says: str, spark: SparkSession
) -> None:
    given = {"num_proc": 1, "feature_cols": ["x"], "label_cols": ["y"], **params}
    if "backend" in params and "num_proc" not in params:
        given.pop("num_proc")
    with pytest.raises(ConfigError, match=says):
        hvd.KerasEstimator(**given).fit(spark.range(1))


def test_a_model_that_is_not_compiled_needs_optimizer_and_loss(spark: SparkSession) -> None:
    given = {"num_proc": 1, "model": network(), "feature_cols": ["x"], "label_cols": ["y"]}
    with pytest.raises(ConfigError, match="not compiled, and there is no optimizer"):
        hvd.KerasEstimator(loss="mse", **given).fit(spark.range(1))
    with pytest.raises(ConfigError, match="there is no loss and no optimizer"):
        hvd.KerasEstimator(metrics=["mae"], **given).fit(spark.range(1))


def test_params_that_do_not_exist_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no param 'feature_col'. Did you mean 'feature_cols'"):
        hvd.KerasEstimator(feature_col=["x"])


def test_stores_name_the_folder_of_the_runs() -> None:
    assert Store.create("hdfs:///user/me").get_run_path("r") == "hdfs:///user/me/runs/r"
    assert Store.create("dbfs:/me").get_runs_path() == "/dbfs/me/runs"
    assert HDFSStore("/me").get_runs_path() == "hdfs:///me/runs"
    assert DBFSLocalStore("file:///dbfs/me").prefix_path == "/dbfs/me"
    with pytest.raises(ConfigError, match="expected a path of DBFS"):
        DBFSLocalStore("/elsewhere")
    with pytest.raises(AttributeError, match="rows need no files"):
        Store.create("/tmp").get_train_data_path()
