"""Linear regression as a Spark ML Pipeline of TensorFlowOnSpark; it recovers 3.14 and 1.618.

The imports were `from tensorflowonspark import ...`; only the Keras model has changed besides. The
estimator starts a cluster of TensorFlow nodes, feeds the DataFrame to the nodes, and returns a
model that adds predictions to other DataFrames.

On a laptop, with embedded Spark:     python examples/tfos/linear_regression.py
As a batch job on a cluster:          spark-submit --master <master> \
                                          examples/tfos/linear_regression.py --export_dir <URL>
"""

import argparse
import os
from typing import Any

import numpy as np
from pyspark.ml import Pipeline
from pyspark.sql import SparkSession

from sparkdl.tfos import compat, pipeline

WEIGHTS = (3.14, 1.618)


def main_fun(args: Any, ctx: Any) -> None:
    """Run on every node: train on the rows that Spark feeds to the node."""
    import keras

    model = keras.Sequential([keras.layers.Input(shape=(2,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(args.learning_rate), loss="mse")

    feed = ctx.get_data_feed(input_mapping=args.input_mapping)
    while not feed.should_stop():
        batch = feed.next_batch(args.batch_size)
        if batch["x"]:
            model.train_on_batch(np.array(batch["x"]), np.array(batch["y"]))

    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster_size", type=int, default=1, help="nodes, each in a slot")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--export_dir", default=os.path.abspath("linear_model"))
    parser.add_argument("--learning_rate", type=float, default=0.05)
    args = parser.parse_args()

    spark = SparkSession.builder.appName("linear_regression").getOrCreate()
    features = np.random.default_rng(7).random((1000, 2))
    rows = [(x.tolist(), float(x @ WEIGHTS)) for x in features]
    train = spark.createDataFrame(rows, ["features", "label"])

    estimator = (
        pipeline.TFEstimator(main_fun, args)
        .setInputMapping({"features": "x", "label": "y"})
        .setClusterSize(args.cluster_size)
        .setEpochs(args.epochs)
        .setBatchSize(20)
        .setGraceSecs(0)
        .setExportDir(args.export_dir)
    )
    fitted = Pipeline(stages=[estimator]).fit(train)

    # The inputs and outputs of the exported model have other names than the columns in training.
    model = fitted.stages[0]
    model.setInputMapping({"features": "dense_input"}).setOutputMapping({"dense": "prediction"})
    units = spark.createDataFrame([([0.0, 0.0],), ([1.0, 0.0],), ([0.0, 1.0],)], ["features"])
    zero, first, second = [row.prediction[0] for row in fitted.transform(units).collect()]
    print(f"weights {first - zero:.3f} and {second - zero:.3f}; expected 3.14 and 1.618")
    spark.stop()
