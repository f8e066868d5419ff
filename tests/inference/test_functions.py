"""Predictions by functions and classes of the user."""

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from sparkdl import experiment
from sparkdl.cluster.gpus.locks import held_devices, locked_devices
from sparkdl.errors import ConfigError
from sparkdl.inference.returned_arrays import arrays_of
from sparkdl.inference.tensor_spec import TensorSpec, from_spark, to_arrow, type_name
from tests.helpers.models import numbers


def one(name: str, kind: str) -> tuple[TensorSpec, ...]:
    return (from_spark(name, T.DataType.fromDDL(kind)),)


def objects(*rows: Any) -> Any:
    """Return an array of arrays, as pandas has them."""
    array = np.empty(len(rows), object)
    array[:] = [np.array(row) for row in rows]
    return array


# ---- what a function may return


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "returned", "expected"),
    [
        ("float", np.array([1.5, 2.5]), [1.5, 2.5]),
        ("float", [[1.0], [2.0]], [1.0, 2.0]),
        ("bigint", np.array([1, 2], "int8"), [1, 2]),
        ("array<float>", np.ones((2, 3)), [[1.0] * 3] * 2),
        ("array<int>", [[1, 2], []], [[1, 2], []]),
        ("array<int>", [np.array([], int), np.array([3])], [[], [3]]),
        ("array<int>", objects([1, 2], [3]), [[1, 2], [3]]),
        ("array<int>", objects([1, 2], [3, 4]), [[1, 2], [3, 4]]),
        ("array<string>", objects(["a"], ["b"]), [["a"], ["b"]]),
        ("array<array<double>>", np.ones((2, 1, 1)), [[[1.0]]] * 2),
        ("string", np.array(["a", "ü"]), ["a", "ü"]),
        ("string", ["a", None], ["a", None]),
        ("array<string>", [["a"], ["b", "c"]], [["a"], ["b", "c"]]),
        ("binary", [b"\x00", b"\xff"], [b"\x00", b"\xff"]),
        ("boolean", np.array([True, False]), [True, False]),
        ("float", (np.array([1.0, 2.0]),), [1.0, 2.0]),
        ("float", {"y": [1.0, 2.0], "more": [0, 0]}, [1.0, 2.0]),
    ],
)
@pytest.mark.usefixtures("spark")
def test_returned_arrays_become_columns(kind: str, returned: Any, expected: Any) -> None:
    outputs = one("y", kind)
    assert type_name(outputs[0]) == kind
    (array,) = arrays_of(returned, outputs)
    column = to_arrow(array, outputs[0])
    column.validate(full=True)
    assert column.to_pylist() == expected


