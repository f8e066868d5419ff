"""Spark ML stages: their params, what a TFModel computes, and what is saved of them."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import DataFrame, Row, SparkSession

from sparkdl.errors import ConfigError, SparkDLError
from sparkdl.tfos import compat, pipeline

pytestmark = pytest.mark.slow

WEIGHTS = (3.14, 1.618)


def train(args: Any, ctx: Any) -> None:
    """The function of an estimator."""


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> str:
    """3.14 * x0 + 1.618 * x1."""
    import keras

    path = str(tmp_path_factory.mktemp("models") / "linear")
    layer = keras.layers.Dense(1, name="dense")
    model = keras.Sequential([keras.Input((2,)), layer])
    layer.set_weights([np.array(WEIGHTS).reshape(2, 1), np.zeros(1)])
    compat.export_saved_model(model, path, is_chief=True)
    return path


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SavedModel with outputs of all kinds."""
    import tensorflow as tf

    path = str(tmp_path_factory.mktemp("models") / "shapes")
    module = tf.Module()

    def compute(x: Any, n: Any) -> dict[str, Any]:
        return {
            "scalar": x[:, 0, 0],
            "matrix": 2 * x,
            "one": tf.cast(x[:, 0, :1], tf.float16),
            "count": n + tf.constant(1, tf.int8),
            "flag": x[:, 0] > 1,
            "raw": tf.where(n > 0, b"\xff\xfe", b""),
        }

    specs = [tf.TensorSpec([None, 2, 2], "float32", "x"), tf.TensorSpec([None], "int8", "n")]
    module.compute = tf.function(compute, input_signature=specs)
    tf.saved_model.save(module, path, {"serving_default": module.compute, "other": module.compute})
    return path


def rows(spark: SparkSession, number: int = 10) -> DataFrame:
    made = [([float(i), float(i + 1)], i) for i in range(number)]
    parts = spark.sparkContext.parallelize(made, 3)
    return spark.createDataFrame(parts, "features array<double>, id int")


def model_of(path: str, args: Any = None) -> Any:
    model = pipeline.TFModel({} if args is None else args).setExportDir(path)
    model = model.setInputMapping({"features": "dense_input"}).setBatchSize(4)
    return model.setOutputMapping({"dense": "prediction"}).setSignatureDefKey("serving_default")


# ---- arguments


def test_namespaces_are_alike_and_not() -> None:
    given = {"a": 1, "b": "x"}
    one = pipeline.Namespace(given)
    assert one == pipeline.Namespace(argparse.Namespace(**given)) == pipeline.Namespace(one)
    assert one != pipeline.Namespace({"a": 2})
    assert sorted(one) == ["a", "b"]
    assert repr(one) == "Namespace(a=1, b='x')"
    words = pipeline.Namespace(["--a", "1"])
    assert words == ["--a", "1"]
    assert words == pipeline.Namespace(words)
    assert [*words] == ["--a", "1"]
    assert repr(words) == "['--a', '1']"
    with pytest.raises(AttributeError, match="no argument 'c'; the arguments are a, b"):
        one.c  # noqa: B018
    with pytest.raises(TypeError, match="got an int; expected a dict"):
        pipeline.Namespace(3)  # type: ignore[arg-type]


