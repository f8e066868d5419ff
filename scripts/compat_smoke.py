"""Search, train on two workers and predict, in a minute: a smoke test of an environment's versions.

    python scripts/compat_smoke.py

`make compat-smoke` runs it in environments of scripts/compatibility.py. What it checks depends on
neither load nor time.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from sparkdl import context, data, distribute, experiment, search

EPOCHS, ROWS = 3, 64


def score(x: float) -> float:
    """Report a value at each step, so that the pruner has something to compare."""
    for step in range(4):
        context.report(x * step, step)
    return x * 3


def train(folder: str) -> dict[str, Any]:
    """Fit a linear model on this worker's share of the rows; leave its weights in a folder."""
    import keras

    from sparkdl.keras import save

    with distribute.strategy().scope():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Input((4,)), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
    rows = data.dataset(global_batch_size=8, feature_cols="x", label_cols="y")
    losses = model.fit(rows, epochs=EPOCHS, verbose=0).history["loss"]
    weights = np.concatenate([each.ravel() for each in model.get_weights()])
    np.save(Path(folder, f"{context.rank}.npy"), weights)
    return {"losses": losses, "loss": losses[-1], "model": save(model, "linear.keras")}


def check(is_right: bool, found: Any) -> None:
    """End the program if something is wrong, and show what was found."""
    if not is_right:
        raise AssertionError(f"not as expected: {found}")


def check_search(options: dict[str, Any]) -> None:
    """Search with a pruner: the best trial is the one with the largest parameter."""
    space = {"x": search.Float(0, 1)}
    run = experiment.search(score, space, num_trials=6, pruner="asha", seed=1, **options)
    check(run.state == "COMPLETE", run)
    check({trial.state for trial in run.trials} <= {"COMPLETE", "PRUNED"}, run)
    done = [trial for trial in run.trials if trial.state == "COMPLETE"]
    check(run.best.value == max(trial.params["x"] for trial in done) * 3, run)


def check_training(rows: DataFrame, folder: str, options: dict[str, Any]) -> Any:
    """Return a run on two workers: their weights have the same bits, and the loss falls."""
    run = experiment.allreduce(lambda: train(folder), num_workers=2, data=rows, seed=1, **options)
    check(run.state == "COMPLETE", run)
    first, second = (np.load(Path(folder, f"{rank}.npy")) for rank in range(2))
    check(first.tobytes() == second.tobytes(), (first, second))
    losses = run.result["losses"]
    check(len(losses) == EPOCHS, losses)
    check(losses[-1] < losses[0], losses)
    return run


def check_prediction(run: Any, rows: DataFrame, weights: Any) -> None:
    """Predict with the model of a run: the values are those of its weights."""
    found = experiment.predict(run, rows, feature_cols="x", prediction_col="p").collect()
    check(len(found) == ROWS, len(found))
    for row in found:
        predicted = float(np.ravel(row.p)[0])
        check(abs(predicted - (np.dot(row.x, weights[:4]) + weights[4])) < 1e-4, row)


def main() -> None:
    """Run the checks in one Spark application, and tell the time of each."""
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin:4.0f} s: {text}", file=sys.stderr, flush=True)

    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    builder = SparkSession.builder.master("local[2]").config(map=settings)
    spark = builder.getOrCreate()
    numbers = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    values = [(x.tolist(), float(x.sum())) for x in numbers]
    rows = spark.createDataFrame(values, "x array<float>, y float")
    with tempfile.TemporaryDirectory() as folder:
        options = {"root": f"{folder}/runs", "progress": False}
        check_search(options)
        say("search with a pruner")
        run = check_training(rows, folder, options)
        say("training of two workers on a DataFrame")
        check_prediction(run, rows, np.load(f"{folder}/0.npy"))
        say("predictions of a DataFrame")
        spark.stop()


if __name__ == "__main__":
    main()
