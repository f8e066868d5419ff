"""Keras models as versions: exported for serving, found again, loaded and applied."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment, models
from sparkdl.cli.main import main
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.runs import Run
from tests.helpers.models import dense
from tests.helpers.runs import run_with_outputs

pytestmark = pytest.mark.slow


def exported(model: Any, name: str, root: str, **options: Any) -> models.ModelVersion:
    """The new version of a model."""
    version = models.export(model, name, root=root, **options)
    assert version is not None
    return version


@pytest.fixture
def run(root: str, tmp_path: Path) -> Run:
    """A run of two trials, each with a model; the second one is the best."""
    files = []
    for number in (0, 1):
        files.append(tmp_path / f"{number}.keras")
        dense(4, 3, name=f"layer_{number}").save(files[-1])
    return run_with_outputs(root, {"accuracy": (0.7, 0.9)}, {"model": files})


def served(version: models.ModelVersion, **inputs: Any) -> Any:
    """Call the serving function as TensorFlow Serving does, and return its answer."""
    import tensorflow as tf

    function = tf.saved_model.load(version.path).signatures["serving_default"]
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    return {name: value.numpy() for name, value in function(**tensors).items()}


def test_the_best_trial_of_a_run_is_exported_with_its_lineage(
    run: Run, root: str, spark: SparkSession, capsys: Any
) -> None:
    rows = [(i, [float(i), 1.0, 2.0, 3.0]) for i in range(10)]
    df = spark.createDataFrame(rows, "id int, x array<float>")
    version = exported(run, "digits", root, profile=df, metrics={"size": 15})
    assert (version.version, version.run, version.trial) == (1, run.id, 1)
    assert version.metrics == {"accuracy": 0.9, "size": 15.0}
    assert version.signature["inputs"] == {"inputs": {"dtype": "float32", "shape": [None, 4]}}
    assert version.lineage["params"] == {"lr": 0.2}
    assert version.lineage["run_path"] == run.path
    assert version.profile is not None
    assert version.profile["features"]["x[3]"]["num_values"] == 10
    x = np.array([row[1] for row in rows], "float32")
    expected = run.best.model().predict(x, verbose=0)
    assert np.allclose(served(version, inputs=x)["output_0"], expected)
    assert np.allclose(version.model().predict(x, verbose=0), expected)
    predicted = experiment.predict(version, df, feature_cols="x").orderBy("id").collect()
    assert np.allclose([row["prediction"] for row in predicted], expected)

    # The same from the command line, in which the worse trial is refused with a code of its own.
    words = ["models", "export", run.path, "--name", "digits", "--root", root]
    assert main([*words, "--trial", "0", "--if-better", "accuracy"]) == 99
    assert "not exported: accuracy" in capsys.readouterr().err
    assert main([*words, "--trial", "0", "--alias", "canary", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 2
    assert main([*words, "--metric", "accuracy=0.95", "--if-better", "accuracy"]) == 0
    assert "<ModelVersion digits/3 accuracy=0.95" in capsys.readouterr().out
    assert main([*words, "--trial", "7"]) == 2
    assert "has no trial 7" in capsys.readouterr().err


def test_models_in_memory_and_on_s3(s3: str, tmp_path: Path) -> None:
    root = f"{s3}/{tmp_path.name}"
    model = dense(4, 3)
    version = exported(model, "digits", root, signature={"pixels": np.zeros((1, 4), "float32")})
    x = np.ones((2, 4), "float32")
    path = version.download(tmp_path)
    assert Path(path, "variables", "variables.index").exists()
    local = models.ModelVersion(name="digits", version=1, path=path, metrics={})
    expected = model.predict(x, verbose=0)
    assert np.allclose(served(local, pixels=x)["output_0"], expected)
    assert np.allclose(version.model().predict(x, verbose=0), expected)
    # Under another name, the version is the same, or has the inputs that are asked for.
    assert exported(version, "copied", root).signature == version.signature
    image = exported(version, "renamed", root, signature={"image": np.zeros((1, 4), "float32")})
    assert list(image.signature["inputs"]) == ["image"]
    # A trial whose run is on S3.
    file = tmp_path / "m.keras"
    model.save(file)
    run = run_with_outputs(root, {"accuracy": (0.5, 0.6)}, {"model": [file, file]})
    assert np.allclose(run.best.model().predict(x, verbose=0), expected)
    assert Path(run.best.artifact("model")).read_bytes() == file.read_bytes()
    assert exported(run, "digits", root).version == 2


def test_inputs_keep_their_names_and_unknown_inputs_are_described(root: str) -> None:
    import keras
    import tensorflow as tf

    inputs = [keras.layers.Input((2,), name="a"), keras.layers.Input((3,))]
    outputs = {"p": keras.layers.Dense(1)(inputs[0]), "q": keras.layers.Dense(2)(inputs[1])}
    version = exported(keras.Model(inputs, outputs), "two", root)
    assert list(version.signature["inputs"]) == ["a", "input_2"]
    assert list(version.signature["outputs"]) == ["p", "q"]
    answer = served(version, a=[[1.0, 2.0]], input_2=[[1.0, 2.0, 3.0]])
    assert answer["q"].shape == (1, 2)

    class Sum(keras.Model):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return x["u"] + x["w"]

    with pytest.raises(ConfigError, match=r"is unknown.*signature=tf.TensorSpec"):
        models.export(Sum(), "sum", root=root)
    specs = {name: tf.TensorSpec([None, 2]) for name in ("w", "u")}
    version = exported(Sum(), "sum", root, signature=specs)
    assert served(version, u=[[1.0, 2.0]], w=[[3.0, 4.0]])["output_0"].tolist() == [[4.0, 6.0]]
    with pytest.raises(ConfigError, match=r"signature describes .*; the model has inputs float32"):
        models.export(dense(4), "one", signature=specs, root=root)
    assert [v.name for v in models.list(root=root)] == ["sum", "two"]


def test_a_model_of_tf_keras_is_exported(root: str) -> None:
    tf_keras = pytest.importorskip("tf_keras")
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])
    version = exported(model, "old", root)
    x = np.ones((3, 2), "float32")
    (name,) = version.signature["inputs"]
    assert np.allclose(served(version, **{name: x})["output_0"], model.predict(x, verbose=0))
    assert type(version.model()).__module__.startswith("tf_keras")


def test_onnx_is_written_beside_the_saved_model(root: str) -> None:
    if importlib.util.find_spec("tf2onnx") is None:
        with pytest.raises(ConfigError, match=r"sparkdl-platform\[onnx\]"):
            models.export(dense(4), "digits", onnx=True, root=root)
        return
    import onnx

    version = exported(dense(4, 3), "digits", root, onnx=True)
    graph = onnx.load(storage.join(version.path, "model.onnx")).graph
    assert [tensor.name for tensor in graph.input] == ["inputs"]
    assert [tensor.name for tensor in graph.output] == ["output_0"]


def test_the_output_is_called_as_by_keras(root: str, tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    rows = keras.Input((2,), name="x")
    for number, outputs in enumerate([keras.layers.Dense(3)(rows), [keras.layers.Dense(3)(rows)]]):
        model = keras.Model(rows, outputs)
        model.export(str(tmp_path / f"{number}"), verbose=False)
        by_keras = tf.saved_model.load(str(tmp_path / f"{number}")).signatures["serving_default"]
        version = models.export(model, "named", root=root)
        assert version and [*version.signature["outputs"]] == [*by_keras.structured_outputs]


def test_files_are_kept_beside_the_model(root: str, tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    (folder / "stages").mkdir(parents=True)
    (folder / "stages" / ".part.crc").write_text("1")
    (tmp_path / "words.txt").write_text("a b")
    files = {"preparation": folder, "words": str(tmp_path / "words.txt")}
    version = exported(dense(2), "table", root, files=files)
    copied = exported(version, "copied", root, files={"words": folder / "stages" / ".part.crc"})
    changed = exported(version, "changed", root, signature={"x": np.zeros((1, 2), "float32")})
    for each, words in ((version, "a b"), (copied, "1"), (changed, "a b")):
        assert Path(each.file("preparation"), "stages", ".part.crc").read_text() == "1"
        assert Path(each.file("words")).read_text() == words
    assert "assets.extra/words" in version.details["files"]
    with pytest.raises(ConfigError, match=r"table/1 has no file 'word'; it has preparation, words"):
        version.file("word")
    with pytest.raises(ConfigError, match=r"files has 'nothere' for 'x'"):
        exported(dense(2), "table", root, files={"x": "nothere"})
    with pytest.raises(ConfigError, match="the name of the file is 'a/b'"):
        exported(dense(2), "table", root, files={"a/b": folder})
    assert len(models.list("table", root=root)) == 1
