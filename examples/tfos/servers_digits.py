"""A TensorFlow 1 program with a parameter server, fed by Spark, on handwritten digits.

    python examples/tfos/servers_digits.py

Two workers train asynchronously; both run the same graph, and the server holds its variables.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from pyspark import SparkConf, SparkContext
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sparkdl.tfos import TFCluster, TFNode


def main_fun(args: Any, ctx: Any) -> None:
    """Serve, or train on the rows that Spark feeds; the first worker writes the accuracy."""
    tf.disable_eager_execution()
    cluster, server = TFNode.start_cluster_server(ctx)
    if ctx.job_name == "ps":
        server.join()
        return
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        image = tf.placeholder(tf.float32, (None, 64), name="image")
        label = tf.placeholder(tf.int64, (None,), name="label")
        wide = tf.get_variable("wide", (64, 64))
        narrow = tf.get_variable("narrow", (64, 10))
        logits = tf.matmul(tf.nn.relu(tf.matmul(image, wide)), narrow)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        )
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdamOptimizer(0.002).minimize(loss, global_step=step)
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, axis=1), label), tf.float32))

    feed = ctx.get_data_feed()
    is_chief = ctx.task_index == 0
    with tf.train.MonitoredTrainingSession(server.target, is_chief=is_chief) as session:
        while not feed.should_stop():
            rows = feed.next_batch(args.batch_size)
            if rows:
                images, labels = (np.array(part) for part in zip(*rows, strict=True))
                session.run(train_op, {image: images / 16.0, label: labels})
        if is_chief:
            unseen = {image: args.test_images / 16.0, label: args.test_labels}
            Path(args.result).write_text(f"{session.run(accuracy, unseen):.4f}")


def main() -> None:
    """Feed the digits to two workers and a parameter server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    # Three slots for plain Python; spark-submit ignores this variable.
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local[3] pyspark-shell")
    sc = SparkContext(conf=SparkConf().setAppName("digits"))
    images, labels = load_digits(return_X_y=True)
    x_train, args.test_images, y_train, args.test_labels = train_test_split(
        images, labels, test_size=0.25, random_state=0
    )
    with tempfile.TemporaryDirectory() as folder:
        args.result = os.path.join(folder, "accuracy.txt")
        cluster = TFCluster.run(sc, main_fun, args, 3, 1, input_mode=TFCluster.InputMode.SPARK)
        rows = zip(x_train.tolist(), y_train.tolist(), strict=True)
        cluster.train(sc.parallelize(rows, 4), args.epochs)
        cluster.shutdown()
        print(f"accuracy {Path(args.result).read_text()} on unseen digits")


if __name__ == "__main__":
    main()
