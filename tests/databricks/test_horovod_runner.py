"""Functions started as by Databricks' HorovodRunner."""

import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from sparkdl import HorovodRunner, experiment
from sparkdl.errors import ConfigError, TrainingFailedError
from sparkdl.runs import RunState
from tests.helpers.processes import eventually, is_alive

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_a_folder(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path / "runs"))


def train(rate: float = 1.0) -> Any:
    import keras

    import sparkdl.horovod.tensorflow.keras as hvd
    from sparkdl.horovod import log_to_driver
    from sparkdl.horovod.tensorflow.keras import LogCallback

    hvd.init()
    log_to_driver(f"rank {hvd.rank()} of {hvd.size()}" + "." * 5000)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * rate)), "mse")
    x = np.arange(8.0)[:, None]
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    if hvd.rank() == 0:
        callbacks.append(LogCallback(per_batch_log=True))
    history = model.fit(x, x, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    place = (hvd.rank(), hvd.size())
    return {"loss": history.history["loss"], "place": place, "weights": model.get_weights()}


def test_ranks_in_slots_of_spark(capfd: pytest.CaptureFixture[str]) -> None:
    result = HorovodRunner(np=2, driver_log_verbosity="all").run(train, rate=0.1)
    assert (result["place"], len(result["loss"])) == ((0, 2), 2)
    assert [array.shape for array in result["weights"]] == [(1, 1), (1,)]
    text = capfd.readouterr().out
    assert "rank 0 of 2" in text
    assert "rank 1 of 2" in text
    assert "." * 3900 in text
    assert "." * 4000 not in text
    assert text.count("batch 1 has ended: loss ") == 2
    assert text.count("epoch 1 has ended: loss ") == 1


def test_all_slots(spark: SparkSession) -> None:
    def size() -> int:
        import sparkdl.horovod.tensorflow as hvd

        hvd.init()
        return hvd.size()

    assert HorovodRunner(np=0).run(size) == spark.sparkContext.defaultParallelism


def test_minus_one_calls_the_function_here() -> None:
    found: list[Any] = []

    def here(value: int) -> int:
        import sparkdl.horovod.tensorflow as hvd

        hvd.init()
        found.append((os.getpid(), hvd.rank(), hvd.size()))
        return value

    assert HorovodRunner(np=-1).run(here, value=42) == 42
    assert found == [(os.getpid(), 0, 1)]


def test_local_ranks_need_no_slot_of_the_cluster(capfd: pytest.CaptureFixture[str]) -> None:
    """The application of this process has two slots."""

    def told(factor: int) -> dict[str, Any]:
        import sparkdl.horovod.tensorflow as hvd

        hvd.init()
        print("printed by rank", hvd.rank())
        total = hvd.allreduce(float(hvd.rank()), op=hvd.Sum, name="total")
        return {"total": float(total) * factor, "size": hvd.size()}

    assert HorovodRunner(np=-3).run(told, factor=2) == {"total": 6.0, "size": 3}
    assert "printed by rank 2" in capfd.readouterr().out
    assert experiment.load().kind == "horovod"


def test_the_error_of_a_local_rank_is_told() -> None:
    def failing() -> None:
        raise ValueError("no such column")

    with pytest.raises(TrainingFailedError, match="ValueError: no such column"):
        HorovodRunner(np=-2).run(failing)


PROGRAM = """
from sparkdl import HorovodRunner

def train():
    import os, time

    import sparkdl.horovod.tensorflow as hvd

    hvd.init()
    print("rank", hvd.rank(), "is", os.getpid(), flush=True)
    time.sleep(300)

HorovodRunner(np=-2).run(train)
"""


@pytest.mark.parametrize(
    "signum", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGKILL]
)
def test_local_ranks_end_with_their_driver(signum: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout
        told = filter(None, (re.search(r"rank \d is (\d+)", line) for line in driver.stdout))
        ranks = [int(match[1]) for match in itertools.islice(told, 2)]
        [run] = (tmp_path / "runs").iterdir()
        driver.send_signal(signum)
        driver.communicate(timeout=120)
    assert eventually(lambda: experiment.load(str(run)).state == RunState.CANCELLED)
    assert eventually(lambda: not any(map(is_alive, ranks)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"np": "2"}, "np is '2'; expected a whole number"),
        ({"np": 2, "driver_log_verbosity": "some"}, "expected one of 'all', 'log_callback_only'"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HorovodRunner(**arguments)
