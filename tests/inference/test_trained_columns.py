"""Predictions see the features of the training: all readers, and all sources of a model.

The models are sums whose results are known by arithmetic.
"""

import datetime
import functools
import logging
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import context, data, experiment, models
from sparkdl.data.column_record import ColumnRecord
from sparkdl.errors import ConfigError
from sparkdl.files.jsonl import from_json, to_json
from sparkdl.models import source
from sparkdl.runs import Run
from tests.helpers.runs import quiet, run_with_outputs

pytestmark = pytest.mark.slow

TABLE = pa.table({"age": [20.0, None], "visits": [3.0, 4.0], "y": [0.0, 1.0]})
# 1 * age + 100 * visits, with the age 48 where there is none.
EXPECTED = [320.0, 448.0]
ARGUMENTS: dict[str, Any] = {
    "feature_cols": ["age", "visits"],
    "label_cols": "y",
    "batch_size_per_worker": 2,
}


def weighted(weights: list[float], **inputs: Any) -> Any:
    """A model that adds its inputs, times the weights."""
    import keras

    start = keras.initializers.Constant(np.array(weights)[:, None])
    total = keras.layers.Dense(1, kernel_initializer=start)
    return keras.Sequential([keras.layers.Input((len(weights),), **inputs), total])


@pytest.fixture
def run(root: str, tmp_path: Path) -> Run:
    """A run whose only trial has returned a model."""
    file = tmp_path / "m.keras"
    weighted([1.0, 100.0]).save(file)
    return run_with_outputs(root, {"accuracy": (0.9,)}, {"model": [file]})


