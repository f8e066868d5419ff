"""Let a training grow into slots that nobody uses, and give them back to a search.

    python examples/growing.py
    spark-submit --master <master> examples/growing.py <folder>

The training begins with one worker. While slots of the Spark application are idle, it grows; when
the trials of the search wait for slots, it gives them back, and takes them again after the search.
The folder is one that all executors see.
"""

import argparse
import os
import time
from functools import partial

import keras
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from sparkdl import data, distribute, experiment


def write_digits(folder: str) -> None:
    """Write scikit-learn's digits as Parquet files with 64 columns of pixels and `digit`."""
    images, labels = load_digits(return_X_y=True)
    os.makedirs(folder, exist_ok=True)
    for part in range(4):
        columns = {f"p{i}": images[part::4, i].astype("float32") / 16 for i in range(64)}
        table = pa.table({**columns, "digit": labels[part::4]})
        pq.write_table(table, os.path.join(folder, f"{part}.parquet"))


class Until(keras.callbacks.Callback):
    """Stop all workers after some seconds."""

    def __init__(self, end_s: float) -> None:
        super().__init__()
        self.end_s = end_s

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Stop if it is time; `fit` stops all workers when one of them stops."""
        self.model.stop_training = time.time() > self.end_s


def train(folder: str, seconds: float) -> float:
    """Train a small network for some seconds; return its accuracy on the rows."""
    rows = data.parquet(
        folder,
        batch_size_per_worker=16,  # So that a step of four workers has 64 rows.
        feature_cols=[f"p{i}" for i in range(64)],
        label_cols="digit",
        shuffle=True,
    )
    model = keras.Sequential(
        [
            keras.layers.Input(shape=(64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        distribute.optimizer("adam"), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    history = model.fit(
        rows, epochs=1_000_000, verbose=0, callbacks=[Until(time.time() + seconds)]
    ).history
    return history["accuracy"][-1]


def score(num_neighbors: int) -> float:
    """Score a nearest-neighbor classifier, by cross-validation."""
    images, labels = load_digits(return_X_y=True)
    return float(cross_val_score(KNeighborsClassifier(num_neighbors), images, labels, cv=5).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", default=os.path.abspath("digits.parquet"), help="seen by all executors"
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="seconds of the training")
    parser.add_argument("--most", type=int, default=4, help="largest number of workers")
    args = parser.parse_args()
    write_digits(args.folder)
    training = experiment.allreduce(
        partial(train, args.folder, args.seconds),
        num_workers=(1, args.most),
        elastic=True,
        wait=False,
    )
    time.sleep(args.seconds / 3)
    search = experiment.launch(score, {"num_neighbors": range(1, 21)}, progress=False)
    print(f"best number of neighbors: {search.best.params['num_neighbors']}")
    print(f"accuracy {training.wait().result:.4f}, with these workers:")
    for resize in training.resizes:
        print(resize)
