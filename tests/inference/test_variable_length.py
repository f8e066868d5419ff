"""Predictions for arrays of different lengths, and by models with a fixed number of rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.data.schema import Column
from sparkdl.errors import ConfigError
from sparkdl.inference.features import Features, VariableColumn
from sparkdl.inference.ragged_rows import RaggedRows, concatenate, from_arrow
from sparkdl.inference.tensor_spec import TensorSpec, to_arrow

WORDS = [[3, 1, 2], [1], [], [4, 4, 4, 4, 1], [2, 2], [5, 1, 1]]


def batch_of(rows: Any, kind: pa.DataType) -> pa.RecordBatch:
    """Return a batch whose column begins in the middle of Arrow's buffers."""
    column = pa.array([rows[0], *rows], kind).slice(1)
    return pa.record_batch({"id": pa.array(range(len(rows))), "x": column})


# ---- rows


def test_arrays_are_padded_at_every_level() -> None:
    nested = pa.array([[[1, 2], [3]], [], [[4, 5, 6]]], pa.list_(pa.list_(pa.int64())))
    column = Column("x", np.dtype("int64"), 2)
    rows = from_arrow(nested, column, (None, None), 2)
    assert rows.padded(9).tolist() == [
        [[1, 2, 9], [3, 9, 9]],
        [[9, 9, 9], [9, 9, 9]],
        [[4, 5, 6], [9, 9, 9]],
    ]
    with pytest.raises(ValueError, match="another length than the model's input, which expects 2"):
        from_arrow(nested, column, (None, 2), 2)
    flat = pa.array([[1, 2, 3, 4], [5, 6]])
    pairs = from_arrow(flat, Column("x", np.dtype("int64"), 1), (None, 2), 1)
    assert pairs.padded(0).tolist() == [[[1, 2], [3, 4]], [[5, 6], [0, 0]]]
    empty = pa.array([[], []], pa.list_(pa.int64()))
    padded = from_arrow(empty, Column("x", np.dtype("int64"), 1), (None,), 1).padded(7)
    assert padded.tolist() == [[7], [7]]
    # An axis of a fixed length has it also where no row has anything.
    empty = pa.array([[], []], pa.list_(pa.list_(pa.int64())))
    assert from_arrow(empty, column, (None, 3), 2).padded(7, (None, 3)).tolist() == [[[7] * 3]] * 2


def test_parts_of_different_widths_become_one_column() -> None:
    cut = RaggedRows.cut(np.array([[1, 2], [3, 0]]), np.array([2, 1]))
    whole = np.array([[4, 5, 6]])
    joined = to_arrow(concatenate([cut, whole]), TensorSpec("y", (None,), "int64"))
    assert joined.to_pylist() == [[1, 2], [3], [4, 5, 6]]
    joined.validate(full=True)
    inner = concatenate([np.array([[[1, 2]]]), np.array([[[3], [4]]])])
    joined = to_arrow(inner, TensorSpec("y", (None, None), "int64"))
    assert joined.to_pylist() == [[[1, 2]], [[3], [4]]]


def nested(rows: Any, shape: tuple[int | None, ...]) -> Features:
    values = pa.array(rows, pa.list_(pa.list_(pa.int64())))
    column = Column("x", np.dtype("int64"), 2)
    return Features((VariableColumn(values, column, TensorSpec("x", shape, "int64"), 0),))


def test_padding_of_inner_arrays_is_no_result() -> None:
    every = slice(0, 3)
    features = nested([[[1, 2]], [[3]], [[4, 5, 6]]], (None, None))
    (x,) = features[every]
    with pytest.raises(
        RuntimeError, match=r"\[1, 3\] for rows of 'x', in .* Reduce the inner axis"
    ):
        features.without_padding(x + 1, TensorSpec("y", (None, None), "int64"), every)
    (one,) = features[slice(1, 2)]
    same = features.without_padding(one, TensorSpec("y", (None, None), "int64"), slice(1, 2))
    assert same.tolist() == [[[3]]]
    # The inner axis may be the only one that is open.
    features = nested([[[1, 2]], [[3]], [[4, 5, 6]]], (1, None))
    with pytest.raises(RuntimeError, match="Reduce the inner axis"):
        features.without_padding(x[:, 0], TensorSpec("y", (None,), "int64"), every)
    # A model that reduces the inner axis with a mask is cut as before.
    features = nested([[[1, 2], [3]], [[4]]], (None, None))
    (x,) = features[slice(0, 2)]
    cut = features.without_padding(x.sum(2), TensorSpec("y", (None,), "int64"), slice(0, 2))
    assert cut.values.tolist() == [3, 3, 4]


