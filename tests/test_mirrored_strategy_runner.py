"""`MirroredStrategyRunner` on real executors: workers, strategies, the driver, encryption."""

import os
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import MirroredStrategyRunner
from sparkdl.errors import ConfigError, PreflightError, TrainingFailedError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def root_of_runs(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)


@pytest.fixture
def conf(three_executors: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set keys of the Spark configuration for one test."""
    from sparkdl.cluster.spark import SparkCluster

    original = SparkCluster.conf

    def use(**keys: str) -> None:
        named = {key.replace("__", "."): value for key, value in keys.items()}
        monkeypatch.setattr(
            SparkCluster, "conf", lambda self, key: named.get(key, original(self, key))
        )

    return use


def seen(word: str) -> list[Any]:
    """What a worker sees; `word` shows that arguments arrive."""
    import json

    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    return [word, len(cluster["worker"]), os.environ["CUDA_VISIBLE_DEVICES"]]


def test_the_function_runs_in_the_scope_of_a_strategy(three_executors: SparkSession) -> None:
    def train(batch: int) -> dict[str, Any]:
        import keras
        import numpy as np
        import tensorflow as tf

        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        loss = model.fit(np.ones((8, 2)), np.ones(8), batch_size=batch, verbose=0).history["loss"]
        return {"loss": loss, "workers": tf.distribute.get_strategy().num_replicas_in_sync}

    returned = MirroredStrategyRunner(num_slots=2, use_gpu=False).run(train, batch=4)
    assert returned["workers"] == 2
    assert len(returned["loss"]) == 1


def test_a_function_with_its_own_strategy(three_executors: SparkSession) -> None:
    runner = MirroredStrategyRunner(num_slots=2, use_gpu=False, use_custom_strategy=True)
    assert runner.get_num_tasks() == 2
    assert runner.sc is three_executors.sparkContext
    assert runner.run(seen, word="hello") == ["hello", 2, ""]

    def fails() -> None:
        raise OSError("the disk is full")

    with pytest.raises(TrainingFailedError, match="the disk is full"):
        runner.run(fails)


def test_refused_before_anything_starts(three_executors: SparkSession, conf: Any) -> None:
    with pytest.raises(ValueError, match="num_slots is 0"):
        MirroredStrategyRunner(num_slots=0)
    with pytest.raises(ConfigError, match=r"expected 'gpu'"):
        MirroredStrategyRunner(num_slots=1, gpu_resource_name="accelerator")
    with pytest.raises(PreflightError, match="use_gpu=False"):
        MirroredStrategyRunner(num_slots=2)
    conf(spark__task__resource__gpu__amount="2")
    assert [MirroredStrategyRunner(num_slots=n).get_num_tasks() for n in (1, 2, 3, 8)] == [
        *(1, 1, 2, 4)
    ]
    conf(spark__task__resource__gpu__amount="0.5")
    with pytest.raises(ConfigError, match="whole number"):
        MirroredStrategyRunner(num_slots=2)


def test_encryption_is_never_lost_in_silence(three_executors: SparkSession, conf: Any) -> None:
    def run() -> Any:
        return MirroredStrategyRunner(num_slots=1, use_gpu=False, use_custom_strategy=True).run(
            lambda: 5
        )

    conf(spark__ssl__enabled="true")
    with pytest.raises(PreflightError, match=r"ignoreSsl=true"):
        run()
    conf(spark__ssl__enabled="true", tensorflow__spark__distributor__ignoreSsl="true")
    assert run() == 5


@pytest.mark.parametrize("visible", [None, "10,11,12,13"])
def test_local_mode_uses_the_gpus_of_the_driver(
    three_executors: SparkSession, visible: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gpus:
        addresses = ("0", "1", "2", "3")

    resources = property(lambda self: {"gpu": Gpus()})
    monkeypatch.setattr(type(three_executors.sparkContext), "resources", resources)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    def train(name: str) -> str | None:
        return os.environ.get(name)

    for count in (1, 3):
        runner = MirroredStrategyRunner(num_slots=count, local_mode=True, use_custom_strategy=True)
        gpus = runner.run(train, name="CUDA_VISIBLE_DEVICES").split(",")
        assert len(set(gpus)) == count
        assert set(gpus) <= set((visible or "0,1,2,3").split(","))
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    with pytest.raises(ValueError, match="driver has 4 GPUs"):
        MirroredStrategyRunner(num_slots=5, local_mode=True).run(train, name="x")


def test_local_mode_without_gpus_is_one_process(three_executors: SparkSession) -> None:
    runner = MirroredStrategyRunner(
        num_slots=1, local_mode=True, use_gpu=False, use_custom_strategy=True
    )
    assert runner.run(os.getpid) == os.getpid()
    with pytest.raises(ValueError, match="expected 1"):
        MirroredStrategyRunner(num_slots=2, local_mode=True, use_gpu=False).run(os.getpid)
