"""A PyTorch network in a Pipeline of Spark ML: its size is chosen by CrossValidator.

The images of scikit-learn's handwritten digits are vectors of 64 numbers. Two networks are compared
on two folds; the better one is trained again on all rows, saved and loaded.

    pip install 'sparkdl-platform[torch]'
    python examples/torch_estimator.py
    spark-submit --master <master> examples/torch_estimator.py
"""

import argparse
import tempfile
from typing import Any

import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import MinMaxScaler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparkdl.ml import TorchEstimator


def build(units: int = 64, learning_rate: float = 0.003) -> Any:
    """Return a network and its optimizer; the parameters become params of the stage."""
    network = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, kernel_size=3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, units),
        nn.ReLU(),
        nn.Linear(units, 10),
    )
    return network, torch.optim.Adam(network.parameters(), learning_rate)


def accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the share of right answers in a batch."""
    return (outputs.argmax(dim=1) == labels).float().mean()


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
    loss = nn.CrossEntropyLoss()
    estimator = TorchEstimator(
        build, loss=loss, metrics=[accuracy], epochs=10, numWorkers=args.workers, seed=7
    )
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    validator = CrossValidator(
        estimator=Pipeline(stages=[scaler, estimator]),
        estimatorParamMaps=ParamGridBuilder().addGrid(estimator.units, [2, 64]).build(),
        evaluator=evaluator,
        numFolds=2,
        seed=0,
    )
    chosen = validator.fit(train_rows)
    print(f"accuracies of 2 and 64 units: {', '.join(f'{m:.3f}' for m in chosen.avgMetrics)}")

    folder = args.folder or f"{tempfile.mkdtemp()}/digits"
    chosen.bestModel.write().overwrite().save(folder)
    loaded = PipelineModel.load(folder)
    print(f"trained by the run {loaded.stages[1].getRunPath()}")
    print(f"accuracy {evaluator.evaluate(loaded.transform(unseen_rows)):.4f} on unseen digits")
    spark.stop()
