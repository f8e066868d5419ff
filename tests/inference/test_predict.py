"""`experiment.predict` as users call it, with real models and files."""

import datetime
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sparkdl import experiment
from sparkdl.errors import ConfigError, SparkDLError
from sparkdl.inference.resolve import resolve_model
from tests.helpers.models import dense, numbers, save, values
from tests.helpers.runs import quiet

pytestmark = pytest.mark.slow


def two_by_two() -> Any:
    """Return a model with two inputs and two outputs, which have names."""
    import keras

    a, b = keras.layers.Input((2,), name="a"), keras.layers.Input((3,), name="b")
    total = keras.layers.Dense(1, name="total")(keras.layers.concatenate([a, b]))
    return keras.Model([a, b], {"total": total, "twice": 2 * b})


def num_jobs(session: SparkSession) -> int:
    return len(session.sparkContext.statusTracker().getJobIdsForGroup(None))


# ---- scoring


def test_predict_keeps_types_and_values_of_columns(spark: SparkSession) -> None:
    moment = datetime.datetime(2026, 11, 21, 6, 30, 0, 5)
    vectors = Vectors.dense([1.0, 2.0]), Vectors.sparse(2, [1], [3.0])
    row = (
        *(1, None, Decimal("12.345"), moment, moment, moment.date(), "ü", b"\x00\x01", True),
        *([1, None], {"k": 1.5}, (1, "a"), *vectors, datetime.timedelta(days=1)),
    )
    schema = (
        "i tinyint not null, n bigint, d decimal(20,3), t timestamp, u timestamp_ntz, a date, "
        "s string, b binary, f boolean, l array<int>, m map<string,double>, "
        "r struct<p:int,q:string>"
    )
    plain = spark.createDataFrame([row[:12]], schema)
    rest = spark.createDataFrame([(1, *row[12:])], ["i", "v", "w", "e"])
    df = plain.join(rest, "i").withMetadata("s", {"comment": "kept"})
    df = df.withColumn("a column.with a dot", F.col("i"))
    scored = experiment.predict(dense(4), df, feature_cols=["v", "w"])
    assert scored.schema.fields[:-1] == df.schema.fields
    assert scored.schema["s"].metadata == {"comment": "kept"}
    assert scored.schema["prediction"].dataType.simpleString() == "float"
    assert scored.drop("prediction").collect() == df.collect()


def test_predict_accepts_dense_and_sparse_vectors(spark: SparkSession) -> None:
    model = dense(3)
    dense_and_sparse = [(0, Vectors.dense([1, 2, 3])), (1, Vectors.sparse(3, [1], [5.0]))]
    df = spark.createDataFrame(dense_and_sparse, ["id", "v"])
    scored = experiment.predict(model, df, feature_cols="v")
    expected = model.predict(np.array([[1, 2, 3], [0, 5, 0]], "float32"), verbose=0)
    assert scored.columns == ["id", "v", "prediction"]
    assert np.allclose(values(scored, "prediction"), expected)


def test_predict_accepts_empty_partitions_and_no_rows(spark: SparkSession) -> None:
    df = numbers(spark, 3, 8)
    scored = experiment.predict(dense(2), df, feature_cols=["x0", "x1"])
    assert scored.count() == 3
    none = experiment.predict(dense(2), df.filter("id < 0"), feature_cols=["x0", "x1"])
    assert none.collect() == []
    assert none.schema == scored.schema


