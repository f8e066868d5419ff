"""A node learns from a stream of handwritten digits, one micro-batch after the other.

    python examples/tfos/stream_digits.py

A query of Structured Streaming reads files as they arrive; `foreachBatch` feeds each micro-batch to
the node, which stays alive between the batches.
"""

import argparse
import os
import tempfile
from typing import Any

import keras
from pyspark.sql import DataFrame, SparkSession
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sparkdl.tfos import TFCluster


def main_fun(args: Any, ctx: Any) -> None:
    """Learn from all batches; save the model when the stream has ended."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.layers.Input(shape=(64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    for images, labels in ctx.get_data_feed().as_dataset(args.batch_size):
        model.train_on_batch(images / 16.0, labels)
    model.save(args.model)


def main() -> None:
    """Write the digits to files; learn from the stream of files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    # Two slots for plain Python; spark-submit ignores this variable.
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell")
    spark = SparkSession.builder.appName("digits").getOrCreate()
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=0.25, random_state=0
    )
    with tempfile.TemporaryDirectory() as folder:
        args.model = os.path.join(folder, "digits.keras")
        cluster = TFCluster.run(
            spark.sparkContext, main_fun, args, 1, 0, input_mode=TFCluster.InputMode.SPARK
        )
        rows = list(zip(x_train.tolist(), y_train.tolist(), strict=True))
        schema = "image array<float>, label long"
        for begin in range(0, len(rows), 500):
            part = spark.createDataFrame(rows[begin : begin + 500], schema)
            part.coalesce(1).write.mode("append").parquet(f"{folder}/source")

        def feed(batch: DataFrame, number: int) -> None:
            cluster.train(batch, args.epochs)

        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        query = stream.parquet(f"{folder}/source").writeStream.foreachBatch(feed)
        query.trigger(availableNow=True).start().awaitTermination()
        cluster.shutdown()
        model = keras.saving.load_model(args.model)
    accuracy = (model.predict(x_test / 16.0, verbose=0).argmax(axis=1) == y_test).mean()
    print(f"accuracy {accuracy:.4f} on unseen digits")


if __name__ == "__main__":
    main()