# ---- models


def masked_sum(units: int = 1) -> Any:
    """Return a model of token ids, whose outputs show padding that was not masked or cut."""
    import keras

    tokens = keras.layers.Input((None,), dtype="int32", name="tokens")
    embedded = keras.layers.Embedding(9, units, mask_zero=True)(tokens)
    total = keras.layers.GlobalAveragePooling1D(name="mean")(embedded)
    twice = keras.layers.Rescaling(2.0, name="twice")(tokens)
    each = keras.layers.Rescaling(3.0, name="each")(embedded)
    return keras.Model(tokens, {"mean": total, "twice": twice, "each": each})


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, 100])
def test_sequences_are_padded_and_outputs_cut(
    spark: SparkSession, tasks: list[Any], batch_size: int
) -> None:
    model = masked_sum()
    df = spark.createDataFrame([(0, [1])], "id long, x array<int>")
    experiment.predict(model, df, feature_cols="x", batch_size=batch_size)
    (found,) = tasks[0]([batch_of(WORDS, pa.list_(pa.int32()))])
    assert found["id"].to_pylist() == list(range(len(WORDS)))
    columns = [f"prediction_{name}" for name in ("mean", "twice", "each")]
    for words, mean, twice, each in zip(
        WORDS, *(found[name].to_pylist() for name in columns), strict=True
    ):
        assert twice == [2.0 * word for word in words]
        if words:
            alone = {name: y.numpy()[0] for name, y in model(np.array([words], "int32")).items()}
            assert mean == pytest.approx(alone["mean"][0], abs=1e-6)
            assert np.allclose(each, alone["each"])
        else:
            assert each == []


@pytest.mark.slow
def test_rows_of_similar_lengths_are_computed_together(
    spark: SparkSession, tasks: list[Any]
) -> None:
    """The output tells the width to which a row was padded."""
    import keras

    x = keras.layers.Input((None, 1))
    width = keras.ops.sum(keras.ops.ones_like(x[:, :, 0]), 1)
    df = spark.createDataFrame([(0, [[1.0]])], "id long, x array<array<float>>")
    experiment.predict(keras.Model(x, width), df, feature_cols="x", batch_size=2)
    rows = [[[1.0]] * length for length in (5, 1, 3, 1, 9, 3)]
    (found,) = tasks[0]([batch_of(rows, pa.list_(pa.list_(pa.float32())))])
    assert found["prediction"].to_pylist() == [9, 1, 3, 1, 9, 3]


@pytest.mark.slow
def test_a_row_of_the_wrong_inner_length_may_become_null(
    spark: SparkSession, tasks: list[Any]
) -> None:
    import keras

    layers = [keras.layers.Input((None, 2)), keras.layers.Masking(-1.0), keras.layers.LSTM(1)]
    model = keras.Sequential(layers)
    df = spark.createDataFrame([(0, [[1.0]])], "id long, x array<array<float>>")
    options: Any = {"feature_cols": "x", "pad": {"x": -1}}
    experiment.predict(model, df, errors="null", **options)
    experiment.predict(model, df, **options)
    rows = [[[0.0, 1.0], [0.5, 0.5]], [[1.0]], None, [[0.25, 0.5]]]
    batch = batch_of(rows, pa.list_(pa.list_(pa.float32())))
    (found,) = tasks[0]([batch])
    scores = found["prediction"].to_pylist()
    assert [score is None for score in scores] == [False, True, True, False]
    for row in (0, 3):
        alone = model.predict(np.array([rows[row]]), verbose=0)[0, 0]
        assert scores[row] == pytest.approx(alone, abs=1e-6)
    with pytest.raises(ValueError, match="column 'x' has 1 nulls among 4 arrays"):
        list(tasks[1]([batch]))
    with pytest.raises(ValueError, match="column 'x' has an array of another length"):
        list(tasks[1]([batch.slice(0, 2)]))


@pytest.mark.slow
def test_an_output_of_another_length_than_its_row_is_refused(
    spark: SparkSession, tasks: list[Any]
) -> None:
    import keras

    layers = [keras.layers.Input((None, 1)), keras.layers.MaxPooling1D(2), keras.layers.Flatten()]
    df = spark.createDataFrame([(0, [1.0])], "id long, x array<float>")
    for size in (1, 10):
        experiment.predict(keras.Sequential(layers), df, feature_cols="x", batch_size=size)
    batch = batch_of([[1.0, 3.0, 2.0, 4.0], [5.0, 1.0]], pa.list_(pa.float32()))
    (found,) = tasks[0]([batch])
    assert found["prediction"].to_pylist() == [[3.0, 4.0], [5.0]]
    with pytest.raises(RuntimeError, match=r"has the shape \[2\] for rows .* padded to 4 values"):
        list(tasks[1]([batch]))


