"""SavedModels of Keras 3, of tf_keras and of TensorFlow 1, under the names that programs know."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl.tfos import compat
from sparkdl.tfos.node import saved_model

pytestmark = pytest.mark.slow


def serve(path: Path | str) -> tuple[list[str], Any]:
    """The names of what goes in, and the function; both from the file alone."""
    import tensorflow as tf

    module = tf.saved_model.load(str(path))
    function = module.signatures["serving_default"]
    return sorted(function.structured_input_signature[1]), lambda **x: {
        name: value.numpy()
        for name, value in module.signatures["serving_default"](
            **{n: tf.constant(v, "float32") for n, v in x.items()}
        ).items()
    }


def test_a_sequential_is_called_as_keras_2_called_it(tmp_path: Path) -> None:
    import keras

    hidden = keras.layers.Dense(3, name="hidden", activation="relu")
    model = keras.Sequential([keras.Input((2,)), hidden, keras.layers.Dense(1, name="out")])
    compat.export_saved_model(model, str(tmp_path / "model"), is_chief=True)
    names, function = serve(tmp_path / "model")
    assert names == ["hidden_input"]
    x = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]], "float32")
    found = function(hidden_input=x)
    assert [*found] == ["out"]
    assert np.allclose(found["out"], model.predict(x, verbose=0))


def test_inputs_and_outputs_keep_their_names(tmp_path: Path) -> None:
    import keras

    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    total = keras.layers.Add(name="total")([a, b])
    twice = keras.layers.Rescaling(2.0, name="twice")(b)
    compat.export_saved_model(keras.Model([b, a], [twice, total]), str(tmp_path / "named"), True)
    names, function = serve(tmp_path / "named")
    assert names == ["a", "b"]
    found = function(a=[[1.0]], b=[[4.0]])
    assert {name: value.tolist() for name, value in found.items()} == {
        "total": [[5.0]],
        "twice": [[8.0]],
    }
    x, y = keras.Input((1,)), keras.Input((1,))
    model = keras.Model([x, y], keras.layers.Subtract(name="less")([x, y]))
    compat.export_saved_model(model, f"file://{tmp_path}/unnamed", is_chief=True)
    names, function = serve(tmp_path / "unnamed")
    assert names == ["input_1", "input_2"]
    assert function(input_1=[[5.0]], input_2=[[1.0]])["less"].tolist() == [[4.0]]


def test_a_class_of_the_persons_own(tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    class Halves(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.scale = self.add_weight(shape=(), initializer=keras.initializers.Constant(0.5))

        def call(self, x: Any) -> Any:
            return x * self.scale, x

    model = Halves()
    with pytest.raises(ValueError, match="has not been called"):
        compat.export_saved_model(model, str(tmp_path / "model"), is_chief=True)
    model(tf.constant([[3.0]]))
    compat.export_saved_model(model, str(tmp_path / "model"), is_chief=True)
    names, function = serve(tmp_path / "model")
    assert names == ["input_1"]
    assert {n: v.tolist() for n, v in function(input_1=[[3.0]]).items()} == {
        "output_1": [[1.5]],
        "output_2": [[3.0]],
    }


def test_text_goes_through_a_table(tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    words = keras.Input((), name="word", dtype="string")
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"], name="number")
    compat.export_saved_model(keras.Model(words, lookup(words)), str(tmp_path / "m"), True)
    module = tf.saved_model.load(str(tmp_path / "m"))
    found = module.signatures["serving_default"](word=tf.constant(["b", "z"]))
    assert found["number"].numpy().tolist() == [2, 0]


def test_only_the_chiefs_model_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    compat.export_saved_model(model, str(tmp_path / "model"))
    assert os.listdir(tmp_path) == []
    for _ in range(2):
        compat.export_saved_model(model, "model", is_chief=True)
    assert os.listdir(tmp_path) == ["model"]


def test_a_store_gets_the_files(tmp_path: Path) -> None:
    import keras

    from sparkdl.files import storage

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    compat.export_saved_model(model, "memory://models/one", is_chief=True)
    storage.download("memory://models/one", tmp_path / "one")
    [name] = serve(tmp_path / "one")[0]
    assert name.endswith("_input")
    storage.remove("memory://models")


def test_a_model_of_a_strategy(tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        out = keras.layers.Dense(1, name="out", kernel_initializer="ones")
        model = keras.Sequential([keras.Input((2,), name="x"), out])
        model.compile("sgd", "mse")
    compat.export_saved_model(model, str(tmp_path / "model"), is_chief=True)
    assert serve(tmp_path / "model")[1](x=[[1.0, 2.0]])["out"].tolist() == [[3.0]]


def test_tf_keras_writes_what_it_always_wrote(tmp_path: Path) -> None:
    program = (
        "import numpy as np, tensorflow as tf\n"
        "from sparkdl.tfos import compat\n"
        "model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])\n"
        "compat.export_saved_model(model, 'model', True)\n"
        "again = tf.keras.models.load_model('model')\n"
        "x = np.ones((3, 2), 'float32')\n"
        "assert np.allclose(again.predict(x), model.predict(x))\n"
    )
    env = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    names, function = serve(tmp_path / "model")
    assert names == ["dense_input"]
    assert [*function(dense_input=[[1.0, 2.0]])] == ["dense"]


def test_what_is_no_keras_model_is_refused() -> None:
    with pytest.raises(ValueError, match="got a dict; expected a Keras model"):
        compat.export_saved_model({}, "model", is_chief=True)


# ---- TensorFlow 1


def test_a_closed_graph_is_exported_and_stays_closed(tmp_path: Path) -> None:
    import tensorflow.compat.v1 as tf1

    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder("float32", [None], name="x")
        with tf1.device("/job:localhost/cpu:0"):
            w = tf1.get_variable("w", initializer=1.0)
        y = tf1.multiply(x, w, name="y")
        step = tf1.train.get_or_create_global_step()
        grow = tf1.group(tf1.assign_add(w, 1.0), tf1.assign_add(step, 1))
        with tf1.train.MonitoredTrainingSession() as sess:
            sess.run(grow)
            sess.run(grow)
            before = len(graph.get_operations())
            saved_model.export_saved_model(
                sess,
                str(tmp_path / "model"),
                "serve,mine",
                {"predict": {"inputs": {"features": x}, "outputs": {"out": "y"}}},
            )
            assert graph.finalized
            assert len(graph.get_operations()) == before
            assert y.graph is graph
    import tensorflow as tf

    module = tf.saved_model.load(str(tmp_path / "model"), tags=["serve", "mine"])
    found = module.signatures["predict"](features=tf.constant([2.0]))
    assert found["out"].numpy().tolist() == [6.0]
