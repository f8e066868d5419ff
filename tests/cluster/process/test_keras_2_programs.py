"""Advice beside the errors that Keras 3 raises for programs of Keras 2, in every verb."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment, hops
from sparkdl.cluster.process.keras_2_programs import keras_2_advice
from sparkdl.errors import TrialFailedError
from sparkdl.horovod import spark as horovod_spark
from sparkdl.tfos import TFCluster

OWN = "unexpected keyword argument 'experimental_run_tf_function'"
ADVICE = "TF_USE_LEGACY_KERAS=1"


def old_program(*unused: Any) -> float:
    import keras

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", experimental_run_tf_function=False)
    return 1.0


def tfos_cluster() -> None:
    context = SparkSession.active().sparkContext
    TFCluster.run(context, old_program, [], 1, 0).shutdown()


VERBS: dict[str, Callable[[], Any]] = {
    "launch": lambda: experiment.launch(old_program, progress=False),
    "horovod": lambda: experiment.horovod(old_program, num_workers=1, progress=False),
    "horovod.spark.run": lambda: horovod_spark.run(old_program, num_proc=1, verbose=0),
    "hops": lambda: hops.experiment.launch(old_program),
    "tfos": tfos_cluster,
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_the_error_and_the_advice(
    verb: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path))
    with pytest.raises(TrialFailedError) as raised:
        VERBS[verb]()
    assert OWN in str(raised.value)
    assert ADVICE in str(raised.value)


def _model() -> Any:
    import keras

    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])


def _of_keras(name: str) -> Any:
    import keras

    return getattr(keras, name)


PROGRAMS: dict[str, Callable[[], Any]] = {
    "compile": lambda: _model().compile("sgd", "mse", experimental_run_tf_function=False),
    "variables": lambda: _of_keras("optimizers").SGD().variables(),
    "checkpoint": lambda: _of_keras("callbacks").ModelCheckpoint("x"),
    "weights": lambda: _of_keras("callbacks").ModelCheckpoint("x.h5", save_weights_only=True),
    "save_weights": lambda: _model().save_weights("x.h5"),
    "save": lambda: _model().save("x"),
    "load_weights": lambda: _model().load_weights("folder/checkpoint"),
    "lr": lambda: _of_keras("optimizers").SGD(lr=0.1),
    "get_lr": lambda: _of_keras("optimizers").SGD().lr,
    "fit_generator": lambda: _model().fit_generator(None),
    "get_value": lambda: _of_keras("backend").get_value(1),
}


def _error(call: Callable[[], Any]) -> Exception:
    with pytest.raises((TypeError, ValueError, AttributeError)) as raised:
        call()
    return raised.value


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_errors_of_keras_3_for_programs_of_keras_2_have_advice(program: str) -> None:
    assert ADVICE in (keras_2_advice(_error(PROGRAMS[program])) or "")


def test_other_errors_have_none() -> None:
    import keras

    values: Any = [1]
    calls: list[Callable[[], Any]] = [
        lambda: values(),
        lambda: keras.layers.Dense(1, no_such_argument=1),
        lambda: keras.layers.Dense(-1),
        lambda: keras.no_such_name,
    ]
    assert [keras_2_advice(_error(call)) for call in calls] == [None] * len(calls)


def test_keras_2_itself_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    error = _error(PROGRAMS["variables"])
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert keras_2_advice(error) is None
