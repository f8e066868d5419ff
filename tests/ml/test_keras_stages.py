"""Keras stages of Spark ML: params, fits on two slots, columns of predictions, saved stages."""

import importlib
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import DataFrame, SparkSession

from sparkdl import experiment
from sparkdl.errors import ConfigError
from sparkdl.ml import KerasEstimator, KerasModel, stage_files
from sparkdl.ml.keras_training import as_loss_takes
from sparkdl.ml.prediction_columns import classification_columns
from sparkdl.ml.training_rows import training_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models() -> Any:
    """The module of the models. It imports Keras, which the other tests need not wait for."""
    return importlib.import_module("tests.programs.keras_models")


@pytest.fixture(scope="module")
def points(spark: SparkSession) -> DataFrame:
    """The label is 1 where a + b > 0; every fourth row is for validation."""
    x = np.random.default_rng(0).normal(size=(200, 2))
    rows = [(i, float(a), float(b), float(a + b > 0), i % 4 == 0) for i, (a, b) in enumerate(x)]
    return spark.createDataFrame(rows, "id int, a double, b double, label double, held boolean")


@pytest.fixture
def root(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    return root


QUIET = {"progress": False}


# ---- fit


def test_a_pipeline_trains_on_two_workers_and_its_columns_suit_the_evaluators(
    models: Any, spark: SparkSession, points: DataFrame, root: str, tmp_path: Path
) -> None:
    together = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    estimator = KerasEstimator(
        models.classifier,
        callbacks=models.stop_early,
        units=8,
        epochs=20,
        task=None,
        numWorkers=2,
        seed=3,
        runOptions=QUIET,
    )
    estimator.setValidationIndicatorCol("held").setBatchSize(10)
    fitted = Pipeline(stages=[together, estimator]).fit(points)
    model = fitted.stages[1]
    run = experiment.load(model.getRunPath())
    # 150 rows in 15 steps; stopped after the second of 20 epochs.
    assert run.result.keys() == {"accuracy", "loss", "val_accuracy", "val_loss", "model"}
    assert [line["rows"] for line in run.trials[0].data] == [150, 50]
    assert list(run.trials[0].history.index) == [0, 1]
    assert len(run.trials[0].checkpoints) == 1
    assert (model.uid, model.getTask(), model.getFromLogits()) == (
        estimator.uid,
        "classification",
        False,
    )
    found = fitted.transform(points)
    assert found.columns == [
        *points.columns,
        *("features", "rawPrediction", "probability", "prediction"),
    ]
    assert found.count() == 200
    multiclass = MulticlassClassificationEvaluator(metricName="accuracy")
    accuracy = multiclass.evaluate(found)
    assert accuracy > 0.8
    assert BinaryClassificationEvaluator().evaluate(found) > 0.9
    held = multiclass.evaluate(found.filter("held"))
    assert held == pytest.approx(run.result["val_accuracy"])
    fitted.write().overwrite().save(str(tmp_path / "saved"))
    again = PipelineModel.load(str(tmp_path / "saved"))
    assert again.transform(points).collect() == found.collect()
    assert again.stages[1].getRunPath() == model.getRunPath()


@pytest.mark.thorough
def test_a_model_with_two_inputs_and_weights_goes_on_from_its_weights(
    models: Any, spark: SparkSession, root: str
) -> None:
    # Only rows of weight 1 say that the target is 3 a + 3 b + 0 c.
    net = models.linear((2, 1), (1,))
    net.compile(models.keras.optimizers.SGD(0.05), models.absolute_error)
    rows = [
        (float(i % 7), float(i % 5), 1.0, 3.0 * (i % 7 + i % 5) if i % 2 else -1e6, float(i % 2))
        for i in range(140)
    ]
    df = spark.createDataFrame(rows, "a double, b double, c double, target double, trust double")
    estimator = KerasEstimator(
        net,
        featuresCol={"first": ["a", "b"], "second": "c"},
        labelCol="target",
        weightCol="trust",
        task="regression",
        numWorkers=2,
        epochs=15,
        checkpointInterval=-1,
        predictionCol="estimate",
        runOptions={**QUIET, "name": "weighted"},
    )
    model = estimator.fit(df)
    run = experiment.load(model.getRunPath())
    assert run.name == "weighted"
    assert run.trials[0].checkpoints == []
    assert len(run.trials[0].history) == 15
    found = model.transform(df)
    assert found.columns == [*df.columns, "estimate"]
    evaluator = RegressionEvaluator(
        labelCol="target", predictionCol="estimate", weightCol="trust", metricName="mae"
    )
    before = evaluator.evaluate(
        KerasModel(net, task="regression").setFeaturesCol(estimator.getFeaturesCol())
        .setPredictionCol("estimate").transform(df)
    )  # fmt: skip
    assert evaluator.evaluate(found) < 0.3 * before


# ---- what a fit refuses


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"featuresCol": "c"}, "there is no column 'c'"),
        ({"labelCol": "name"}, "labels in the column 'name' are strings"),
        ({"weightCol": "weigth"}, "there is no column 'weigth'"),
        ({"featuresCol": ["a"]}, r"have shape \[1\] per row, but the model's input"),
        ({"batchSize": 9, "numWorkers": 2}, "batchSize is 9 for numWorkers=2"),
        ({"validationFraction": 0.1, "validationIndicatorCol": "held"}, "exclude each other"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_fit_refuses_params_before_any_run(
    models: Any, points: DataFrame, root: str, params: dict[str, Any], message: str
) -> None:
    df = points.selectExpr("*", "'x' AS name")
    estimator = KerasEstimator(models.classifier, **{"featuresCol": ["a", "b"], **params})
    with pytest.raises(ConfigError, match=message):
        estimator.fit(df)
    assert list(Path(root).iterdir()) == []


def test_fit_refuses_models_before_any_run(models: Any, points: DataFrame, root: str) -> None:
    def needs(units: int) -> Any:
        return models.classifier(units)

    def two() -> Any:
        net = models.linear((2,), units=3)
        net.compile("sgd", "binary_crossentropy")
        return net

    for model, message in (
        (models.linear((2,)), "has no loss: it is not compiled"),
        (lambda: 3, "returned an int"),
        (needs, "needs 'units', which has no value"),
        (two, "rows that belong to several classes"),
    ):
        with pytest.raises(ConfigError, match=message):
            KerasEstimator(model, featuresCol=["a", "b"]).fit(points)
    net = models.linear((2,))
    net.compile("sgd", models.absolute_error)
    with pytest.raises(ConfigError, match="'absolute_error' does not tell classification"):
        KerasEstimator(net, featuresCol=["a", "b"]).fit(points)
    assert list(Path(root).iterdir()) == []


@pytest.mark.parametrize(
    ("dtype", "value", "lost"),
    [
        ("int32", "4294967299L", "4294967299, which int32"),
        ("float32", "1e300D", r"1e\+300, which float32"),
    ],
)
def test_fit_refuses_the_numbers_that_transform_refuses(
    models: Any, spark: SparkSession, root: str, dtype: str, value: str, lost: str
) -> None:
    """The id 2**32 + 3 is not that of the embedding 3."""
    df = spark.sql(f"SELECT {value} AS id, 1.0D AS label")
    estimator = KerasEstimator(
        models.embedding(dtype), featuresCol="id", batchSize=1, runOptions=QUIET
    )
    with pytest.raises(Exception, match=lost):
        estimator.fit(df)
    stage = KerasModel(models.embedding(dtype), featuresCol="id", task="regression")
    with pytest.raises(Exception, match=lost):
        stage.transform(df).collect()


@pytest.mark.parametrize(
    ("label", "weight", "lost"),
    [
        ("16777217L", "1.0D", "column 'label' has 16777217, which Keras casts to float32"),
        ("1.0D", "1e300D", r"column 'w' has 1e\+300, which Keras casts to float32"),
    ],
)
def test_fit_refuses_labels_and_weights_that_a_loss_would_change(
    models: Any, spark: SparkSession, root: str, label: str, weight: str, lost: str
) -> None:
    df = spark.sql(f"SELECT 1.0D AS a, 2.0D AS b, {label} AS label, {weight} AS w")
    net = models.linear((2,))
    net.compile("sgd", "mse")
    estimator = KerasEstimator(
        net, featuresCol=["a", "b"], weightCol="w", batchSize=1, runOptions=QUIET
    )
    with pytest.raises(Exception, match=lost):
        estimator.fit(df)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "bool", "float32", "float64"])