def test_every_param_has_its_default_setter_and_getter(spark: SparkSession) -> None:
    estimator = pipeline.TFEstimator(train, {})
    values: dict[str, tuple[Any, Any]] = {
        "InputMapping": ({}, {"x": "y"}),
        "ClusterSize": (1, 3),
        "NumPS": (0, 1),
        "DriverPSNodes": (False, True),
        "InputMode": (1, 1),
        "MasterNode": ("chief", "master"),
        "Protocol": ("grpc", "rdma"),
        "GraceSecs": (30, 5),
        "Tensorboard": (False, True),
        "ModelDir": (None, "/m"),
        "ExportDir": (None, "/e"),
        "TFRecordDir": (None, "/t"),
        "BatchSize": (100, 8),
        "Epochs": (1, 4),
        "Readers": (1, 2),
        "Steps": (1000, 9),
    }
    for name, (default, value) in values.items():
        assert getattr(estimator, f"get{name}")() == default, name
        assert getattr(estimator, f"set{name}")(value) is estimator
        assert getattr(estimator, f"get{name}")() == value, name
    assert len(estimator.params) == len(values)
    model = pipeline.TFModel({})
    assert model.getBatchSize() == 100
    assert model.getInputMapping() == model.getOutputMapping() == {}
    assert model.getModelDir() is model.getExportDir() is None
    assert model.getSignatureDefKey() is model.getTagSet() is None
    assert model.setTagSet("serve").getTagSet() == "serve"
    with pytest.raises(ConfigError, match=r"InputMode\.TENSORFLOW is not for pipelines"):
        estimator.setInputMode(0)
    with pytest.raises(TypeError, match="expected a dict"):
        estimator.setInputMapping([("x", "y")])


def test_params_go_before_arguments(spark: SparkSession) -> None:
    args = argparse.Namespace(epochs=7, learning_rate=0.5)
    estimator = pipeline.TFEstimator(train, args).setEpochs(2)
    merged = estimator.merge_args_params()
    assert (merged.epochs, merged.learning_rate, merged.batch_size) == (2, 0.5, 100)
    assert estimator.args.epochs == 7
    assert "num_gpus" not in merged


# ---- a model


def test_linear_regression(spark: SparkSession, linear: str) -> None:
    df = rows(spark)
    found = model_of(linear).transform(df)
    assert found.dtypes == [("prediction", "array<double>")]
    expected = [r.features[0] * WEIGHTS[0] + r.features[1] * WEIGHTS[1] for r in df.collect()]
    assert np.allclose([row.prediction[0] for row in found.collect()], expected, atol=1e-4)


def test_outputs_have_the_types_that_python_gives_them(spark: SparkSession, shapes: str) -> None:
    df = spark.createDataFrame([([1.0, 2.0, 3.0, 4.0], 1)], "a array<float>, b tinyint")
    model = pipeline.TFModel({}).setExportDir(shapes).setInputMapping({"a": "x", "b": "n"})
    # One more time the names of the columns that go in: only what comes out is there.
    names = {"scalar": "a", "matrix": "m", "one": "b", "count": "c", "flag": "f", "raw": "r"}
    for key in (None, "other"):
        found = model.setSignatureDefKey(key).setOutputMapping(names).transform(df)
        assert found.dtypes == [
            ("c", "bigint"), ("f", "array<boolean>"), ("m", "array<array<double>>"),
            ("b", "array<double>"), ("r", "binary"), ("a", "double"),
        ]  # fmt: skip
        assert found.collect() == [
            Row(c=2, f=[False, True], m=[[2.0, 4.0], [6.0, 8.0]], b=[1.0], r=b"\xff\xfe", a=1.0)
        ]


def test_batches_tags_and_no_rows(spark: SparkSession, linear: str) -> None:
    model, df = model_of(linear), rows(spark)
    expected = model.transform(df).collect()
    assert model.setBatchSize(3).setTagSet("serve").transform(df).collect() == expected
    assert model.transform(df.filter("id < 0")).collect() == []
    with pytest.raises(ConfigError, match="train"):
        model.setTagSet("serve,train").transform(df)