@pytest.fixture
def in_training(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Calls a function as the training process of the trial does."""

    def call(function: Callable[[], Any]) -> None:
        with monkeypatch.context() as patched:
            patched.setenv(context.VARIABLE, "{}")
            context.activate(context.Context(run="r", folder=run.best.path))
            function()

    return call


@pytest.fixture
def df(spark: SparkSession) -> DataFrame:
    rows = [(1, 3.0, 20.0), (2, 4.0, None)]
    return spark.createDataFrame(rows, "id int, visits double, age double")


def found(df: DataFrame) -> list[float | None]:
    return [row["prediction"] for row in df.orderBy("id").collect()]


def by_dataset(folder: Path, spark: SparkSession) -> Callable[[], Any]:
    rows = spark.createDataFrame(TABLE)

    def read() -> None:
        with data.local(rows):
            data.dataset("train", fill={"age": 48.0}, **ARGUMENTS)

    return read


def by_parquet(folder: Path, spark: SparkSession) -> Callable[[], Any]:
    pq.write_table(TABLE, folder / "a.parquet")
    return functools.partial(data.parquet, folder, fill={"age": 48.0}, **ARGUMENTS)


def by_csv(folder: Path, spark: SparkSession) -> Callable[[], Any]:
    pyarrow.csv.write_csv(TABLE, folder / "a.csv")
    return functools.partial(data.csv, folder, fill={"age": 48.0}, **ARGUMENTS)


def by_delta(folder: Path, spark: SparkSession) -> Callable[[], Any]:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(folder, TABLE)
    return functools.partial(data.delta, str(folder), fill={"age": 48.0}, **ARGUMENTS)


def by_petastorm(folder: Path, spark: SparkSession) -> Callable[[], Any]:
    pq.write_table(TABLE, folder / "a.parquet")
    return functools.partial(data.petastorm, str(folder), fill={"age": 48.0}, **ARGUMENTS)


def by_tfrecord(folder: Path, spark: SparkSession) -> Callable[[], Any]:
    """An absent value has a default there."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as file:
        for row in TABLE.to_pylist():
            feature = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
                for name, value in row.items()
                if value is not None
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            file.write(example.SerializeToString())
    schema = {"visits": "float32", "y": "float32"}
    schema["age"] = tf.io.FixedLenFeature([], tf.float32, default_value=48.0)
    return functools.partial(data.tfrecord, folder, schema=schema, **ARGUMENTS)


READERS = [by_dataset, by_parquet, by_csv, by_delta, by_petastorm, by_tfrecord]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@pytest.mark.filterwarnings("ignore:.*Unischema")
def test_nulls_become_what_they_were_in_training(
    reader: Callable[..., Any],
    in_training: Callable[..., None],
    run: Run,
    df: DataFrame,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    in_training(reader(folder, df.sparkSession))
    assert found(experiment.predict(run, df, errors="null")) == EXPECTED
    assert source.resolve(run).lineage["columns"] == run.best.columns  # Of an exported model.


def test_all_that_a_model_is_found_by_knows_its_columns(
    in_training: Callable[..., None], run: Run, root: str, df: DataFrame, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    in_training(by_parquet(tmp_path / "rows", df.sparkSession))
    version = models.export(run, "sum", root=root)
    assert version is not None
    for model in (run, run.best, version, models.get("sum", root=root), version.path):
        with pytest.raises(ConfigError, match=r"\['visits', 'age'\].*trained with \['age', 'vis"):
            experiment.predict(model, df, feature_cols=["visits", "age"])
    assert version.lineage["columns"] == run.best.columns
    assert found(experiment.predict(version, df)) == EXPECTED
    filled = experiment.predict(run, df, fill={"age": 0.0}, errors="null")
    assert found(filled) == [320.0, 400.0]
    # What has no record knows nothing, as before.
    options = {"feature_cols": ["age", "visits"], "errors": "null"}
    assert found(experiment.predict(run.best.model_path, df, **options)) == [320.0, None]


def train_by_dataset() -> dict[str, Any]:
    data.dataset("train", fill={"age": 48.0}, **ARGUMENTS)
    weighted([1.0, 100.0]).save("m.keras")
    return {"model": "m.keras", "accuracy": 0.5}


def train_one(power: int) -> dict[str, Any]:
    return train_by_dataset()


def by_launch(rows: DataFrame, root: str) -> Run:
    return experiment.launch(
        train_one, {"power": [1, 2]}, data=rows, metric="accuracy", **quiet(root)
    )


def by_search(rows: DataFrame, root: str) -> Run:
    options = {"num_trials": 1, "data": rows, "metric": "accuracy", **quiet(root)}
    return experiment.search(train_one, {"power": [1, 2]}, **options)


def by_allreduce(rows: DataFrame, root: str) -> Run:
    return experiment.allreduce(train_by_dataset, num_workers=2, data=rows, **quiet(root))


@pytest.mark.parametrize("verb", [by_launch, by_search, by_allreduce], ids=lambda v: v.__name__)
def test_every_verb_keeps_the_columns(
    verb: Callable[..., Run], spark: SparkSession, df: DataFrame, root: str
) -> None:
    run = verb(spark.createDataFrame(TABLE), root)
    assert found(experiment.predict(run, df)) == EXPECTED


def test_an_estimator_keeps_its_columns(spark: SparkSession, root: str) -> None:
    from sparkdl.ml import KerasEstimator

    model = weighted([1.0, 100.0])
    model.compile("sgd", "mse")
    rows = spark.createDataFrame(
        [(1, 1.0, 2.0, 9.0, 0.0)], "id int, b double, a double, y double, w double"
    )
    options = {"labelCol": "y", "weightCol": "w", "batchSize": 1}
    estimator = KerasEstimator(model, featuresCol=["a", "b"], runOptions=quiet(root), **options)
    fitted = estimator.fit(rows)  # The weight of the row is 0, so that nothing changes.
    run = experiment.load(fitted.getRunPath())
    assert found(experiment.predict(run, rows)) == [102.0]
    assert found(fitted.transform(rows)) == [102.0]


def test_texts_dates_and_numbers_are_filled_exactly() -> None:
    fill = {
        "a": datetime.date(2024, 2, 29),
        "b": datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.timezone.utc),
        "c": Decimal("1.50"),
        "d": b"\x00",
        "e": float("inf"),
        "f": np.float32(0.5),
        "g": "",
    }
    record = ColumnRecord(data="train", features=("x", ["y", "z"]), labels={"l": "m"}, fill=fill)
    assert ColumnRecord.from_dict(from_json(to_json(record.to_dict()))) == record


def read(folder: Path, name: str, table: pa.Table, **options: Any) -> Callable[[], Any]:
    path = folder / f"{name}.parquet"
    pq.write_table(table, path)
    return functools.partial(data.parquet, path, batch_size_per_worker=2, **options)


def test_padding_and_numbers_in_bytes_are_those_of_the_training(
    root: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import keras

    @keras.saving.register_keras_serializable("tests")
    class Sum(keras.layers.Layer):
        def call(self, tokens: Any, image: Any) -> Any:
            total = keras.ops.sum(tokens, axis=-1, keepdims=True)
            return total + 100 * keras.ops.sum(image, axis=-1, keepdims=True)

    inputs = [keras.layers.Input((None,), name="t"), keras.layers.Input((2,), name="i")]
    keras.Model(inputs, Sum()(*inputs)).save(tmp_path / "m.keras")
    run = run_with_outputs(root, {"accuracy": (0.9,)}, {"model": [tmp_path / "m.keras"]})
    table = pa.table({"tokens": [[1, 2], [3]], "image": [b"\x01\x02", b"\x00\x01"], "y": [0, 1]})
    columns = {"feature_cols": ("tokens", "image"), "label_cols": "y"}
    options = {"pad": {"tokens": -5}, "decode": {"image": "uint8"}, **columns}
    monkeypatch.setenv(context.VARIABLE, "{}")
    context.activate(context.Context(run="r", folder=run.best.path))
    read(tmp_path, "rows", table, **options)()
    monkeypatch.undo()
    df = spark.createDataFrame(table).withColumn("id", F.element_at("tokens", 1)).coalesce(1)
    assert found(experiment.predict(run, df)) == [303.0, 98.0]
    assert found(experiment.predict(run, df, pad={"tokens": 0})) == [303.0, 103.0]


def test_days_that_have_become_microseconds_are_refused(
    in_training: Callable[..., None], run: Run, df: DataFrame, tmp_path: Path
) -> None:
    days = pa.table({"age": pa.array([1, 2], pa.date32()), "visits": [3, 4]})
    in_training(read(tmp_path, "days", days, feature_cols=["age", "visits"]))
    dated = df.withColumn("age", F.lit(datetime.date(1970, 1, 11)))
    assert found(experiment.predict(run, dated)) == [310.0, 410.0]
    for kind in ("timestamp", "int"):
        other = df.withColumn("age", F.lit(None).cast(kind))
        with pytest.raises(ConfigError, match=rf"'age' is {kind}, and was date32\[day\] when"):
            experiment.predict(run, other)


def doubled(rows: Any) -> Any:
    return {"age": rows["age"] * 2, "bmi": rows["visits"] * 10}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "sparkdl.inference"):
        yield caplog


def test_a_function_of_the_reader_is_named(
    in_training: Callable[..., None],
    run: Run,
    df: DataFrame,
    tmp_path: Path,
    log: pytest.LogCaptureFixture,
) -> None:
    table = pa.table({"age": [1.0], "visits": [2.0], "y": [0]})
    in_training(
        read(tmp_path, "a", table, map=doubled, feature_cols=["age", "bmi"], label_cols="y")
    )
    with pytest.raises(ConfigError, match=r"no column 'bmi' in df: .* function doubled \(.*\.py:"):
        experiment.predict(run, df)
    assert not log.records
    ready = df.withColumn("bmi", F.col("visits") * 10).withColumn("age", F.col("age") * 2)
    assert found(experiment.predict(run, ready, errors="null")) == [3040.0, None]
    (note,) = log.records
    assert "function doubled" in note.getMessage()
    assert "has computed 'age', 'bmi'" in note.getMessage()


def test_readers_that_contradict_each_other_are_named(
    in_training: Callable[..., None],
    run: Run,
    df: DataFrame,
    tmp_path: Path,
    log: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match=r"feature_cols is missing.*no record of its training"):
        experiment.predict(run, df)
    # A vocabulary was read without labels.
    in_training(read(tmp_path, "a", TABLE, feature_cols="age", fill={"age": -1.0}))
    options = {"feature_cols": ["age", "visits"], "label_cols": "y"}
    in_training(read(tmp_path, "b", TABLE, fill={"age": 48.0}, **options))
    for _ in range(2):
        in_training(read(tmp_path, "c", TABLE.slice(0, 1), **options))  # Without nulls.
    assert len(run.best.columns) == 3
    assert found(experiment.predict(run, df)) == EXPECTED
    assert "nulls of 'age' become 48.0, as in training" in log.text
    in_training(read(tmp_path, "d", TABLE, fill={"age": 30.0}, **options))
    with pytest.raises(ConfigError, match=r"'age' had the values 48\.0 and 30\.0 for fill"):
        experiment.predict(run, df)
    assert found(experiment.predict(run, df, fill={"age": 30.0})) == [320.0, 430.0]
    in_training(read(tmp_path, "e", TABLE.slice(0, 1), feature_cols="visits", label_cols="y"))
    with pytest.raises(ConfigError, match=r"read \['age', 'visits'\] and 'visits'"):
        experiment.predict(run, df, fill={"age": 30.0})