def test_labels_that_a_loss_represents_keep_their_dtype(dtype: str) -> None:
    import tensorflow as tf

    values = np.array([0, 1], dtype)
    found = as_loss_takes(tf.constant(values), "label")
    assert found.dtype == dtype and found.numpy().tolist() == values.tolist()
    rounded = as_loss_takes(tf.constant(np.array([0.1, 2.0**60 + 2**30])), "label")
    assert rounded.dtype == "float64"  # The user has chosen floats, which may be rounded.


def OfKeras2() -> Any:
    """Return an object whose class is named as that of the models of tf_keras."""
    return type("Model", (), {"__module__": "tf_keras.src", "__call__": lambda self: self})()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs is 0; expected a whole number of at least 1"),
        ({"epochs": None}, "epochs is None; expected a value. Leave it out for the default, 1"),
        ({"numWorkers": None}, "numWorkers is None; expected a value"),
        ({"epoch": 3}, "no param 'epoch'. Did you mean 'epochs'"),
        ({"featuresCol": []}, "featuresCol is "),
        ({"validationFraction": 1.0}, "validationFraction is 1.0"),
        ({"task": "ranking"}, "task is 'ranking'"),
        ({"checkpointInterval": 0}, "checkpointInterval is 0"),
        ({"runOptions": {"env": {"A": "b"}}}, "'env', which is not possible"),
        ({"runOptions": {"versioned_resources": {"a": "/etc"}}}, "'versioned_resources', which"),
        ({"runOptions": {"rot": "/runs"}}, "unknown option 'rot'"),
        ({"callbacks": []}, r"callbacks is \[\]; expected a function"),
        ({"model": 3}, "model is 3, an int"),
        ({"model": OfKeras2()}, "model is a Model of tf_keras; expected a compiled model"),
        ({"model": lambda epochs: epochs}, "parameter 'epochs', which the stage itself has"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_arguments_are_checked_when_they_are_set(
    models: Any, spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        KerasEstimator(**{"model": models.classifier, **arguments})


# ---- params


def test_params_have_setters_getters_and_copies(models: Any, spark: SparkSession) -> None:
    estimator = KerasEstimator(models.classifier, units=8)
    for each in estimator.params:
        if each.name in ("units", "learning_rate", "last"):
            continue
        name = each.name[0].upper() + each.name[1:]
        value = {"str": "x", "task": "regression"}.get(each.name)
        if estimator.isDefined(each) and value is None:
            value = estimator.getOrDefault(each)
        assert getattr(estimator, f"set{name}")(value) is estimator
        assert getattr(estimator, f"get{name}")() == value, name
        assert each.name in estimator.explainParams()
    other = estimator.copy({estimator.units: 16, estimator.epochs: 5})
    assert (other.getOrDefault("units"), other.getEpochs(), other.uid) == (16, 5, estimator.uid)
    assert (estimator.getOrDefault("units"), estimator.getEpochs()) == (8, 1)
    assert other.getOrDefault("learning_rate") == 0.1
    assert "units: parameter of the function of the model (current: 16)" in (
        other.explainParam("units").replace("default: 4, ", "")
    )


def test_a_column_may_be_a_feature_and_tell_the_rows_that_validate(
    models: Any, points: DataFrame
) -> None:
    estimator = KerasEstimator(
        models.classifier, featuresCol=["a", "held"], validationIndicatorCol="held"
    )
    frames = training_rows(points, estimator)
    assert [frame.columns for frame in frames.values()] == [["a", "held", "label"]] * 2


# ---- columns of predictions


def applied(spark: SparkSession, net: Any, **params: Any) -> Any:
    df = spark.createDataFrame([(2.0, 1.0)], "a double, b double")
    return KerasModel(net, featuresCol=["a", "b"], **params).transform(df).first()


def test_outputs_become_vectors_and_numbers(models: Any, spark: SparkSession) -> None:
    sigmoid = 1 / (1 + math.exp(-3))
    row = applied(spark, models.linear((2,)), task="classification", fromLogits=True)
    assert row.rawPrediction.toArray() == pytest.approx([-3, 3])
    assert row.probability.toArray() == pytest.approx([1 - sigmoid, sigmoid])
    assert row.prediction == 1.0
    row = applied(spark, models.linear((2,), activation="sigmoid"), task="classification")
    assert row.rawPrediction.toArray() == pytest.approx([1 - sigmoid, sigmoid])
    assert row.probability == row.rawPrediction
    net = models.linear((2,), units=3)
    net.layers[-1].bias.assign([0.0, 1000.0, 999.0])
    row = applied(spark, net, task="classification", fromLogits=True, rawPredictionCol="")
    assert row.probability.toArray() == pytest.approx([0, 1 / (1 + math.exp(-1)), 0.26894142])
    assert row.prediction == 1.0
    assert "rawPrediction" not in row
    row = applied(spark, models.linear((2,)), task="regression", predictionCol="sum")
    assert row.asDict() == {"a": 2.0, "b": 1.0, "sum": 3.0}
    row = applied(spark, models.linear((2,), units=2), task="regression")
    assert row.prediction.toArray().tolist() == [3.0, 3.0]


def test_the_softmax_of_many_classes(spark: SparkSession) -> None:
    logits = np.random.default_rng(0).normal(scale=20, size=1000)
    df = spark.createDataFrame([(logits.tolist(),)], "output array<double>")
    columns = classification_columns(df, "output", is_array=True, from_logits=True)
    (row,) = df.select(*columns).collect()
    expected = np.exp(logits - logits.max())
    assert np.allclose(row[1].toArray(), expected / expected.sum(), rtol=1e-12, atol=0)
    assert row[2] == logits.argmax()


def test_nan_is_not_the_class_1(spark: SparkSession) -> None:
    df = spark.createDataFrame([(math.nan,), (0.5,), (0.75,), (None,)], "output double")
    *_, prediction = classification_columns(df, "output", is_array=False, from_logits=False)
    assert [row[0] for row in df.select(prediction).collect()] == [0.0, 0.0, 1.0, None]


def test_transform_refuses_what_it_would_overwrite(models: Any, spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="the column 'a' already exists"):
        applied(spark, models.linear((2,)), task="regression", predictionCol="a")
    with pytest.raises(ConfigError, match="the param task is not set"):
        applied(spark, models.linear((2,)))
    with pytest.raises(ConfigError, match="keras_model is a str"):
        KerasModel("model.keras")


def test_a_restarted_fit_ends_with_the_best_weights(
    models: Any, points: DataFrame, root: str, tmp_path: Path
) -> None:
    def stop_early() -> list[Any]:
        import os

        import keras

        class Plan(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_begin(self, epoch: int, logs: dict[str, float]) -> None:
                if epoch == 3 and not (tmp_path / "died").exists():
                    (tmp_path / "died").touch()
                    os._exit(1)

            def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
                logs["score"] = [5.0, 1.0, 3.0, 2.5, 2.4, 2.3][epoch]
                self.model.layers[-1].bias.assign([float(epoch)])

        stops = keras.callbacks.EarlyStopping("score", 0, 2, mode="min", restore_best_weights=True)
        return [Plan(), stops]

    net = models.linear((2,))
    net.compile(models.keras.optimizers.SGD(0.0), "mse")
    estimator = KerasEstimator(
        net, callbacks=stop_early, epochs=6, runOptions={**QUIET, "max_restarts": 1}
    )
    rows = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(points)
    run = experiment.load(estimator.fit(rows).getRunPath())
    trained = models.keras.saving.load_model(Path(run.trials[0].path, run.result["model"]))
    assert (run.trials[0].attempts, run.result["score"]) == (2, 2.5)
    assert trained.layers[-1].bias.numpy().tolist() == [1.0]


# ---- saved


def test_an_estimator_is_saved_with_its_model(
    models: Any, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_files, "_CHUNK_BYTES", 1500)
    net = models.linear((2,))
    net.compile(models.keras.optimizers.SGD(0.25), models.absolute_error)
    estimator = KerasEstimator(net, epochs=7, callbacks=models.stop_early)
    Pipeline(stages=[estimator]).save(str(tmp_path / "saved"))
    [data] = (tmp_path / "saved" / "stages").glob("*/data")
    assert len(list(data.glob("part-*"))) > 1
    [again] = Pipeline.load(str(tmp_path / "saved")).getStages()
    assert (again.uid, again.getEpochs(), again.callbacks) == (estimator.uid, 7, models.stop_early)
    assert float(again.model.optimizer.learning_rate) == 0.25
    assert again.model.loss is models.absolute_error
    assert [w.tolist() for w in again.model.get_weights()] == [[[1.0], [1.0]], [0.0]]


def test_only_functions_that_keras_knows_are_saved_and_loaded(
    models: Any, spark: SparkSession, tmp_path: Path
) -> None:
    estimator = KerasEstimator(models.classifier, units=8, task=None)
    # Spark sets None in a copy without looking at it.
    estimator = estimator.copy({estimator.weightCol: None, estimator.fromLogits: None})
    estimator.save(str(tmp_path / "saved"))
    again = KerasEstimator.load(str(tmp_path / "saved"))
    assert again.model is models.classifier
    assert (again.getTask(), again.getWeightCol(), again.getFromLogits()) == (None, None, None)
    assert (again.getOrDefault("units"), again.getOrDefault("last")) == (8, "softmax")
    with pytest.raises(ConfigError, match=r"model is .*Decorate the function with @keras\.saving"):
        KerasEstimator(lambda: 3).save(str(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"callbacks is functools\.partial"):
        KerasEstimator(models.classifier, callbacks=partial(models.stop_early)).save(
            str(tmp_path / "other")
        )
    with pytest.raises(ConfigError, match=r"has a saved .*KerasEstimator; expected a .*KerasModel"):
        KerasModel.load(str(tmp_path / "saved"))
    # A folder that names another function, which loading would hand its params to.
    [metadata] = (tmp_path / "saved" / "metadata").glob("part-*")
    changed = metadata.read_text().replace("tests>classifier", "system")
    (tmp_path / "forged" / "metadata").mkdir(parents=True)
    (tmp_path / "forged" / "metadata" / "part-0").write_text(
        changed.replace("tests.programs.keras_models", "os")
    )
    with pytest.raises(ConfigError, match=r"'system' of the module .* is not registered here"):
        KerasEstimator.load(str(tmp_path / "forged"))


def test_a_model_that_contains_code_is_not_loaded(
    models: Any, spark: SparkSession, tmp_path: Path
) -> None:
    twice = models.keras.layers.Lambda(lambda x: 2 * x, output_shape=(1,))
    net = models.keras.Sequential([models.keras.layers.Input((1,)), twice])
    KerasModel(net, task="regression").save(str(tmp_path / "saved"))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        KerasModel.load(str(tmp_path / "saved"))


def test_values_that_cannot_be_saved_are_named(
    models: Any, spark: SparkSession, tmp_path: Path
) -> None:
    estimator = KerasEstimator(models.classifier, last=models.keras.activations.softmax)
    with pytest.raises(ConfigError, match="the param last is <function softmax"):
        estimator.save(str(tmp_path / "saved"))
    assert not (tmp_path / "saved").exists()
