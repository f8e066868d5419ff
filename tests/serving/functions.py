"""SavedModels of the tests of the model server."""

from pathlib import Path
from typing import Any

__all__ = ["save_functions", "save_sum"]


def save_sum(folder: Path, value: float) -> Path:
    """A SavedModel that adds a constant to its only input `x`; returns its path."""
    import tensorflow as tf

    class Sum(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.value = tf.Variable(value)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def add(self, x: Any) -> Any:
            return {"y": x + self.value}

    module = Sum()
    tf.saved_model.save(module, str(folder), module.add)
    return folder


def save_functions(folder: str) -> None:
    """A SavedModel with several inputs, strings, ragged tensors, classes, and a picky function."""
    import tensorflow as tf

    strings, numbers = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.float32)

    class Functions(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.factor = tf.Variable(2.0)

        @tf.function(input_signature=[strings, numbers])
        def join(self, tag: Any, x: Any) -> Any:
            return {"text": tf.strings.join([tag, "!"]), "raw_bytes": tag, "x": x * self.factor}

        @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.float32)])
        def ragged(self, x: Any) -> Any:
            return {"sum": tf.reduce_sum(x, 1), "double": x * self.factor}

        @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.string)])
        def words(self, x: Any) -> Any:
            return {"joined": tf.strings.reduce_join(x, 1)}

        @tf.function(input_signature=[numbers, tf.TensorSpec([None], tf.int64)])
        def pair(self, item: Any, item_1: Any) -> Any:
            return {"y": item + tf.cast(item_1, tf.float32)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.bfloat16, name="x")])
        def halves(self, x: Any) -> Any:
            return {"y": x * 2}

        @tf.function(input_signature=[tf.TensorSpec(None, tf.int64, name="x")])
        def any_rank(self, x: Any) -> Any:
            return {"y": x + 1}

        @tf.function(input_signature=[strings])
        def classify(self, examples: Any) -> Any:
            features = {"x": tf.io.FixedLenFeature([2], tf.float32)}
            parsed = tf.io.parse_example(examples, features)["x"]
            labels = tf.tile(tf.constant([["a", "b"]]), [tf.shape(parsed)[0], 1])
            return {"classes": labels, "scores": parsed * self.factor}

        @tf.function(input_signature=[strings])
        def regress(self, inputs: Any) -> Any:
            parsed = tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([1], tf.float32)})
            return {"outputs": parsed["x"] * self.factor}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
        def picky(self, x: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_non_negative(x, "below zero")]):
                return {"y": x + 1}

    module = Functions()
    names = (
        "join",
        "pair",
        "ragged",
        "words",
        "halves",
        "any_rank",
        "classify",
        "regress",
        "picky",
    )
    signatures = {name: getattr(module, name) for name in names}
    tf.saved_model.save(module, folder, {**signatures, "serving_default": module.join})
