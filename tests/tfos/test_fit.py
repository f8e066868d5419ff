"""An estimator's fit on a real cluster, from DataFrame to predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.sql import SparkSession

from sparkdl.tfos import pipeline

pytestmark = pytest.mark.slow

WEIGHTS = (3.14, 1.618)


def train(args: Any, ctx: Any) -> None:
    """Fit a line on what this node is fed."""
    import keras

    from sparkdl.tfos import compat

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(args.learning_rate), "mse")
    feed = ctx.get_data_feed(input_mapping=args.input_mapping)
    while not feed.should_stop():
        batch = feed.next_batch(args.batch_size)
        if batch["x"]:
            model.train_on_batch(np.array(batch["x"]), np.array(batch["y"]))
    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")


def fails(args: Any, ctx: Any) -> None:
    raise OSError("the disk is full")


@pytest.fixture
def quiet_runs(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)


@pytest.mark.usefixtures("quiet_runs")
def test_linear_regression_finds_the_weights(lc: SparkSession, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    made = [(x.tolist(), float(x @ WEIGHTS)) for x in random.random((1000, 2))]
    df = lc.createDataFrame(made, "features array<double>, label double").coalesce(2)
    estimator = (
        pipeline.TFEstimator(train, {"learning_rate": 0.1})
        .setInputMapping({"features": "x", "label": "y"})
        .setClusterSize(2)
        .setEpochs(10)
        .setBatchSize(20)
        .setGraceSecs(0)
        .setExportDir(str(tmp_path / "model"))
    )
    fitted = Pipeline(stages=[estimator]).fit(df)
    [model] = fitted.stages
    model.setInputMapping({"features": "dense_input"}).setOutputMapping({"dense": "prediction"})
    units = lc.createDataFrame(
        [([1.0, 0.0],), ([0.0, 1.0],), ([0.0, 0.0],)], ["features"]
    ).coalesce(1)
    expected = fitted.transform(units).collect()
    [[a], [b], [c]] = [row.prediction for row in expected]
    assert (a - c, b - c) == pytest.approx(WEIGHTS, abs=0.05)
    fitted.save(str(tmp_path / "pipeline"))
    again = PipelineModel.load(str(tmp_path / "pipeline"))
    assert again.transform(units).collect() == expected


@pytest.mark.usefixtures("quiet_runs")
def test_a_node_that_fails_says_why(lc: SparkSession) -> None:
    estimator = pipeline.TFEstimator(fails, {}).setInputMapping({"id": "x"})
    with pytest.raises(Exception, match="the disk is full"):
        estimator.fit(lc.range(1000))
