"""Predictions for arrays of different lengths, and by models with a fixed number of rows."""

from collections import Counter
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


# ---- calls of a limited number of tokens


@pytest.mark.parametrize(
    ("lengths", "max_rows", "max_tokens", "expected"),
    [
        ([], 4, 10, []),
        ([1, 1, 1], 2, None, [2, 1]),
        ([1, 2, 3, 4], 9, 6, [2, 1, 1]),
        ([1, 2, 3, 3], 9, 9, [3, 1]),
        ([5, 5, 50, 50], 9, 10, [2, 1, 1]),
        ([0, 0, 0, 0], 9, 3, [3, 1]),
        ([2, 2, 2, 2], 3, 6, [3, 1]),
    ],
)
def test_a_call_has_a_limited_number_of_tokens(
    lengths: list[int], max_rows: int, max_tokens: int | None, expected: list[int]
) -> None:
    rows = Features((np.zeros(len(lengths)),), np.array(lengths, int))
    slices = list(rows.slices(max_rows, max_tokens))
    assert [s.stop - s.start for s in slices] == expected
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(len(lengths)))


@pytest.mark.slow
@pytest.mark.parametrize("errors", ["raise", "null"])
@pytest.mark.parametrize("model", ["function", "keras"])
@pytest.mark.parametrize("lengths", ["padded", "column"])
def test_rows_of_similar_lengths_share_calls_within_the_limit(
    spark: SparkSession, tasks: list[Any], lengths: str, model: str, errors: str
) -> None:
    """The output tells the shape of the call in which a row was computed."""

    def shape(x: Any) -> Any:
        return np.full(len(x), x.size, "float32")

    options: dict[str, Any] = {"length_col": "n"} if lengths == "column" else {}
    if model == "keras":
        import keras

        x = keras.layers.Input((None,))
        ones = keras.ops.ones_like(x)
        called: Any = keras.Model(x, keras.ops.sum(ones) * keras.ops.ones_like(ones[:, 0]))
    else:
        called, options = shape, {"outputs": "float", "pad": {"x": 0}} | options
    df = spark.createDataFrame([(0, [1.0], 1)], "id long, x array<float>, n int")
    experiment.predict(called, df, feature_cols="x", max_tokens=6, errors=errors, **options)
    sizes = [5, 1, 9, 2, 2, 1]
    rows = [[1.0] * size for size in sizes]
    batch = batch_of(rows, pa.list_(pa.float32()))
    given = [1 if lengths == "column" else size for size in sizes]
    batch = batch.append_column("n", pa.array(given, pa.int32()))
    (found,) = tasks[0]([batch])
    assert found["id"].to_pylist() == list(range(6))
    # By the column, all six have a length of 1, and are in one call, padded to 9.
    expected = [54] * 6 if lengths == "column" else [5, 6, 9, 6, 2, 6]
    assert found["prediction"].to_pylist() == expected


@pytest.mark.slow
def test_texts_are_computed_by_the_lengths_of_a_column(
    spark: SparkSession, tasks: list[Any]
) -> None:
    """The output tells the texts of the call."""

    def together(texts: Any) -> Any:
        if "bad" in texts:
            raise ValueError("bad")
        return ["+".join(texts)] * len(texts)

    df = spark.createDataFrame([("a", 1)], "x string, n long")
    options: Any = {"feature_cols": "x", "outputs": "string", "length_col": "n"}
    experiment.predict(together, df, max_tokens=9, errors="null", **options)
    experiment.predict(together, df, batch_size=2, **options)
    texts = ["a long text", "c", "bad", None, "b", "dd", "eeee"]
    counts = [11, 1, 3, 4, None, 2, 4]
    batch = pa.record_batch({"x": texts, "n": pa.array(counts, pa.int64())})
    (found,) = tasks[0]([batch])
    assert found["x"].to_pylist() == texts
    predicted = found["prediction"].to_pylist()
    assert [row is None for row in predicted] == [False, False, True, True, True, False, False]
    whole = pa.record_batch({"x": ["ccc", "a", "bb", "dddd"], "n": [3, 1, 2, 4]})
    expected = ["ccc+dddd", "a+bb", "a+bb", "ccc+dddd"]
    assert next(tasks[1]([whole]))["prediction"].to_pylist() == expected
    unknown = pa.record_batch({"x": ["a", "b"], "n": pa.array([1, None], pa.int64())})
    with pytest.raises(ValueError, match="the column of length_col has 1 nulls among 2 rows"):
        list(tasks[1]([unknown]))


@pytest.mark.slow
@pytest.mark.parametrize("bad", [{0}, {499}, {3, 4, 250, 999}, set(range(1000))])
def test_only_the_rows_of_a_failed_call_are_computed_again(
    spark: SparkSession, tasks: list[Any], tmp_path: Path, bad: set[int]
) -> None:
    folder = str(tmp_path)

    def twice(x: Any) -> Any:
        with Path(folder, "computed").open("a") as file:
            file.writelines(f"{value}\n" for value in x)
        if bad & set(x.tolist()):
            raise ValueError("a bad row")
        return 2 * x

    df = spark.createDataFrame([(1,)], "x long")
    experiment.predict(twice, df, feature_cols="x", outputs="long", batch_size=10, errors="null")
    (found,) = tasks[0]([pa.record_batch({"x": list(range(1000))})])
    expected = [None if x in bad else 2 * x for x in range(1000)]
    assert found["prediction"].to_pylist() == expected
    computed = Counter(map(int, (tmp_path / "computed").read_text().split()))
    failed = {x // 10 for x in bad}
    assert set(computed) == set(range(1000))
    assert {x // 10 for x, count in computed.items() if count > 1} == failed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 8}, "max_tokens is 8, but no feature column has arrays that are padded"),
        ({"length_col": "m"}, "length_col is 'm', which is no column of df"),
        ({"length_col": "x"}, "length_col is 'x', a column of string; expected whole numbers"),
        ({"length_col": "y"}, "length_col is 'y', a column of double; expected whole numbers"),
        ({"length_col": 1}, "length_col is 1, which is no column"),
    ],
)
def test_lengths_that_cannot_be_known_are_refused(
    spark: SparkSession, options: dict[str, Any], message: str
) -> None:
    df = spark.createDataFrame([("a", 1, 0.5)], "x string, n int, y double")
    with pytest.raises(ConfigError, match=message):
        experiment.predict(len, df, feature_cols="x", outputs="int", **options)
