"""Horovod's optimizers, tapes and callbacks where ranks differ, in real processes."""

from typing import Any

import pytest

from tests.helpers.gang import launch

TF_KERAS = {"TF_USE_LEGACY_KERAS": "1"}


@pytest.fixture(scope="module")
def keras_3(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("keras")
    return launch("horovod_training.keras_3", folder, "worker", "worker")


@pytest.fixture(scope="module")
def tf_keras(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tf_keras")
    return launch("horovod_training.tf_keras", folder, "worker", "worker", env=TF_KERAS)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["keras_3", "tf_keras"])
def test_ranks_keep_statistics_and_momentums_of_their_own_layers(
    package: str, request: pytest.FixtureRequest
) -> None:
    first, second = (found["local_layers"] for found in request.getfixturevalue(package))
    assert set(first) == ({"new"} if package == "keras_3" else {"new", "legacy"})
    for kind in first:
        assert first[kind]["kept"] and second[kind]["kept"]
        assert first[kind]["slots"] != second[kind]["slots"]
        assert (first[kind]["mean"], second[kind]["mean"]) == ([1.5], [3.0])
        assert first[kind]["shared"] == second[kind]["shared"]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["keras_3", "tf_keras"])
@pytest.mark.parametrize("kind", ["arrays", "known", "unknown"])
def test_all_epochs_end_when_the_rows_of_one_rank_run_out(
    kind: str, package: str, request: pytest.FixtureRequest
) -> None:
    first, second = (found["uneven"][kind] for found in request.getfixturevalue(package))
    assert first == second
    assert first[:2] == [6, 2]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["keras_3", "tf_keras"])
def test_one_rank_evaluates_its_own_rows_alone(
    package: str, request: pytest.FixtureRequest
) -> None:
    first, second = (found["alone"] for found in request.getfixturevalue(package))
    assert first["losses"] == pytest.approx([first["own"]] * 2, rel=1e-4)
    average = (first["own"] + second["own"]) / 2
    assert first["validated"] == second["validated"] == pytest.approx(average, rel=1e-4)


@pytest.mark.slow
def test_sums_of_two_batches_are_applied_in_a_session(keras_3: Any) -> None:
    assert [found["session_passes"] for found in keras_3] == [[0.0, -4.0, -4.0, -12.0]] * 2


@pytest.mark.slow
def test_gradients_of_a_tape_are_not_reduced_again(keras_3: Any) -> None:
    assert [found["once"] for found in keras_3] == [[-1.0, -3.0, -5.0, -7.0]] * 2


@pytest.mark.slow
def test_gradients_on_which_ranks_disagree_are_an_error_of_horovod(keras_3: Any) -> None:
    error = "FailedPreconditionError"
    for found in keras_3:
        assert found["disagreements"] == {
            name: [error, error, 2.0] for name in ("shape", "none", "rows")
        }


@pytest.mark.slow
def test_gradients_that_a_program_asks_for_are_reduced_once(tf_keras: Any) -> None:
    assert [found["get_gradients"] for found in tf_keras] == [-1.5, -1.5]


@pytest.mark.slow
def test_half_precision_of_tf_keras_skips_a_step_on_all_ranks(tf_keras: Any) -> None:
    first, second = (found["half_precision"] for found in tf_keras)
    assert first == second
    assert first["kind"] == "LossScaleOptimizerV3"
    assert first["scale"] < 2.0**15
    assert "`tape` is required" in first["without tape"]


def test_an_elastic_state_counts_completed_epochs() -> None:
    import keras
    import numpy as np

    import sparkdl.horovod.keras as hvd

    state = hvd.elastic.State(epoch=3, batch=0)
    seen: list[list[int]] = []
    state.commit = lambda: seen.append([state.epoch, state.batch])
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    x = np.zeros((3, 1))
    for _ in range(2):
        model.fit(x, x, batch_size=1, epochs=1, verbose=0, callbacks=callbacks)
    assert seen == [[3, 1], [4, 0], [4, 1], [5, 0]]