def test_predict_reshapes_rows_to_the_shape_of_the_input(spark: SparkSession) -> None:
    import keras

    layers = [keras.layers.Input((2, 2, 1)), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    df = numbers(spark)
    for features in (["x0", "x1", "x2", "x3"], "all"):
        frame = df.withColumn("all", F.array("x0", "x1", "x2", "x3"))
        scored = experiment.predict(model, frame, feature_cols=features)
        x = values(df, "x0", "x1", "x2", "x3").reshape(-1, 2, 2, 1)
        assert np.allclose(values(scored, "prediction"), model.predict(x, verbose=0), atol=1e-5)


def test_predict_decodes_binary_columns(spark: SparkSession) -> None:
    import keras

    layers = [keras.layers.Input((2, 2, 1)), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    images = np.arange(12, dtype="uint8").reshape(3, 4)
    rows = [(i, bytearray(image.tobytes())) for i, image in enumerate(images)]
    df = spark.createDataFrame(rows, "id int, image binary").coalesce(1)
    scored = experiment.predict(model, df, feature_cols="image", decode={"image": "uint8"})
    expected = model.predict(images.reshape(-1, 2, 2, 1), verbose=0)
    assert np.allclose(values(scored, "prediction"), expected, atol=1e-4)


def test_predict_maps_several_inputs_and_outputs(spark: SparkSession) -> None:
    model, df = two_by_two(), numbers(spark)
    a, b = ["x0", "x1"], ["x2", "x3", "x4"]
    total = model.predict([values(df, *a), values(df, *b)], verbose=0)["total"]
    by_position = experiment.predict(model, df, feature_cols=(a, b), prediction_col="y")
    assert by_position.columns[-2:] == ["y_total", "y_twice"]
    assert np.allclose(values(by_position, "y_total"), total, atol=1e-5)
    by_name = experiment.predict(
        model, df, feature_cols={"b": b, "a": a}, prediction_col={"twice": "t"}
    )
    assert by_name.columns == [*df.columns, "t"]
    twice = [row.t for row in by_name.orderBy("id").collect()]
    assert np.allclose(twice, 2 * values(df, *b), atol=1e-5)
    listed = experiment.predict(model, df, feature_cols=(a, b), prediction_col=["p", "q"])
    assert listed.dtypes[-2:] == [("p", "float"), ("q", "array<float>")]


def test_predict_numbers_two_outputs_of_one_layer(spark: SparkSession) -> None:
    """In Keras both outputs have the name of the layer."""
    import keras

    ends = [keras.layers.Input((1,)), keras.layers.Input((1,))]
    total = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Model(ends, [total(end) for end in ends])
    df = spark.createDataFrame([(1.0, 2.0)], "a float, b float")
    scored = experiment.predict(model, df, feature_cols=("a", "b"), prediction_col=["p", "q"])
    assert scored.first() == (1.0, 2.0, 1.0, 2.0)
    both = experiment.predict(model, df, feature_cols=("a", "b"))
    assert both.columns[2:] == ["prediction_output_0", "prediction_output_1"]


def test_predict_accepts_inputs_of_text_and_whole_numbers(spark: SparkSession) -> None:
    import keras

    word = keras.layers.Input((), name="word", dtype="string")
    number = keras.layers.Input((), name="number", dtype="int32")
    place = keras.layers.StringLookup(vocabulary=["a", "ü"])(word)
    found = keras.layers.Embedding(4, 2, embeddings_initializer="ones")(place)
    model = keras.Model({"word": word, "number": number}, {"place": place, "n": number, "e": found})
    df = spark.createDataFrame([("ü", 7), ("other", 8), ("a", 9)], "w string, n bigint")
    scored = experiment.predict(model, df, feature_cols={"word": "w", "number": "n"})
    assert dict(scored.dtypes[2:]) == {
        "prediction_place": "bigint",
        "prediction_n": "int",
        "prediction_e": "array<float>",
    }
    assert [(r.prediction_place, r.prediction_n) for r in scored.collect()] == [
        (2, 7),
        (0, 8),
        (1, 9),
    ]


# ---- locations of the model


def test_predict_calls_a_signature_of_a_saved_model(spark: SparkSession, tmp_path: Path) -> None:
    import tensorflow as tf

    class Scaled(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = tf.Variable(3.0)

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float64, name="x")])
        def scaled(self, x: Any) -> Any:
            label = tf.where(x[:, 0] > 0.5, "high", "low")
            return {"sum": tf.reduce_sum(x, 1) * tf.cast(self.scale, tf.float64), "label": label}

    module = Scaled()
    tf.saved_model.save(module, str(tmp_path / "m"), signatures={"score": module.scaled})
    df, path = numbers(spark), str(tmp_path / "m")
    scored = experiment.predict(path, df, feature_cols=["x0", "x1"], signature="score")
    assert dict(scored.dtypes[-2:]) == {"prediction_sum": "double", "prediction_label": "string"}
    expected = values(df, "x0", "x1").sum(1) * 3
    assert np.allclose(values(scored, "prediction_sum")[:, 0], expected, atol=1e-5)
    assert [r.prediction_label for r in scored.orderBy("id").collect()] == ["low"] * 6 + [
        "high"
    ] * 4
    with pytest.raises(ConfigError, match=r"no signature 'serving_default'; it has 'score'"):
        experiment.predict(path, df, feature_cols=["x0", "x1"])


