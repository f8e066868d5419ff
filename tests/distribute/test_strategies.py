"""Real gangs: several processes train one model, with Keras 3, tf_keras and custom loops."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.gang import launch
from tests.helpers.tf_keras import TF_KERAS, needs_tf_keras

pytestmark = pytest.mark.slow

JAX = {
    "KERAS_BACKEND": "jax",
    "JAX_PLATFORMS": "cpu",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    "KERAS_DISTRIBUTION_JOB_ADDRESSES": "{address}",
    "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
    "KERAS_DISTRIBUTION_PROCESS_ID": "{rank}",
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of one process outside a gang."""
    return launch(
        "strategies.everything", tmp_path_factory.mktemp("alone"), "worker", kind="local"
    )[0]


EACH_KERAS = [
    pytest.param({}, id="keras"),
    pytest.param(TF_KERAS, id="tf_keras", marks=[needs_tf_keras, pytest.mark.thorough]),
]


@pytest.fixture(scope="module", params=EACH_KERAS)
def gang(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a gang of two, and the results of its ranks."""
    folder = tmp_path_factory.mktemp("gang")
    (folder / "ranks" / "0").mkdir(parents=True)
    return folder, launch("strategies.everything", folder, "worker", "worker", env=request.param)


def test_all_ranks_end_with_the_same_bits(gang: Any) -> None:
    _, (first, second) = gang
    assert first == second


def test_fit_equals_one_process_with_the_global_batch(gang: Any, alone: Any) -> None:
    _, (first, _) = gang
    for name, values in alone["fits"]["history"].items():
        assert first["fits"]["history"][name] == pytest.approx(values, rel=1e-4), name


@pytest.mark.thorough
def test_fit_of_four_workers_equals_one_process(alone: Any, tmp_path: Path) -> None:
    first, *others = launch("strategies.fits", tmp_path, *["worker"] * 4)
    assert others == [first] * 3
    assert first["history"]["loss"] == pytest.approx(alone["fits"]["history"]["loss"], rel=1e-4)


def test_moving_statistics_are_averaged_before_each_validation(gang: Any) -> None:
    """The validated statistics are also those that are saved."""
    _, (first, _) = gang
    validated, saved, validated_2, saved_2, _ = first["averages"]["seen"]
    assert (validated, validated_2) == (saved, saved_2)
    assert saved != saved_2
    assert not first["averages"]["evaluate_changes"]


def test_fit_evaluate_and_predict_accept_all_kinds_of_data(gang: Any, alone: Any) -> None:
    for answers in (gang[1][0]["inputs"], alone["inputs"]):
        assert answers["loss"] == pytest.approx(answers["expected_loss"], rel=1e-4)
        assert answers["steps"] == 4
        assert set(answers["rows"].values()) == {True}, answers["rows"]


def test_mean_averages_numbers_and_dicts(gang: Any, alone: Any) -> None:
    assert gang[1][0]["mean"] == [0.5, {"a": 10.0, "b": 0.5}]
    assert alone["mean"] == [0.0, {"a": 10.0, "b": 0.0}]


def test_early_stopping_makes_one_decision_for_all_ranks(gang: Any, alone: Any) -> None:
    stopped = gang[1][0]["stops"]
    assert (stopped["epochs"], stopped["restored_first"]) == (3, True)
    assert alone["stops"]["epochs"] == 5


def test_callbacks_of_keras_restart_as_in_one_process(gang: Any, alone: Any) -> None:
    expected, found = alone["restarts"], gang[1][0]["restarts"]
    if found is None:
        pytest.skip("tf_keras coordinates the workers' backups itself")
    assert found["epochs"] == expected["epochs"] == [2, 3, 4]
    for name, values in expected["logs"].items():
        assert found["logs"][name] == pytest.approx(values, rel=1e-4), name
    for part in ("weights", "best"):
        for values, others in zip(expected[part], found[part], strict=True):
            assert others == pytest.approx(values, rel=1e-3, abs=1e-5), part


def test_one_model_is_saved_and_loads_in_plain_keras(
    gang: Any, request: pytest.FixtureRequest
) -> None:
    folder, (first, _) = gang
    assert [file.name for file in (folder / "models").iterdir()] == ["best.keras"]
    env = request.node.callspec.params["gang"]
    predicted = launch("strategies.loaded", folder, "worker", env=env, kind="local")[0]
    assert predicted == pytest.approx(first["stops"]["predicted"], rel=1e-4)


def test_tensorboard_keeps_events_of_the_chief_and_no_temporary_files(gang: Any) -> None:
    folder, _ = gang
    assert list((folder / "tensorboard" / "train").glob("events.*"))
    assert not list(folder.glob("tmp*"))


def test_checkpoint_resumes_epochs_and_optimizer(gang: Any, alone: Any) -> None:
    for answers in (gang[1][0]["resumes"], alone["resumes"]):
        # With tf_keras each worker has its own moving statistics, and their mean is saved.
        assert answers["difference"] < 1e-6
        assert (answers["epochs"], answers["iterations"]) == ([0, 1], 8)
        assert answers["next_fit"] == 1


def test_warmup_raises_the_rate_at_each_batch(gang: Any) -> None:
    rising = [0.01, 0.0125, 0.015, 0.0175, 0.02, 0.0225, 0.025, 0.0275]
    assert gang[1][0]["warms"] == rising + [0.03] * 4


def test_a_custom_loop_equals_one_process(gang: Any, alone: Any) -> None:
    assert gang[1][0]["loops"]["losses"] == pytest.approx(alone["loops"]["losses"], rel=1e-3)


def test_each_rank_marks_that_it_has_joined(gang: Any) -> None:
    names = {file.name for file in (gang[0] / "ranks" / "0").iterdir()}
    assert names == {"0.joining", "0.joined", "1.joining", "1.joined"}


def test_keras_still_has_the_faults_that_are_patched(tmp_path: Path) -> None:
    first, second = launch("strategies.faults", tmp_path, "worker", "worker")
    mended = "Keras has fixed {}: remove its patch in sparkdl/distribute/keras3_patches.py"
    assert "PerReplica" in first["batch"], mended.format("_maybe_symbolic_build")
    assert "Invalid reduction dimension" in first["logs"], mended.format("reduce_per_replica")
    # Keras 3.7 averages all variables that are written on several replicas, others none.
    differ = first["averages"] or first["statistics"] != second["statistics"]
    assert differ, mended.format("BatchNorm's statistics")
    assert first["clipped"] == 0.75, mended.format("clipping before the sum")  # The sum gives 0.5.
    assert first["empty"], mended.format("BatchNorm of a batch without rows")


def test_metrics_belong_to_the_scope_and_a_batch_is_predicted_once(tmp_path: Path) -> None:
    for answers in launch("strategies.scopes", tmp_path, "worker", "worker"):
        first, second, names = answers["errors"]
        assert "the metric 'auc' was created outside the scope" in first
        assert "the metric 'mean' was created outside the scope" in second
        assert names == "none"
        assert answers["same"]


def test_strategy_after_a_computation_is_rejected(tmp_path: Path) -> None:
    message = launch("strategies.late", tmp_path, "worker", world_size=2)[0]
    assert "Call distribute.strategy() before anything that computes" in message


def test_parameter_server_trains_on_its_servers(tmp_path: Path) -> None:
    roles = ("chief", "worker", "worker", "ps")
    chief = launch("strategies.parameter_server", tmp_path, *roles, kind="parameter_server")[0]
    assert chief["last"] < chief["first"] / 100
    assert "/job:ps/" in chief["device"]


def test_jax_gang_trains(tmp_path: Path) -> None:
    pytest.importorskip("jax", "0.6", "setup.cfg asks for jax 0.6, the oldest with CPU gangs")
    first, second = launch("strategies.jax_gang", tmp_path, "worker", "worker", env=JAX)
    assert first == second
    assert first["processes"] == 2
    assert first["losses"][-1] < first["losses"][0]