def test_a_model_of_tensorflow_1(spark: SparkSession, tmp_path: Path) -> None:
    import tensorflow.compat.v1 as tf1

    from sparkdl.tfos.node.saved_model import export_saved_model

    with tf1.Graph().as_default(), tf1.Session() as sess:
        x = tf1.placeholder("float32", [None, 2], name="x")
        w = tf1.get_variable("w", initializer=np.array(WEIGHTS, "float32").reshape(2, 1))
        y = tf1.matmul(x, w, name="y")
        sess.run(tf1.global_variables_initializer())
        signature = {"inputs": {"x": x}, "outputs": {"y": y}}
        export_saved_model(sess, str(tmp_path / "m"), "serve", {"predict": signature})
    model = pipeline.TFModel({}).setExportDir(str(tmp_path / "m")).setTagSet("serve")
    model = model.setInputMapping({"features": "x"}).setOutputMapping({"y": "prediction"})
    found = model.setSignatureDefKey("predict").transform(rows(spark, 2)).collect()
    assert sorted(row.prediction[0] for row in found) == pytest.approx(
        [WEIGHTS[1], WEIGHTS[0] + 2 * WEIGHTS[1]]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"export_dir": None}, "transform needs the folder of a SavedModel"),
        ({"export_dir": "/nowhere/model"}, "/nowhere/model does not exist"),
        ({"input_mapping": {}}, "input_mapping is empty"),
        ({"output_mapping": {}}, "output_mapping is empty"),
        (
            {"input_mapping": {"features": "wrong"}},
            "'wrong'; the model has the inputs 'dense_input'",
        ),
        ({"output_mapping": {"dens": "p"}}, "unknown tensor 'dens'.*Did you mean 'dense'"),
        ({"input_mapping": {"id": "dense_input", "features": "dense_input"}}, "several columns"),
        ({"signature_def_key": "train"}, "no signature 'train'; it has 'serving_default'"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_is_refused_before_any_job(
    spark: SparkSession, linear: str, change: dict[str, Any], message: str
) -> None:
    model = model_of(linear)
    model._set(**{name: value for name, value in change.items() if value is not None})
    if change.get("export_dir", "") is None:
        model.clear(model.export_dir)
    with pytest.raises(ConfigError, match=message):
        model.transform(rows(spark))


# ---- saved


def test_a_model_in_a_pipeline_is_saved_and_loaded(
    spark: SparkSession, linear: str, tmp_path: Path
) -> None:
    df = spark.createDataFrame([(1.0, 2.0), (0.5, 4.0)], ["a", "b"])
    together = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    model = model_of(linear, {"learning_rate": 0.5, "names": ["a", None]})
    fitted = PipelineModel([together, model])
    expected = fitted.transform(df).collect()
    for _ in range(2):
        fitted.write().overwrite().save(str(tmp_path / "pipeline"))
    again = PipelineModel.load(str(tmp_path / "pipeline"))
    assert again.transform(df).collect() == expected
    assert expected[0].prediction[0] == pytest.approx(WEIGHTS[0] + 2 * WEIGHTS[1])
    stage = again.stages[1]
    assert type(stage) is pipeline.TFModel
    assert stage.args == model.args
    assert stage.uid == model.uid
    assert stage.extractParamMap() == model.extractParamMap()


def test_an_estimator_is_saved_with_its_function(spark: SparkSession, tmp_path: Path) -> None:
    base = 40

    def mine(args: Any, ctx: Any) -> int:
        return base + int(args)

    estimator = pipeline.TFEstimator(mine, ["--steps", "3"], export_fn=len).setEpochs(5)
    Pipeline(stages=[estimator]).save(str(tmp_path / "pipeline"))
    [stage] = Pipeline.load(str(tmp_path / "pipeline")).getStages()
    assert type(stage) is pipeline.TFEstimator
    assert stage.train_fn(2, None) == 42
    assert stage.export_fn is len
    assert stage.args == ["--steps", "3"]
    assert (stage.getEpochs(), stage.getGraceSecs()) == (5, 30)
    alone = pipeline.TFEstimator(mine, {})
    alone.save(str(tmp_path / "alone"))
    assert pipeline.TFEstimator.load(str(tmp_path / "alone")).export_fn is None


def test_arguments_that_cannot_be_saved_are_named(spark: SparkSession, tmp_path: Path) -> None:
    for wrong in (print, (1, 2), {1: 2}, float("nan")):
        with pytest.raises(ConfigError, match="the argument shape is"):
            pipeline.TFModel({"shape": wrong}).save(str(tmp_path / "model"))


# ---- fit, with a cluster that only notes what is asked of it


class Cluster:
    """A stand-in for a TFCluster, with the methods that an estimator calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def run(self, sc: Any, *args: Any, **kwargs: Any) -> "Cluster":
        self.calls.append(("run", args, kwargs))
        return self

    def train(self, rdd: Any, num_epochs: int) -> None:
        self.calls.append(("train", [tuple(row) for row in rdd.collect()], num_epochs))

    def shutdown(self, **kwargs: Any) -> None:
        self.calls.append(("shutdown", kwargs))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    noted, module = Cluster(), ModuleType("sparkdl.tfos.TFCluster")
    module.run = noted.run  # type: ignore[attr-defined]
    module.InputMode = argparse.Namespace(TENSORFLOW=0, SPARK=1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sparkdl.tfos.TFCluster", module)
    monkeypatch.setattr("sparkdl.tfos.TFCluster", module, raising=False)
    yield noted


def test_fit_feeds_sorted_columns_and_ends_the_cluster(
    spark: SparkSession, cluster: Cluster
) -> None:
    df = spark.createDataFrame([(1, 2, 3), (4, 5, 6)], ["z", "a", "m"]).coalesce(1)
    estimator = pipeline.TFEstimator(train, {"learning_rate": 0.5})
    estimator.setInputMapping({"z": "label", "a": "image"}).setClusterSize(3).setNumPS(1)
    estimator.setEpochs(4).setGraceSecs(7).setBatchSize(9).setExportDir("/e")
    estimator.setMasterNode("master")
    model = estimator.fit(df)
    assert [call[0] for call in cluster.calls] == ["run", "train", "shutdown"]
    _, args, kwargs = cluster.calls[0]
    assert args[0] is train
    assert (args[1].learning_rate, args[1].batch_size, args[1].export_dir) == (0.5, 9, "/e")
    assert args[2:] == (3, 1, False, 1)
    assert kwargs == {"master_node": "master", "driver_ps_nodes": False}
    assert cluster.calls[1] == ("train", [(2, 1), (5, 4)], 4)
    assert cluster.calls[2] == ("shutdown", {"grace_secs": 7})
    assert type(model) is pipeline.TFModel
    assert (model.getBatchSize(), model.getExportDir()) == (9, "/e")
    assert model.getInputMapping() == {"z": "label", "a": "image"}
    assert model.args == estimator.args
    words = pipeline.TFEstimator(train, ["--steps", "3"]).setInputMapping({"z": "label"})
    words.fit(df)
    assert cluster.calls[3][1][1] == ["--steps", "3"]


def test_fit_refuses_what_cannot_be_fed(spark: SparkSession, cluster: Cluster) -> None:
    estimator = pipeline.TFEstimator(train, {}, export_fn=print)
    for mapping in ({}, {"nothing": "x"}):
        with pytest.raises(ConfigError, match=r"expected columns of the DataFrame, which are id"):
            estimator.setInputMapping(mapping).fit(spark.range(2))
    with pytest.raises(ConfigError, match="export_fn needs an export_dir"):
        estimator.setInputMapping({"id": "x"}).fit(spark.range(2))
    assert cluster.calls == []


def test_an_export_function_runs_once_after_training(
    spark: SparkSession, cluster: Cluster, root: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)

    def export(args: Any) -> str:
        with (tmp_path / "exported").open("a") as file:
            file.write(f"{args.export_dir} {args.model_dir}\n")
        if args.model_dir == "none":
            raise OSError("no checkpoint")
        return "ignored"

    estimator = pipeline.TFEstimator(train, {}, export_fn=export).setInputMapping({"id": "x"})
    estimator.setExportDir("/e").setModelDir("/m").fit(spark.range(2))
    assert (tmp_path / "exported").read_text() == "/e /m\n"
    with pytest.raises(SparkDLError) as failed:
        estimator.setModelDir("none").fit(spark.range(2))
    assert isinstance(failed.value.__cause__, OSError)
