"""Keras stages of Spark ML: in its tuning, and loaded by a program that did not save them."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit, TrainValidationSplitModel
from pyspark.sql import SparkSession

from sparkdl.ml import KerasEstimator
from tests.clusters.test_examples import TWO_CORES, needs, run_example
from tests.ml.test_keras_stages import QUIET, models, points, root

__all__ = ["models", "points", "root", "run_example"]

pytestmark = pytest.mark.slow

LOAD = """
import sys
from pyspark.ml import PipelineModel
from pyspark.ml.tuning import CrossValidatorModel
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").getOrCreate()
best = PipelineModel.load(sys.argv[1] + "/bestModel")
df = spark.createDataFrame([([float(n) for n in range(64)],)], "pixels array<double>")
from pyspark.ml.functions import array_to_vector
row = best.transform(df.select(array_to_vector("pixels").alias("pixels"))).first()
print("loaded:", len(row.probability), sum(row.probability), row.prediction)
"""


@pytest.mark.timeout(600)
@TWO_CORES
@pytest.mark.filterwarnings("default")
def test_a_validated_pipeline_is_loaded_by_another_program(
    run_example: Callable[..., str], tmp_path: Path
) -> None:
    printed = run_example("spark_ml.py", "--folder", str(tmp_path / "digits"))
    few, many = map(float, re.findall(r"0\.\d+", printed.splitlines()[-3]))
    assert many > few
    accuracy = re.search(r"^accuracy (0\.\d+) on unseen digits$", printed, re.MULTILINE)
    assert accuracy and float(accuracy[1]) > 0.93
    # Two folds of two networks, and the better network again.
    runs = sorted(path.parent.name for path in tmp_path.glob("runs/*/run.json"))
    assert len(runs) == 5
    assert runs[-1] in printed
    # The other program has no function `build`: the trained model does not need it.
    command = [sys.executable, "-c", LOAD, str(tmp_path / "digits")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    found = re.search(r"^loaded: 10 (\S+) (\d)\.0$", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    assert float(found[1]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.timeout(600)
@needs("torch")
@TWO_CORES
@pytest.mark.filterwarnings("default")
def test_a_module_of_pytorch_is_chosen_saved_and_loaded(
    run_example: Callable[..., str], tmp_path: Path
) -> None:
    printed = run_example("torch_estimator.py", "--folder", str(tmp_path / "digits"))
    few, many = map(float, re.findall(r"0\.\d+", printed.splitlines()[-3]))
    assert many > few
    accuracy = re.search(r"^accuracy (0\.\d+) on unseen digits$", printed, re.MULTILINE)
    assert accuracy and float(accuracy[1]) > 0.93
    runs = sorted(path.parent.name for path in tmp_path.glob("runs/*/run.json"))
    assert len(runs) == 5 and runs[-1] in printed


# Spark leaves its threads to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")
def test_a_grid_varies_the_function_of_the_model(
    models: Any, spark: SparkSession, points: Any, root: str, tmp_path: Path
) -> None:
    estimator = KerasEstimator(
        models.classifier, featuresCol=["a", "b"], epochs=3, seed=1, runOptions=QUIET
    )
    # A learning rate of 0 learns nothing.
    grid = ParamGridBuilder().addGrid(estimator.learning_rate, [0.0, 0.1]).build()
    split = TrainValidationSplit(
        estimator=estimator,
        estimatorParamMaps=grid,
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        parallelism=2,
        seed=0,
    )
    best = split.fit(points)
    assert best.validationMetrics[1] > best.validationMetrics[0]
    best.save(str(tmp_path / "saved"))
    again = TrainValidationSplitModel.load(str(tmp_path / "saved"))
    assert again.validationMetrics == best.validationMetrics
    assert again.transform(points).collect() == best.transform(points).collect()
    assert [list(each.values()) for each in again.getEstimatorParamMaps()] == [[0.0], [0.1]]
    assert again.getEstimator().model is models.classifier