def test_predict_finds_the_model_in_the_checkpoint_of_a_trial(
    spark: SparkSession, root: str
) -> None:
    def train(whole: bool) -> float:
        import keras

        from sparkdl import context

        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        folder = Path(context.checkpoint_dir, "new")
        folder.mkdir()
        if whole:
            model.save(folder / "model.keras")
        model.save_weights(folder / "m.weights.h5")
        context.report(0.5, step=1, checkpoint=str(folder))
        return 0.5

    run = experiment.launch(train, {"whole": [True, False]}, **quiet(root))
    df = numbers(spark)
    assert experiment.predict(run.trials[0], df, feature_cols=["x0", "x1"]).count() == 10
    with pytest.raises(
        ConfigError, match=r"(?s)trial 1 .* no model.*contains m\.weights\.h5.*weights"
    ):
        experiment.predict(run.trials[1], df, feature_cols=["x0", "x1"])


def test_predict_refuses_a_model_that_changed_after_the_call(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "m.keras"
    dense(2).save(path)
    scored = experiment.predict(path, numbers(spark), feature_cols=["x0", "x1"])
    dense(2, 3).save(path)
    with pytest.raises(Exception, match="has changed since predict was called"):
        scored.collect()


# ---- costs


def test_task_contains_a_model_in_memory_once(spark: SparkSession, tasks: list[Any]) -> None:
    names = [f"x{i}" for i in range(5)]
    experiment.predict(dense(5, 200_000), numbers(spark), feature_cols=names)
    model = tasks[0].model.data
    assert len(model) > 4_000_000
    assert len(cloudpickle.dumps(tasks[0])) < len(model) + 10_000


def test_task_accepts_slices_and_batches_of_any_size(spark: SparkSession, tasks: list[Any]) -> None:
    model = dense(3)
    df = numbers(spark).select("id", F.array("x0", "x1", "x2").alias("x"))
    experiment.predict(model, df, feature_cols="x", batch_size=4)
    x = np.random.default_rng(0).random((20, 3), dtype="float32")
    lists = pa.array(x.tolist(), pa.list_(pa.float32()))
    batch = pa.RecordBatch.from_pydict({"id": range(20), "x": lists})
    # Arrow's slices begin in the middle of their buffers; some have no rows.
    given = [batch.slice(5, 9), batch.slice(2, 0), batch.slice(14, 1), batch.slice(0, 5)]
    found = pa.Table.from_batches(tasks[0](iter(given)))
    ids = [*range(5, 14), 14, *range(5)]
    assert found["id"].to_pylist() == ids
    expected = model.predict(x, verbose=0)[ids, 0]
    assert np.allclose(found["prediction"].to_numpy(), expected, atol=1e-6)


def test_memory_stays_flat_over_partitions(spark: SparkSession, tasks: list[Any]) -> None:
    df = numbers(spark).select("id", F.array("x0").alias("x"))
    experiment.predict(dense(200, 200), df, feature_cols="x")
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(200 * 2000, "float32")), 200)
    batch = pa.RecordBatch.from_pydict({"id": range(2000), "x": x.cast(pa.list_(pa.float32()))})

    def resident_mb(partitions: int) -> float:
        for _ in range(partitions):
            assert sum(found.num_rows for found in tasks[0](iter([batch, batch]))) == 4000
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

    first = resident_mb(50)
    # The outputs of 400 partitions are 1280 MB.
    assert resident_mb(400) < first + 50


# ---- errors


def test_predict_raises_the_error_of_the_model(spark: SparkSession) -> None:
    import keras
    import tensorflow as tf

    @keras.saving.register_keras_serializable("tests")
    class Picky(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_less(x, 0.5, "sensor 7 is broken")]):
                return tf.identity(x)

    model = keras.Sequential([keras.layers.Input((2,)), Picky()])
    scored = experiment.predict(model, numbers(spark), feature_cols=["x0", "x1"])
    with pytest.raises(Exception, match="sensor 7 is broken"):
        scored.collect()


def test_predict_refuses_nulls_without_fill(spark: SparkSession) -> None:
    df = spark.createDataFrame([(0, 1.0), (1, None), (2, None)], "id int, x float").coalesce(1)
    model = dense(1)
    with pytest.raises(Exception, match=r"column 'x' has 2 nulls among 3 values"):
        experiment.predict(model, df, feature_cols="x").collect()
    scored = experiment.predict(model, df, feature_cols="x", fill={"x": 0.5})
    expected = model.predict(np.array([[1.0], [0.5], [0.5]]), verbose=0)
    assert np.allclose(values(scored, "prediction"), expected)
    assert [row.x for row in scored.orderBy("id").collect()] == [1.0, None, None]
    vectors = spark.createDataFrame([(Vectors.dense([1.0]),), (None,)], ["v"])
    with pytest.raises(Exception, match="column 'v' has 1 nulls"):
        experiment.predict(model, vectors, feature_cols="v").collect()


