"""Two workers train on a Spark DataFrame of scikit-learn's handwritten digits.

On a laptop, with embedded Spark:     python examples/dataframe.py
As a batch job on a cluster:          spark-submit --master <master> examples/dataframe.py
"""

import argparse

from pyspark.sql import DataFrame, SparkSession

from sparkdl import data, distribute, experiment


def digits(spark: SparkSession) -> DataFrame:
    """Return a row for each image: `pixels`, an array of 64 numbers, and `digit`."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = (images / 16.0).tolist()
    rows = list(zip(pixels, labels.tolist(), strict=True))
    return spark.createDataFrame(rows, "pixels array<float>, digit int")


def train() -> float:
    """Train a small network on this worker's share of the rows; return its accuracy."""
    import keras

    columns = {"feature_cols": "pixels", "label_cols": "digit"}
    with distribute.strategy().scope():
        model = keras.Sequential(
            [
                keras.layers.Input(shape=(64,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    rows = data.dataset("train", global_batch_size=32, shuffle=True, **columns)
    unseen = data.dataset("validation", global_batch_size=128, **columns)
    model.fit(rows, epochs=15, validation_data=unseen, verbose=2)
    return model.evaluate(unseen, verbose=0)[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("digits").getOrCreate()
    train_rows, validation_rows = digits(spark).randomSplit([0.75, 0.25], seed=0)
    run = experiment.allreduce(
        train, num_workers=args.workers, data={"train": train_rows, "validation": validation_rows}
    )
    print(f"accuracy {run.result:.4f} on unseen digits")
