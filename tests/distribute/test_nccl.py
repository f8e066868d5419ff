"""Gradients through TensorFlow's collective: NCCL on GPUs, TensorFlow's own ring on CPUs."""

from pathlib import Path
from typing import Any

import pytest

from sparkdl import devices
from sparkdl.distribute.nccl import choose_group
from sparkdl.distribute.ring import Ring
from tests.distribute.test_ring_training import VARIANTS, same_as
from tests.helpers.gang import launch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of one process."""
    return launch("nccl.everything", tmp_path_factory.mktemp("alone"), "worker")[0]


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of a gang of two ranks, by rank."""
    return launch("nccl.everything", tmp_path_factory.mktemp("gang"), "worker", "worker")


def same_bits(answers: list[Any], alone: Any, rel: float = 1e-6) -> None:
    """Compare 20 steps of Adam from different seeds, with `fit` and in a custom loop."""
    for program in ("adam", "loop"):
        first, *others = (answer[program] for answer in answers)
        assert first["tensors"] > 0
        assert others == [first] * len(others)
        same_as(alone[program], first, rel)


@pytest.mark.thorough
def test_all_ranks_end_with_the_same_bits(gang: Any, alone: Any) -> None:
    same_bits(gang, alone)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS)
def test_compiled_variants_equal_one_process(variant: str, gang: Any, alone: Any) -> None:
    first, second = (answers["variants"][variant] for answers in gang)
    assert first == second
    same_as(alone["variants"][variant], first, rel=1e-5)


@pytest.mark.thorough
def test_sparse_gradients_use_the_ring(gang: Any, alone: Any) -> None:
    first, second = (answers["embeds"] for answers in gang)
    assert first == second
    assert first["kind"] == "IndexedSlices"
    assert first["weights"] == pytest.approx(alone["embeds"]["weights"], rel=1e-4, abs=1e-5)


@pytest.mark.thorough
def test_statistics_and_logs_are_averaged_over_all_ranks(gang: Any) -> None:
    first, second = (answers["statistics"] for answers in gang)
    assert first["digest"] == second["digest"]
    assert first["history"] == second["history"]


@pytest.mark.thorough
def test_wire_dtype_keeps_ranks_equal_and_the_loss_close(gang: Any, alone: Any) -> None:
    first, second = (answers["halves"] for answers in gang)
    assert first == second
    for wire, rel in (("bfloat16", 1e-2), ("float16", 1e-3)):
        assert first[wire]["loss"] == pytest.approx(alone["adam"]["loss"], rel=rel)
        assert first[wire]["digest"] != gang[0]["adam"]["digest"]


@pytest.mark.thorough
def test_a_mean_of_the_largest_values_is_finite(gang: Any) -> None:
    for answers in gang:
        assert answers["largest"]["means"] == {"float16": [True] * 3, "bfloat16": [True] * 3}


@pytest.mark.thorough
def test_an_optimizer_given_by_name_starts_the_collectives(alone: Any, tmp_path: Path) -> None:
    first, second = launch("nccl.by_name", tmp_path, "worker", "worker")
    assert first["tensors"] > 0
    assert first == second
    same_as(alone["adam"], first)


def test_all_ranks_use_the_ring_if_one_rank_has_computed_before(alone: Any, tmp_path: Path) -> None:
    first, second = launch("nccl.late", tmp_path, "worker", "worker")
    assert first == second
    assert first["tensors"] == 0
    [said] = first["said"]
    assert "on ranks [1] before it could join the others. Call distribute.strategy() first" in said
    same_as(alone["adam"], first)


def test_choose_group_returns_none_outside_a_plain_ring() -> None:
    class ReplacesRanks(Ring):
        pass

    for world in (Ring(), ReplacesRanks([0, 1])):
        assert choose_group(world) is None


def test_a_killed_rank_raises_the_error_of_the_ring_within_a_second(tmp_path: Path) -> None:
    codes = (0, -9)
    *survivors, killed = launch("nccl.dies_in_collective", tmp_path, *["worker"] * 3, codes=codes)
    assert killed is None
    for got in survivors:
        assert "lost connection to rank" in got["error"]
        assert got["after_s"] < 1


def test_keras_does_not_select_xla_by_itself(tmp_path: Path) -> None:
    for got in launch("nccl.xla", tmp_path, "worker", "worker"):
        assert (got["plain"], got["ours"]) == (True, False)
        assert "jit_compile=True" in got["asked for"]


@pytest.mark.skipif(
    devices.get_num_gpus() < 2,
    reason=f"NCCL needs a GPU for each of two ranks; here are {devices.get_num_gpus()}.",
)
def test_nccl(alone: Any, tmp_path: Path) -> None:
    """Kernels on GPUs round differently than those on the CPU."""
    env = {"CUDA_VISIBLE_DEVICES": "{rank}", "DEVICES": "GPU"}
    answers = launch("nccl.adam_and_loop", tmp_path, "worker", "worker", env=env)
    same_bits(answers, alone, rel=1e-3)