@pytest.mark.parametrize("interval", ["interval '1' month", "make_interval(1, 2, 0, 3)"])
def test_a_column_that_spark_cannot_pass_on_is_named(spark: SparkSession, interval: str) -> None:
    df = spark.sql(f"SELECT 0.5D AS x, {interval} AS `how long`")
    with pytest.raises(ConfigError, match=r"column 'how long' is interval.* Drop it, or cast it"):
        experiment.predict(dense(1), df, feature_cols="x")


def test_a_number_of_a_vector_stays_finite(spark: SparkSession) -> None:
    """Vectors become float32, also in Spark."""
    model, infinity = dense(2), float("inf")
    rows = [(Vectors.dense([0.5, -infinity]),), (Vectors.sparse(2, [1], [-1e300]),)]
    df = spark.createDataFrame(rows, ["v"])
    infinite = spark.createDataFrame(rows[:1], ["v"])
    assert experiment.predict(model, infinite, feature_cols="v").count() == 1
    with pytest.raises(Exception, match=r"column 'v': vectors become float32.* -1\.0E300"):
        experiment.predict(model, df, feature_cols="v").collect()
    scored = experiment.predict(model, df, feature_cols="v", errors="null").collect()
    assert [row.prediction is None for row in scored] == [False, True]


def test_rows_that_the_model_cannot_take_may_become_null(
    spark: SparkSession, tasks: list[Any]
) -> None:
    """Nulls, arrays of another length, and numbers that would be rounded, among many good rows."""
    model = dense(3)
    rows = [[float(i), 0.5, 1.0] for i in range(100)]
    rows[0], rows[41], rows[42], rows[99] = None, [1.0, None, 2.0], [1.0], [1.0, 2.0, 3.0, 4.0]
    df = spark.createDataFrame([(0, [1.0])], "id long, x array<float>")
    experiment.predict(model, df, feature_cols="x", batch_size=7, errors="null")
    batch = pa.record_batch(
        {"id": pa.array(range(100)), "x": pa.array(rows, pa.list_(pa.float32()))}
    )
    found = pa.Table.from_batches(tasks[0]([batch]))
    assert found["id"].to_pylist() == list(range(100))
    bad = {0, 41, 42, 99}
    expected = model.predict(np.array([r for i, r in enumerate(rows) if i not in bad]), verbose=0)
    scores = found["prediction"].to_pylist()
    assert {i for i, score in enumerate(scores) if score is None} == bad
    assert np.allclose([s for s in scores if s is not None], expected[:, 0], atol=1e-5)

    whole = spark.createDataFrame([(1, 0.5), (2**24 + 1, 0.5)], "id long, x float")
    experiment.predict(dense(2, 2), whole, feature_cols=["id", "x"], errors="null")
    batch = pa.record_batch({"id": [1, 2**24 + 1], "x": pa.array([0.5, 0.5], pa.float32())})
    (found,) = tasks[1]([batch])
    assert [score is None for score in found["prediction"].to_pylist()] == [False, True]
    experiment.predict(dense(2, 2), whole, feature_cols=["id", "x"])
    with pytest.raises(
        ValueError, match="column 'id' has 16777217, which float32 cannot represent"
    ):
        list(tasks[2]([batch]))


def test_rows_that_an_operation_of_the_model_refuses_may_become_null(
    spark: SparkSession, tasks: list[Any]
) -> None:
    """An index that an embedding does not have."""
    import keras
    import tensorflow as tf

    layers = [keras.layers.Input((1,), dtype="int32"), keras.layers.Embedding(3, 1)]
    model = keras.Sequential([*layers, keras.layers.Flatten()])
    df = spark.createDataFrame([(0,)], "id int")
    batch = pa.record_batch({"id": pa.array([0, 1, 7, 2], pa.int32())})
    experiment.predict(model, df, feature_cols="id", errors="null")
    (found,) = tasks[0]([batch])
    assert [score is None for score in found["prediction"].to_pylist()] == [
        False,
        False,
        True,
        False,
    ]
    experiment.predict(model, df, feature_cols="id")
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(tasks[1]([batch]))


