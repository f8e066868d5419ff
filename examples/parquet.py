"""Two workers train on Parquet files, each on its own share of the rows.

On a laptop, with embedded Spark:     python examples/parquet.py
As a batch job on a cluster:          spark-submit --master <master> examples/parquet.py <folder>

The folder is one that all executors see: a path or an fsspec URL. `data.tfrecord`, `data.csv` and
`data.images` take the same arguments.
"""

import argparse
import os
from functools import partial

import keras
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from sparkdl import data, distribute, experiment


def write_digits(folder: str) -> None:
    """Write scikit-learn's digits as Parquet files: `pixels`, `digit` and `part`."""
    spark = SparkSession.builder.appName("digits").getOrCreate()
    images, labels = load_digits(return_X_y=True)
    rows = [
        (image.tolist(), int(label), "test" if number % 4 == 0 else "train")
        for number, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    df = spark.createDataFrame(rows, "pixels array<float>, digit int, part string")
    df.repartition(4).write.mode("overwrite").parquet(folder)


def scale(rows: dict) -> dict:
    """Compute what the network is trained on from the columns of a batch, in NumPy."""
    return {"pixels": rows["pixels"] / 16}


def train(folder: str) -> float:
    """Train a small network; return its accuracy on unseen digits."""
    with distribute.strategy().scope():
        model = keras.Sequential(
            [
                keras.layers.Input(shape=(64,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    columns = {"feature_cols": "pixels", "label_cols": "digit"}
    columns["map"] = data.Map(scale, columns=["pixels"])
    rows = data.parquet(
        folder, filter=[("part", "==", "train")], global_batch_size=32, shuffle=True, **columns
    )
    unseen = data.parquet(folder, filter=[("part", "==", "test")], global_batch_size=128, **columns)
    model.fit(rows, epochs=15, verbose=2)
    return model.evaluate(unseen, verbose=0)[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", default=os.path.abspath("digits.parquet"), help="path or fsspec URL"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    args = parser.parse_args()
    write_digits(args.folder)
    run = experiment.allreduce(partial(train, args.folder), num_workers=args.workers)
    print(f"accuracy {run.result:.4f} on unseen digits")
