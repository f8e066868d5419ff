"""TensorFlowOnSpark's MNIST program, on handwritten digits that the nodes read themselves.

    python examples/tfos/digits_tensorflow.py
    spark-submit --master <master> examples/tfos/digits_tensorflow.py

Only the import of TFCluster differs from a program for TensorFlowOnSpark.
"""

import argparse
import os
import tempfile
from typing import Any

import keras
import tensorflow as tf
from pyspark import SparkConf, SparkContext
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sparkdl.tfos import TFCluster


def digits() -> list[Any]:
    """Return images and labels for training, then images and labels for testing."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0)
    return [parts[0], parts[2], parts[1], parts[3]]


def main_fun(args: Any, ctx: Any) -> None:
    """Train together with the other nodes; the chief saves the model."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    images, labels, _, _ = digits()
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=7)
    dataset = dataset.repeat().batch(args.batch_size * ctx.num_workers)
    with strategy.scope():
        keras.utils.set_random_seed(7)
        model = keras.Sequential(
            [
                keras.layers.Input(shape=(64,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    steps = len(images) // (args.batch_size * ctx.num_workers)
    model.fit(dataset, steps_per_epoch=steps, epochs=args.epochs, verbose=2)
    if ctx.job_name == "chief":
        model.save(args.model)


def main() -> None:
    """Train on a cluster of two nodes; test the saved model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster_size", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    # Two slots for plain Python; spark-submit ignores this variable.
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell")
    sc = SparkContext(conf=SparkConf().setAppName("digits"))
    with tempfile.TemporaryDirectory() as folder:
        args.model = os.path.join(folder, "digits.keras")
        cluster = TFCluster.run(sc, main_fun, args, args.cluster_size, 0, master_node="chief")
        cluster.shutdown()
        model = keras.saving.load_model(args.model)
    _, _, x_test, y_test = digits()
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"accuracy {accuracy:.4f} on unseen digits")


if __name__ == "__main__":
    main()
