"""Gradients through TensorFlow's collective: by NCCL where GPUs are, by its own ring on CPUs."""

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
    """What one process answers."""
    return launch("nccl.everything", tmp_path_factory.mktemp("alone"), "worker")[0]


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the ranks of a gang of two answer."""
    return launch("nccl.everything", tmp_path_factory.mktemp("gang"), "worker", "worker")


def same_bits(answers: list[Any], alone: Any, rel: float = 1e-6) -> None:
    """20 steps of Adam from different seeds, by `fit` and in a loop of one's own."""
    for program in ("adam", "loop"):
        first, *others = (answer[program] for answer in answers)
        assert first["tensors"] > 0
        assert others == [first] * len(others)
        same_as(alone[program], first, rel)


def test_all_ranks_end_with_the_same_bits(gang: Any, alone: Any) -> None:
    same_bits(gang, alone)


@pytest.mark.parametrize("variant", VARIANTS)
def test_ways_to_compile(variant: str, gang: Any, alone: Any) -> None:
    first, second = (answers["variants"][variant] for answers in gang)
    assert first == second
    same_as(alone["variants"][variant], first, rel=1e-5)


def test_sparse_gradients_still_go_over_the_ring(gang: Any, alone: Any) -> None:
    first, second = (answers["embeds"] for answers in gang)
    assert first == second
    assert first["kind"] == "IndexedSlices"
    assert first["weights"] == pytest.approx(alone["embeds"]["weights"], rel=1e-4, abs=1e-5)


def test_statistics_and_logs_are_those_of_all_ranks(gang: Any) -> None:
    first, second = (answers["statistics"] for answers in gang)
    assert first["digest"] == second["digest"]
    assert first["history"] == second["history"]


def test_gradients_that_travel_in_half_the_bits(gang: Any, alone: Any) -> None:
    first, second = (answers["halves"] for answers in gang)
    assert first == second
    for wire, rel in (("bfloat16", 1e-2), ("float16", 1e-3)):
        assert first[wire]["loss"] == pytest.approx(alone["adam"]["loss"], rel=rel)
        assert first[wire]["digest"] != gang[0]["adam"]["digest"]


def test_an_optimizer_by_its_name_starts_the_collectives(alone: Any, tmp_path: Path) -> None:
    first, second = launch("nccl.by_name", tmp_path, "worker", "worker")
    assert first["tensors"] > 0
    assert first == second
    same_as(alone["adam"], first)


def test_where_it_is_too_late_for_one_all_take_the_ring(alone: Any, tmp_path: Path) -> None:
    first, second = launch("nccl.late", tmp_path, "worker", "worker")
    assert first == second
    assert first["tensors"] == 0
    [said] = first["said"]
    assert "on ranks [1] before it could join the others. Call distribute.strategy() first" in said
    same_as(alone["adam"], first)


def test_only_the_ranks_of_a_gang_choose_it() -> None:
    class ReplacesRanks(Ring):
        pass

    for world in (Ring(), ReplacesRanks([0, 1])):
        assert choose_group(world) is None


def test_a_killed_rank_is_an_exception_of_the_ring_within_a_second(tmp_path: Path) -> None:
    codes = (0, -9)
    *survivors, killed = launch("nccl.dies_in_fit", tmp_path, *["worker"] * 3, codes=codes)
    assert killed is None
    for got in survivors:
        assert "lost connection to rank" in got["error"]
        assert got["after_s"] < 1


def test_keras_takes_no_xla_that_nobody_has_asked_for(tmp_path: Path) -> None:
    for got in launch("nccl.xla", tmp_path, "worker", "worker"):
        assert (got["plain"], got["ours"]) == (True, False)
        assert "jit_compile=True" in got["asked for"]


@pytest.mark.skipif(
    devices.get_num_gpus() < 2,
    reason=f"NCCL needs a GPU for each of two ranks; here are {devices.get_num_gpus()}.",
)
def test_nccl(alone: Any, tmp_path: Path) -> None:
    """From GPU to GPU; there are rounding errors of other kernels than on the CPU."""
    env = {"CUDA_VISIBLE_DEVICES": "{rank}", "DEVICES": "GPU"}
    answers = launch("nccl.adam_and_loop", tmp_path, "worker", "worker", env=env)
    same_bits(answers, alone, rel=1e-3)
