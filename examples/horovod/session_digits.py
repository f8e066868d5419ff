"""A TensorFlow 1 program for Horovod, a graph in a monitored session, on handwritten digits.

python examples/horovod/session_digits.py
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import sparkdl.horovod.tensorflow as hvd
from sparkdl import experiment

STEPS, BATCH = 600, 32


def train() -> float:
    """Train on this rank's share of the digits; return the accuracy on unseen digits."""
    tf.disable_eager_execution()
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=0
    )
    image = tf.placeholder(tf.float32, (None, 64), name="image")
    label = tf.placeholder(tf.int64, (None,), name="label")
    wide = tf.get_variable("wide", (64, 64))
    narrow = tf.get_variable("narrow", (64, 10))
    logits = tf.matmul(tf.nn.relu(tf.matmul(image, wide)), narrow)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
    )
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, axis=1), label), tf.float32))

    optimizer = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.001 * hvd.size()))
    global_step = tf.train.get_or_create_global_step()
    train_op = optimizer.minimize(loss, global_step=global_step)
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),
        tf.train.StopAtStepHook(last_step=STEPS // hvd.size()),
        tf.train.LoggingTensorHook({"step": global_step, "loss": loss}, every_n_iter=100),
    ]
    random = np.random.default_rng(hvd.rank())
    with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        reached = 0.0
        while not session.should_stop():
            rows = random.integers(0, len(x_train), BATCH)
            session.run(train_op, feed_dict={image: x_train[rows], label: y_train[rows]})
            if not session.should_stop():
                reached = session.run(accuracy, feed_dict={image: x_test, label: y_test})
    return float(reached)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    args = parser.parse_args()
    accuracy = experiment.horovod(train, num_workers=args.workers).result
    print(f"accuracy {accuracy:.4f} on unseen digits")
