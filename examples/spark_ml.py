"""A Keras model in a Pipeline of Spark ML: scaled, chosen by CrossValidator, saved, loaded again.

The images of scikit-learn's handwritten digits are vectors of 64 numbers. Two networks are compared
on two folds; the better one is trained again on all rows.

On a laptop, with embedded Spark:     python examples/spark_ml.py
As a batch job on a cluster:          spark-submit --master <master> examples/spark_ml.py
"""

import argparse
import tempfile
from typing import Any

import keras
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import MinMaxScaler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl.ml import KerasEstimator


# Registered, so that the stage can be saved.
@keras.saving.register_keras_serializable("examples")
def build(units: int = 64, learning_rate: float = 0.003) -> Any:
    """Return a compiled network; its parameters become params of the stage."""
    layers = [
        keras.layers.Input(shape=(64,)),
        keras.layers.Dense(units, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.Adam(learning_rate),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def digits(spark: SparkSession) -> DataFrame:
    """Return a row for each image: `pixels`, a vector of 64 numbers, and `label`."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = list(zip(images.tolist(), labels.tolist(), strict=True))
    df = spark.createDataFrame(rows, "pixels array<double>, label int")
    return df.withColumn("pixels", array_to_vector(F.col("pixels")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    parser.add_argument("--folder", help="where the model is saved; a temporary one by default")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("digits").getOrCreate()
    train_rows, unseen_rows = digits(spark).randomSplit([0.75, 0.25], seed=0)

    scaler = MinMaxScaler(inputCol="pixels", outputCol="features")
    estimator = KerasEstimator(build, epochs=10, numWorkers=args.workers, seed=7)
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    validator = CrossValidator(
        estimator=Pipeline(stages=[scaler, estimator]),
        estimatorParamMaps=ParamGridBuilder().addGrid(estimator.units, [4, 64]).build(),
        evaluator=evaluator,
        numFolds=2,
        seed=0,
    )
    chosen = validator.fit(train_rows)
    print(f"accuracies of 4 and 64 units: {', '.join(f'{m:.3f}' for m in chosen.avgMetrics)}")

    folder = args.folder or f"{tempfile.mkdtemp()}/digits"
    chosen.write().overwrite().save(folder)
    loaded = CrossValidatorModel.load(folder)
    print(f"trained by the run {loaded.bestModel.stages[1].getRunPath()}")
    accuracy = evaluator.evaluate(loaded.transform(unseen_rows))
    print(f"accuracy {accuracy:.4f} on unseen digits")
    spark.stop()