@pytest.mark.parametrize("chosen", ["nothing", "by the user", "started"])
def test_the_driver_leaves_its_gpus_to_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: str
) -> None:
    import tensorflow as tf

    save(dense(2), tmp_path / "m.keras")
    hidden: list[Any] = []

    def hide(devices: Any, kind: str) -> None:
        if chosen == "started":
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        hidden.append((devices, kind))

    seen = ["gpu 0"] if chosen == "by the user" else ["gpu 0", "gpu 1"]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu 0", "gpu 1"])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: seen)
    monkeypatch.setattr(tf.config, "set_visible_devices", hide)
    resolve_model(str(tmp_path / "m.keras"), "serving_default")
    assert hidden == ([([], "GPU")] if chosen == "nothing" else [])


def wrong(**given: Any) -> dict[str, Any]:
    return {"feature_cols": ["x0", "x1"], **given}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (wrong(feature_cols="x9"), r"no column 'x9'.*Columns are id, x0"),
        (wrong(feature_cols=["x0"]), r"feature_cols \['x0'\] have shape \[1\] per row, .* expects"),
        (wrong(feature_cols=("x0", "x1")), r"is for 2 input\(s\), but the model has 1"),
        (wrong(feature_cols="m"), r"'m' is map<string,int>"),
        (wrong(feature_cols=["s", "s"]), r"expects float32, but feature_cols .* contain text"),
        (wrong(feature_cols={"y": "x0"}), r"names the inputs 'y'; the model has the inputs"),
        (wrong(prediction_col="X0"), r"the column 'X0' already exists"),
        (wrong(prediction_col=["a", "b"]), r"names 2 column\(s\); the model has 1 output"),
        (
            wrong(prediction_col={"a": "b"}),
            r"names the output 'a'; the model has the outputs 'output_0'",
        ),
        (wrong(prediction_col=3), r"prediction_col is 3"),
        (wrong(batch_size=0), r"batch_size is 0"),
        (wrong(errors="ignore"), r"errors is 'ignore'; expected 'raise' or 'null'"),
        (wrong(fill={"x7": 1}), r"fill names 'x7'"),
        (wrong(model="/nowhere/m.keras"), r"/nowhere/m.keras does not exist on host"),
        (wrong(model=5), r"model is an int; expected a path"),
        (wrong(model=__file__), r"expected a .keras or .h5 file, or the folder"),
        (wrong(model=os.path.dirname(__file__)), r"has no saved_model.pb; it contains __init__.py"),
        (wrong(model="m.weights.h5"), r"only weights"),
        (wrong(model="broken.keras"), r"broken.keras: File is not a zip file"),
        (wrong(df=[1]), r"df is a list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_predict_refuses_invalid_arguments_before_any_job(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.weights.h5", "broken.keras"):
        (tmp_path / name).touch()
    columns = [F.lit("t").alias("s"), F.create_map(F.lit("k"), F.lit(1)).alias("m")]
    call = {"model": dense(2), "df": numbers(spark).select("*", *columns), **given}
    before = num_jobs(spark)
    with pytest.raises(ConfigError, match=message) as caught:
        experiment.predict(call.pop("model"), call.pop("df"), **call)
    assert isinstance(caught.value, SparkDLError)
    assert num_jobs(spark) == before


def test_predict_starts_no_job_before_the_rows_are_used(spark: SparkSession) -> None:
    df = numbers(spark)
    before = num_jobs(spark)
    scored = experiment.predict(dense(2), df, feature_cols=["x0", "x1"])
    assert scored.schema["prediction"].dataType.simpleString() == "float"
    assert num_jobs(spark) == before


def test_predict_refuses_models_with_unknown_or_other_inputs(spark: SparkSession) -> None:
    import keras

    df = numbers(spark)
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ConfigError, match="has not been called"):
        experiment.predict(unbuilt, df, feature_cols=["x0", "x1"])
    with pytest.raises(ConfigError, match=r"has 2: a float32\[2\], b float32\[3\].*'a': \.\.\."):
        experiment.predict(two_by_two(), df, feature_cols=["x0", "x1"])
    whole = keras.Sequential([keras.layers.Input((), dtype="int32"), keras.layers.Embedding(4, 2)])
    with pytest.raises(ConfigError, match="expects int32, but feature_cols 'x0' contain float32"):
        experiment.predict(whole, df, feature_cols="x0")
