"""TensorFlowOnSpark's MNIST program, on handwritten digits that Spark feeds to the nodes.

    python examples/tfos/digits_spark.py
    spark-submit --master <master> examples/tfos/digits_spark.py

Only the import of TFCluster differs from a program for TensorFlowOnSpark.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from pyspark import SparkConf, SparkContext
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sparkdl.tfos import TFCluster


def main_fun(args: Any, ctx: Any) -> None:
    """Train on what Spark feeds; the chief saves the model."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    feed = ctx.get_data_feed()

    def rows() -> Iterator[tuple[Any, int]]:
        while not feed.should_stop():
            for image, label in feed.next_batch(args.batch_size):
                yield np.array(image, np.float32) / 16.0, label

    signature = (tf.TensorSpec((64,), tf.float32), tf.TensorSpec((), tf.int64))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.batch(args.batch_size * ctx.num_workers).with_options(options)
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
    # All workers take the same number of steps, fewer than there are rows for: shares differ.
    model.fit(dataset, steps_per_epoch=args.steps, epochs=args.epochs, verbose=2)
    feed.terminate()
    if ctx.job_name == "chief":
        model.save(args.model)


def digits() -> list[Any]:
    """Return images and labels for training, then images and labels for testing."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.25, random_state=0)
    return [parts[0], parts[2], parts[1], parts[3]]


def main() -> None:
    """Feed the digits to a cluster of two nodes; test the saved model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster_size", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    # Two slots for plain Python; spark-submit ignores this variable.
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell")
    sc = SparkContext(conf=SparkConf().setAppName("digits"))
    x_train, y_train, x_test, y_test = digits()
    args.steps = int(len(x_train) * 0.9) // (args.batch_size * args.cluster_size)
    with tempfile.TemporaryDirectory() as folder:
        args.model = os.path.join(folder, "digits.keras")
        rows = zip(x_train.tolist(), y_train.tolist(), strict=True)
        cluster = TFCluster.run(
            sc,
            main_fun,
            args,
            args.cluster_size,
            num_ps=0,
            input_mode=TFCluster.InputMode.SPARK,
            master_node="chief",
        )
        cluster.train(sc.parallelize(rows, 2 * args.cluster_size), args.epochs)
        cluster.shutdown()
        model = keras.saving.load_model(args.model)
    _, accuracy = model.evaluate(x_test / 16.0, y_test, verbose=0)
    print(f"accuracy {accuracy:.4f} on unseen digits")


if __name__ == "__main__":
    main()
