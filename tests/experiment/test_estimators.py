"""Programs of tf.estimator with every role, where TensorFlow 2.15 is installed.

`make compat ENVIRONMENTS=tensorflow-2.15` runs these tests, see docs/estimators.md.
"""

import functools
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from tests.helpers.runs import quiet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("tensorflow_estimator") is None, reason="tf.estimator is not installed"
    ),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "estimator.py"
STEPS = 60


def train(model_dir: str, is_mirrored: bool) -> dict[str, Any]:
    """Train a classifier of two numbers, as programs did: RunConfig reads TF_CONFIG."""
    import numpy as np
    import tensorflow as tf

    def rows() -> Any:
        x = np.random.default_rng(0).normal(size=(256, 2)).astype("float32")
        labels = (x.sum(axis=1) > 0).astype("int32")
        return tf.data.Dataset.from_tensor_slices(({"x": x}, labels)).repeat().batch(16)

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if is_mirrored else None
    config = tf.estimator.RunConfig(
        model_dir=model_dir, train_distribute=strategy, save_checkpoints_steps=20
    )
    estimator = tf.estimator.DNNClassifier(
        [8],
        [tf.feature_column.numeric_column("x", (2,))],
        optimizer=lambda: tf.keras.optimizers.legacy.Adam(0.05),
        config=config,
    )
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(rows, max_steps=STEPS),
        tf.estimator.EvalSpec(rows, steps=4, start_delay_secs=0, throttle_secs=0),
    )
    return {
        "step": int(estimator.get_variable_value("global_step")),
        "workers": strategy.num_replicas_in_sync if strategy else config.num_worker_replicas,
        "servers": config.num_ps_replicas,
        "chief": config.is_chief,
    }


def assert_evaluated(folder: Path) -> None:
    """The evaluator has evaluated the last checkpoint, and has written events of its metrics."""
    import tensorflow as tf

    accuracies = {
        event.step: value.simple_value
        for file in (folder / "eval").glob("events.out.tfevents.*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
        if value.tag == "accuracy"
    }
    assert max(accuracies) >= STEPS
    assert accuracies[max(accuracies)] > 0.9


def test_a_chief_a_worker_a_server_and_an_evaluator(
    four_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    program = functools.partial(train, str(tmp_path), False)
    run = experiment.parameter_server(
        program, num_workers=1, num_ps=1, roles="all", evaluator=True, **quiet(root)
    )
    result = run.result
    assert result.pop("step") >= STEPS
    assert result == {"workers": 2, "servers": 1, "chief": True}
    assert_evaluated(tmp_path)


@pytest.mark.parametrize("evaluator", [True, False])
def test_mirrored_workers(
    evaluator: bool, four_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    program = functools.partial(train, str(tmp_path), True)
    run = experiment.allreduce(program, num_workers=2, evaluator=evaluator, **quiet(root))
    assert run.result == {"step": STEPS, "workers": 2, "servers": 0, "chief": True}
    if evaluator:
        assert_evaluated(tmp_path)


@pytest.mark.parametrize("arguments", [[], ["--mirrored"]], ids=["servers", "mirrored"])
def test_the_example_learns(arguments: list[str], tmp_path: Path) -> None:
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))}
    env = {**outer, "SPARK_LOCAL_IP": "127.0.0.1", "SPARKDL_ROOT": str(tmp_path / "runs")}
    command = [sys.executable, str(EXAMPLE), *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    accuracy = re.search(r"^accuracy (0\.\d+) on unseen digits$", done.stdout, re.MULTILINE)
    assert accuracy, done.stderr
    assert float(accuracy[1]) > 0.93
