"""A program of tf.estimator: a chief, a worker, a parameter server and an evaluator.

The training function is an Estimator program as it was written for any cluster: `RunConfig` reads
TF_CONFIG, and every process calls `train_and_evaluate`. It needs TensorFlow 2.15, the last release
with tf.estimator: see docs/estimators.md. It uses scikit-learn's handwritten digits.

On a laptop, with embedded Spark:     python examples/estimator.py
As a batch job on a cluster:          spark-submit --master <master> examples/estimator.py
"""

import argparse
import functools
import os
import tempfile
from typing import Any

from sparkdl import experiment


def load_split() -> list[Any]:
    """Return x_train, x_test, y_train and y_test; an image is a row of 64 numbers from 0 to 1."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    split: list[Any] = train_test_split(
        images.astype("float32") / 16, labels, test_size=0.25, random_state=0
    )
    return split


def train(model_dir: str, steps: int, mirrored: bool) -> float:
    """Train a network with every process, and return the accuracy that the chief measures."""
    import tensorflow as tf

    x_train, x_test, y_train, y_test = load_split()

    def rows(x: Any, y: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices(({"pixels": x}, y)).batch(32)

    def training_rows() -> Any:
        return rows(x_train, y_train).shuffle(50).repeat()

    def unseen_rows() -> Any:
        return rows(x_test, y_test)

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if mirrored else None
    estimator = tf.estimator.DNNClassifier(
        hidden_units=[64],
        feature_columns=[tf.feature_column.numeric_column("pixels", (64,))],
        n_classes=10,
        optimizer=lambda: tf.keras.optimizers.legacy.Adam(0.003),
        config=tf.estimator.RunConfig(
            model_dir=model_dir, save_checkpoints_steps=100, train_distribute=strategy
        ),
    )
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(training_rows, max_steps=steps),
        tf.estimator.EvalSpec(unseen_rows, steps=None, start_delay_secs=0, throttle_secs=0),
    )
    return float(estimator.evaluate(unseen_rows)["accuracy"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mirrored", action="store_true", help="two equal workers, no servers")
    parser.add_argument("--steps", type=int, default=600, help="steps of all processes together")
    parser.add_argument("--model-dir", help="a folder that all hosts share")
    args = parser.parse_args()
    # Four slots for plain Python; spark-submit ignores this variable.
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local[4] pyspark-shell")
    folder = args.model_dir or tempfile.mkdtemp()
    program = functools.partial(train, folder, args.steps, args.mirrored)
    if args.mirrored:
        run = experiment.allreduce(program, num_workers=2, evaluator=True)
    else:
        run = experiment.parameter_server(
            program, num_workers=1, num_ps=1, roles="all", evaluator=True
        )
    print(f"accuracy {run.result:.4f} on unseen digits")