@pytest.mark.parametrize(
    ("dtype", "shape", "returned", "message"),
    [
        ("int32", (), np.array([1.5]), "an array of float64; outputs= declares int32"),
        ("int8", (), np.array([300]), "contains 300; outputs= declares int8"),
        ("int64", (), np.array([2**63], np.uint64), "contains 9223372036854775808; .* int64"),
        ("float32", (), np.array([0.1, np.inf, -1e300]), r"contains -1e\+300; .* declares float32"),
        ("float32", (None,), [[0.1], [0.5, 1e39]], r"contains 1e\+39; outputs= declares float32"),
        ("float64", (), np.array([2**53, 2**53 + 1]), "contains 9007199254740993; .* float64"),
        ("bytes", (), np.array([b"a\0\0", b"b"]), r"an array of \|S3, .* zeros at the end"),
        ("float32", (), np.array(["a"]), "declares float32, which cannot represent it"),
        ("string", (), np.array([1]), "an array of int64; outputs= declares string"),
        ("float32", (), np.ones((2, 3)), "has 2 axes, the rows included; .* declares .* 1"),
        ("float32", (None,), np.ones(2), "has 1 axes"),
        ("float32", (), {"z": [1.0]}, "has returned 'z', without 'y'"),
        ("float32", (), ([1.0], [2.0]), r"has returned 2 array\(s\); outputs= declares 1: y"),
    ],
)
def test_other_returned_values_are_refused(
    dtype: str, shape: Any, returned: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        arrays_of(returned, (TensorSpec("y", shape, dtype),))


def test_only_declared_outputs_are_converted() -> None:
    outputs = (TensorSpec("y", (), "int64"),)
    (found,) = arrays_of(
        {"y": "12", "cache": None}, outputs, lambda text: np.array(list(text), int)
    )
    assert found.tolist() == [1, 2]


# ---- calls


@pytest.mark.slow
def test_what_a_function_returns_for_padded_arrays_is_not_cut(
    spark: SparkSession, tasks: list[Any]
) -> None:
    """An embedding may be as long as the padded row."""

    def embedded(tokens: Any) -> Any:
        return np.stack([tokens.max(1)] * 3, axis=1)

    def doubled(tokens: Any) -> Any:
        return [2 * row[row >= 0] for row in tokens]

    df = spark.createDataFrame([([1],)], "x array<int>")
    for function in (embedded, doubled):
        experiment.predict(function, df, feature_cols="x", outputs="array<int>", pad={"x": -1})
    batch = pa.record_batch({"x": pa.array([[1, 2, 3], [4], []], pa.list_(pa.int32()))})
    found = [next(task([batch]))["prediction"].to_pylist() for task in tasks]
    assert found == [[[3] * 3, [4] * 3, [-1] * 3], [[2, 4, 6], [8], []]]


@pytest.mark.slow
def test_a_function_is_called_by_position_or_by_name(spark: SparkSession, tasks: list[Any]) -> None:
    schema = "id long, x double, s string, v array<float>"
    df = spark.createDataFrame([(1, 0.5, "a", [1.0])], schema)
    seen = []

    def by_position(x: Any, both: Any, v: Any) -> Any:
        seen.append((x.dtype, both.dtype, both.shape, v.tolist()))
        return x + both.sum(1)

    def by_name(*, words: Any, x: Any) -> Any:
        return {"long": np.char.str_len(words.astype(str)), "text": words + "!", "x": x}

    columns: Any = ("x", ["id", "x"], "v")
    experiment.predict(by_position, df, feature_cols=columns, outputs="double", pad={"v": -1})
    experiment.predict(
        by_name,
        df,
        feature_cols={"words": "s", "x": "x"},
        outputs="text string, long int, x double",
        batch_size=2,
    )
    batch = pa.record_batch(
        {
            "id": [1, 2, 3],
            "x": [0.1, 0.2, 0.3],
            "s": ["a", "üü", ""],
            "v": pa.array([[1], [1, 2], []], pa.list_(pa.float32())),
        }
    )
    (found,) = tasks[0]([batch])
    assert np.allclose(found["prediction"], [1.2, 2.4, 3.6])
    (found,) = tasks[1]([batch])
    assert found["prediction_text"].to_pylist() == ["a!", "üü!", "!"]
    assert found["prediction_long"].to_pylist() == [1, 2, 0]
    assert found["prediction_x"].to_pylist() == [0.1, 0.2, 0.3]


@pytest.mark.slow
def test_value_errors_of_a_function_may_become_null(spark: SparkSession, tasks: list[Any]) -> None:
    def parsed(texts: Any) -> Any:
        return np.array([int(text) for text in texts])

    def defective(texts: Any) -> Any:
        raise KeyError("weights")

    df = spark.createDataFrame([("1",)], "s string")
    for function in (parsed, defective):
        experiment.predict(function, df, feature_cols="s", outputs="bigint", errors="null")
    batch = pa.record_batch({"s": ["7", "x", None, "9"]})
    (found,) = tasks[0]([batch])
    assert found["prediction"].to_pylist() == [7, None, None, 9]
    with pytest.raises(KeyError, match="weights"):
        list(tasks[1]([batch]))


@pytest.mark.slow
def test_a_worker_makes_one_instance_of_a_class(spark: SparkSession, tmp_path: Path) -> None:
    """Tasks of one worker share the instance, which has what is slow to load."""
    folder = str(tmp_path)

    class Scaled:
        def __init__(self) -> None:
            self.scale = 2.0
            Path(folder, f"{os.getpid()}-{os.urandom(8).hex()}").touch()

        def __call__(self, x: Any) -> Any:
            return self.scale * x

    df = numbers(spark, rows=100, partitions=6)
    scored = experiment.predict(Scaled, df, feature_cols="x1", outputs="float", batch_size=3)
    for _ in range(2):
        assert all(row.prediction == 2 * row.x1 for row in scored.collect())
    pids = [path.name.split("-")[0] for path in tmp_path.iterdir()]
    assert 1 <= len(pids) == len(set(pids)) < 12


@pytest.mark.slow
def test_the_modules_beside_a_program_travel_with_its_function(
    spark: SparkSession, tasks: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors do not have them, and a worker may have another version of them."""
    module = tmp_path / "own_features.py"
    df = numbers(spark).select("id", "x0")
    for factor in (2, 5):
        module.write_text(
            "CALLS = []\n"
            "def scaled(x):\n"
            "    import own_helper\n"
            "    CALLS.append(own_helper.FACTOR)\n"
            "    return own_helper.FACTOR * x + len(CALLS)\n"
        )
        (tmp_path / "own_helper.py").write_text(f"FACTOR = {factor}\n")
        with monkeypatch.context() as beside:
            beside.syspath_prepend(tmp_path)
            importlib.invalidate_caches()
            own = importlib.import_module("own_features")
            experiment.predict(own.scaled, df, feature_cols="x0", outputs="double")
        for name in ("own_features", "own_helper"):
            sys.modules.pop(name, None)
            (tmp_path / f"{name}.py").unlink()
    batch = pa.record_batch({"id": [0], "x0": pa.array([1.0], pa.float32())})
    results = [next(tasks[number]([batch]))["prediction"][0].as_py() for number in (0, 1, 0)]
    assert results == [3.0, 6.0, 4.0]
    assert "own_features" not in sys.modules


@pytest.mark.slow
def test_workers_hold_the_gpus_that_spark_does_not_assign(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A GPU that a trial holds is left out; without one, two workers use two GPUs."""
    trial, free, other = (f"GPU-{os.urandom(8).hex()}" for _ in range(3))

    def seen(visible: list[str], folder: Path) -> set[str]:
        def gpu_of(ids: Any) -> Any:
            (folder / str(os.getpid())).touch()
            while len(list(folder.iterdir())) < 2:  # Until both slots have a worker.
                time.sleep(0.01)
            return np.full(len(ids), os.environ["CUDA_VISIBLE_DEVICES"])

        folder.mkdir()
        environment = spark.sparkContext.environment
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
        try:
            scored = experiment.predict(gpu_of, df, feature_cols="id", outputs="string")
            return {row.prediction for row in scored.collect()}
        finally:
            del environment["CUDA_VISIBLE_DEVICES"]

    spark.conf.set("spark.sparkdl.detectGpus", "true")
    df = spark.range(2, numPartitions=2)
    with locked_devices([trial], 1, "run one, process 1"):
        assert seen([trial, free], tmp_path / "beside") == {free}
        assert held_devices([free]) != {}
    assert seen([trial, other], tmp_path / "alone") == {trial, other}


# ---- errors


class NeedsArgument:
    def __init__(self, path: str) -> None:
        self.path = path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (np.exp, {}, "outputs is missing: a function or a model of PyTorch"),
        (np.exp, {"outputs": "floaty"}, "outputs is 'floaty', which is no type of Spark"),
        (np.exp, {"outputs": ["float"]}, r"outputs is \['float'\]; expected a type of Spark"),
        (np.exp, {"outputs": "map<string,int>"}, "is map<string,int>; expected one of boolean"),
        (lambda a, b: a, {"outputs": "float"}, r"arguments, 1 by position. It takes \(a, b\)"),
        (
            lambda a: a,
            {"outputs": "float", "feature_cols": {"b": "x0"}},
            r"arguments, by name: b. It takes \(a\)",
        ),
        (
            NeedsArgument,
            {"outputs": "float"},
            "class NeedsArgument is called without arguments",
        ),
        (
            lambda a: a,
            {"outputs": "float", "feature_cols": "x0", "prediction_col": {"y": "z"}},
            "names the output 'y'; the model has the outputs 'output'",
        ),
    ],
)
def test_predict_refuses_functions_that_do_not_fit(
    spark: SparkSession, model: Any, given: dict[str, Any], message: str
) -> None:
    options: Any = {"feature_cols": "x0", **given}
    with pytest.raises(ConfigError, match=message):
        experiment.predict(model, numbers(spark), **options)


@pytest.mark.slow
def test_outputs_of_a_model_that_tells_them_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="the model tells its own outputs"):
        experiment.predict("m.keras", numbers(spark), feature_cols="x0", outputs="float")