class Ragged:
    """Models that take a `tf.RaggedTensor`, as users write them."""

    @staticmethod
    def keras3(path: Path) -> Any:
        import keras

        tokens = keras.layers.Input((None,), dtype="int32", ragged=True)
        embedded = keras.layers.Embedding(9, 1, embeddings_initializer="ones")(tokens)
        return keras.Model(tokens, {"total": keras.ops.sum(embedded, 1), "each": embedded})

    @staticmethod
    def tf_keras(path: Path) -> Any:
        import tf_keras

        tokens = tf_keras.layers.Input((None,), dtype="int32", ragged=True)
        embedded = tf_keras.layers.Embedding(9, 1, embeddings_initializer="ones")(tokens)
        total = tf_keras.layers.Lambda(_total)(embedded)
        return tf_keras.Model(tokens, {"total": total, "each": embedded})

    @staticmethod
    def saved_model(path: Path) -> Any:
        import tensorflow as tf

        class Module(tf.Module):
            @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
            def score(self, tokens: Any) -> Any:
                each = tf.ones_like(tokens, tf.float32)[:, :, None]
                return {"total": tf.reduce_sum(each, 1), "each": each}

        module = Module()
        tf.saved_model.save(module, str(path), signatures={"serving_default": module.score})
        return path


def _total(rows: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(rows, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["keras3", "tf_keras", "saved_model"])
def test_models_with_ragged_inputs_get_arrays_as_they_are(
    spark: SparkSession, tasks: list[Any], tmp_path: Path, kind: str
) -> None:
    model = getattr(Ragged, kind)(tmp_path / "model")
    df = spark.createDataFrame([(0, [1])], "id long, x array<int>")
    experiment.predict(model, df, feature_cols="x", batch_size=4)
    (found,) = tasks[0]([batch_of(WORDS, pa.list_(pa.int32()))])
    assert found["prediction_total"].to_pylist() == [float(len(words)) for words in WORDS]
    assert found["prediction_each"].to_pylist() == [[[1.0]] * len(words) for words in WORDS]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["keras", "saved model"])
def test_a_fixed_number_of_rows_is_filled_up_and_cut(
    spark: SparkSession, tasks: list[Any], tmp_path: Path, kind: str
) -> None:
    import keras
    import tensorflow as tf

    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([4, 2], tf.float32, name="x")])
        def total(self, x: Any) -> Any:
            return {"y": tf.reduce_sum(x, 1)}

    if kind == "keras":
        layer = keras.layers.Dense(1, kernel_initializer="ones")
        model: Any = keras.Sequential([keras.layers.Input(batch_shape=(4, 2)), layer])
    else:
        module, model = Module(), tmp_path / "model"
        tf.saved_model.save(module, str(model), signatures={"serving_default": module.total})
    df = spark.createDataFrame([(0, [1.0])], "id long, x array<float>")
    experiment.predict(model, df, feature_cols="x")
    rows = [[float(i), 0.5] for i in range(10)]
    (found,) = tasks[0]([batch_of(rows, pa.list_(pa.float32()))])
    assert found["prediction"].to_pylist() == [i + 0.5 for i in range(10)]


@pytest.mark.slow
def test_predict_pads_rows_of_a_dataframe(spark: SparkSession) -> None:
    rows = [(i, words) for i, words in enumerate(WORDS)]
    df = spark.createDataFrame(rows, "id int, x array<int>").repartition(2)
    scored = experiment.predict(
        masked_sum(), df, feature_cols="x", prediction_col={"twice": "y"}, batch_size=2
    )
    found = {row.id: row.y for row in scored.collect()}
    assert found == {i: [2.0 * word for word in words] for i, words in rows}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"feature_cols": "x", "pad": {"x": 0.5}},
            "pad has 0.5 for column 'x'; .* of int32",
        ),
        ({"feature_cols": "x", "pad": {"x": "a"}}, "pad has 'a' for column 'x'"),
        ({"feature_cols": "x", "pad": {"y": 0}}, "pad names 'y'; expected columns of arrays"),
        ({"feature_cols": ["id"], "pad": {"id": 0}}, "pad names 'id'"),
    ],
)
def test_predict_refuses_paddings_that_do_not_fit(
    spark: SparkSession, given: Any, message: str
) -> None:
    df = spark.createDataFrame([(0, [1])], "id int, x array<int>")
    with pytest.raises(ConfigError, match=message):
        experiment.predict(masked_sum(), df, **given)
