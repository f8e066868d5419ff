"""Ray Tune's part of `search.py`, which starts this program in an environment of its own.

The program writes JSON lines: first the versions of its packages, then, for each search that it
reads, the result. It ends when its standard input is closed. Ray listens on 127.0.0.1 only, and is
shut down after each search.

`search.py` imports the training function from here, so that both sides use the same code.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

# One core for each trial, also in TensorFlow's thread pools, and no GPU.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from lib.peer import own_stdout

EPOCHS = 16
METRIC = "val_accuracy"
SLOTS = 2
STORE_BYTES = 100 << 20  # Nothing large goes through Ray's store.


def fit(
    report: Callable[[float, int], None],
    learning_rate: float,
    units: int,
    dropout: float,
    batch_size: int,
) -> float:
    """Train a small network on scikit-learn's digits.

    Args:
        report: called after each epoch with the validation accuracy and the number of the epoch.
        learning_rate, units, dropout, batch_size: the hyperparameters.

    Returns:
        The last validation accuracy.
    """
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0)
    x, x_test, y, y_test = split
    layers = [keras.layers.Input((64,)), keras.layers.Dense(units, activation="relu")]
    layers += [keras.layers.Dropout(dropout), keras.layers.Dense(10, activation="softmax")]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.Adam(learning_rate)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    reporter = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: report(float(logs[METRIC]), epoch)
    )
    history = model.fit(
        x,
        y,
        batch_size=batch_size,
        epochs=EPOCHS,
        validation_data=(x_test, y_test),
        callbacks=[reporter],
        verbose=0,
    ).history
    return float(history[METRIC][-1])


def train(config: dict[str, Any]) -> None:
    """Run `fit` as a trainable of Ray Tune; the last reported value counts."""
    from ray import tune

    fit(lambda value, _: tune.report({METRIC: value}), **config)


def search(settings: dict[str, Any]) -> dict[str, Any]:
    """Run one search in a Ray cluster of its own.

    Args:
        settings: `pruner` (`asha` or None), `trials`, `seed`, and `reuse`: True if trials share
            processes.
    """
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    space = {
        "learning_rate": tune.loguniform(1e-4, 1e-1),
        "units": tune.lograndint(8, 129),
        "dropout": tune.uniform(0.0, 0.6),
        "batch_size": tune.choice([16, 32, 64, 128]),
    }
    scheduler = ASHAScheduler(max_t=EPOCHS, reduction_factor=4) if settings["pruner"] else None
    tuning = tune.TuneConfig(
        metric=METRIC,
        mode="max",
        num_samples=settings["trials"],
        search_alg=OptunaSearch(seed=settings["seed"]),
        scheduler=scheduler,
        max_concurrent_trials=SLOTS,
        reuse_actors=settings["reuse"],
    )
    with tempfile.TemporaryDirectory(
        prefix="sparkdl-"
    ) as folder:  # The names of Unix sockets must be short.
        ray.init(
            num_cpus=SLOTS,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            tuner = tune.Tuner(
                tune.with_resources(train, {"cpu": 1}),
                param_space=space,
                tune_config=tuning,
                run_config=tune.RunConfig(storage_path=f"{folder}/results", verbose=0),
            )
            results = tuner.fit()
        finally:
            ray.shutdown()
    if results.errors:
        raise RuntimeError(f"a trial of Ray Tune failed: {results.errors[0]}")
    return {"best": results.get_best_result().metrics[METRIC], "trials": len(results)}


def main() -> None:
    """Run one search for each line of standard input."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    pipe = own_stdout()
    packages = ("ray", "optuna", "tensorflow-cpu", "keras", "scikit-learn")
    print(json.dumps({name: importlib.metadata.version(name) for name in packages}), file=pipe)
    for line in sys.stdin:
        print(json.dumps(search(json.loads(line))), file=pipe)


if __name__ == "__main__":
    main()
