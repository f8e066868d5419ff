"""Programs written for Horovod and PyTorch, run in real processes."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.elastic_gang import Gang
from tests.helpers.gang import launch

# The process of the tests does not import PyTorch, which may not fit together with TensorFlow.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("two")
    return launch("horovod_torch.two_ranks", folder, "worker", "worker")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return launch("horovod_torch.three_ranks", tmp_path_factory.mktemp("three"), *["worker"] * 3)


def test_two_ranks_train_as_one_on_the_joint_batch(ranks: Any, tmp_path: Path) -> None:
    """Ranks start with different weights and rates."""
    first, second = (answers["trained"] for answers in ranks)
    assert first == second
    alone = launch("horovod_torch.alone", tmp_path, "worker")[0]
    assert first["weights"] == pytest.approx(alone["weights"], rel=1e-4, abs=1e-5)


def test_options_of_the_optimizer_change_how_gradients_travel_only(ranks: Any) -> None:
    first, second = (answers["ways"] for answers in ranks)
    assert first == second
    for name in ("unnamed", "two groups", "predivided"):
        assert first[name] == first["plain"]
    for name in ("float16", "bfloat16"):
        assert first[name] != first["plain"]
        assert first[name] == pytest.approx(first["plain"], abs=0.05)


def test_steps_take_several_passes_and_clipped_gradients(ranks: Any) -> None:
    for answers in ranks:
        assert answers["steps"] == {
            "two passes": -3.0,
            "pending": ["AssertionError", "Exception", "BaseException", "object"],
            "gradient": 1.5,
            "clipped": -4.0,
            "unused": [[-3.0, -3.0], [-3.0, -3.0]],
            "shapes": ["HorovodInternalError"] * 2,
            "again": ["AssertionError", "Exception", "BaseException", "object"],
        }


def test_sparse_gradients_stay_sparse(ranks: Any) -> None:
    for answers in ranks:
        assert answers["sparse"] == [[True, [-0.5, -0.5, 0.0, -1.0]]] * 2


def test_a_scheduler_of_the_plain_optimizer_keeps_its_groups(ranks: Any) -> None:
    for answers in ranks:
        assert answers["schedules"] == {
            "broadcast": [0.5, "torch.float16", 9],
            "loaded": [0.25, "torch.float16", 9],
            "weight": -1.5,
        }


def test_the_state_of_the_root_has_its_dtypes_on_all_ranks(ranks: Any) -> None:
    for answers in ranks:
        step, average, history = answers["states"]
        assert step == [3.0, "torch.float32"]
        assert average == [[2.0, 2.0], "torch.float32"]
        assert history == [[1.0], "torch.float64"]


def test_optimizers_of_parts_of_a_model_reduce_their_parameters_only(ranks: Any) -> None:
    for answers in ranks:
        assert answers["parts"] == {"both": [3.0, 3.0], "other": None, "new": ["RuntimeError"] * 2}


def test_gradients_of_closures_are_reduced_before_they_are_applied(ranks: Any) -> None:
    first, second = (answers["closures"] for answers in ranks)
    assert first["sgd"] == second["sgd"] == [-1.5] * 2
    assert first["losses"] == second["losses"]
    assert first["calls"] == second["calls"] > 2
    assert first["lbfgs"] == second["lbfgs"] == pytest.approx(1.0, abs=0.01)


def test_hooks_of_steps_see_reduced_gradients_once(ranks: Any) -> None:
    for answers in ranks:
        assert answers["hooks"] == [["pre", 1.5], ["post", 1.5]]


def test_a_state_is_loaded_after_reductions_that_are_in_progress(ranks: Any) -> None:
    for answers in ranks:
        assert answers["forgotten"] == {"reduced": [1.5] * 5, "weight": -1.5, "reset": -1.5}


def test_a_step_that_fails_leaves_nothing_behind(ranks: Any) -> None:
    for answers in ranks:
        assert answers["failed"] == ["ZeroDivisionError", [-1.5, -1.5], "TypeError", -3.0]


def test_rows_that_a_rank_does_not_use_are_zeros(ranks: Any) -> None:
    for answers in ranks:
        assert answers["unused_rows"] == [["HorovodInternalError"], [-1.5, -0.5], [-2.0, -0.5]]


def test_values_of_other_kinds_travel(ranks: Any) -> None:
    for answers in ranks:
        assert answers["values"] == {
            "splits": [[0.0, 0.0], [1, 1]],
            "factors": [4.0, 4.0],
            "conjugate": [[1.0, -1.0], True],
            "nothing": [],
            "generator": [2.0, 4.0],
            "integers": ["torch.int64", [0, 6]],
            "kind": "tuple",
            "frozen": "SGD",
            "shared": [[4.0, 4.0], [4.0, 4.0]],
            "inference": 2.0,
            "changed": ["RuntimeError"],
        }


def test_adasum_combines_updates(ranks: Any) -> None:
    for answers in ranks:
        assert answers["adasum"] == [[-1.0, 0.0], [-1.0, -1.0]]


def test_batches_of_all_ranks_are_normalized_as_one(ranks: Any) -> None:
    for answers in ranks:
        assert answers["normalized"] == [True] * 5


def test_collectives_start_and_end_in_any_order(ranks: Any) -> None:
    for answers in ranks:
        told = dict(answers["orders"])
        assert told.pop("twice")[0] == "ValueError"
        assert told == {
            "in place": True,
            "sums": [0.0, 3.0, 6.0, 9.0, 12.0, 15.0],
            "done": [True, False],
            "later": [1.0, 1.0],
        }


def test_objects_with_tensors_travel(ranks: Any) -> None:
    for answers in ranks:
        broadcast, gathered, refused = answers["objects"]
        assert broadcast == [[1.0, 1.0], "torch.bfloat16", 1, True]
        assert gathered == [[0, [0]], [1, [1]]]
        assert {"HorovodInternalError", "ValueError"} <= set(refused)


def test_ranks_that_disagree_get_the_errors_of_horovod_and_go_on(ranks: Any) -> None:
    is_wrong = {
        **dict.fromkeys(("splits", "number", "adasum", "float8"), True),
        **dict.fromkeys(("shape", "dtype", "root", "operation", "call", "barrier"), False),
    }
    for answers in ranks:
        assert answers["disagreements"] == {
            name: ["HorovodInternalError", wrong, False, 2.0] for name, wrong in is_wrong.items()
        }


def test_wrong_arguments_are_refused_with_what_is_expected(ranks: Any) -> None:
    assert [answers["refused"] for answers in ranks] == [[], []]


def test_collectives_return_the_values_of_horovod(three: Any) -> None:
    assert [answers["wrong"] for answers in three] == [[]] * 3
    assert [answers["adasum"][0] for answers in three] == ["ValueError"] * 3


def test_gradients_of_collectives_are_those_of_horovod(three: Any) -> None:
    for rank, answers in enumerate(three):
        assert answers["gradients"] == {
            "allreduce": [6.0],
            "average": [2.0],
            "allgather": [[2.0], [4.0, 6.0], [8.0, 10.0, 12.0]][rank],
            "broadcast": [2.0 if rank == 1 else 0.0],
            "alltoall": [(rank + 1.0) * other for other in (1, 2, 3)],
            "reducescatter": [3.0, 6.0, 9.0],
        }


def test_process_sets_have_collectives_of_their_own(three: Any) -> None:
    ends = {"sum": 4.0, "last": 3.0, "objects": [0, 2], "weight": -5.0}
    middle = {"sum": 2.0, "last": 2.0, "objects": [1], "weight": -4.0}
    for answers, right in zip(three, (ends, middle, ends), strict=True):
        told = dict(answers["process_sets"])
        assert {"HorovodInternalError", "ValueError"} <= set(told.pop("outside"))
        assert told == {**right, "removed": [True, False], "all": 6.0}


def test_joined_ranks_contribute_zeros(three: Any) -> None:
    """The gradient is 3 in steps 1 and 2; two ranks are active in step 3, one in step 4."""
    for rank, answers in enumerate(three):
        failed = answers["joins"].pop("failed")
        assert failed[:1] == (["HorovodInternalError"] if rank == 2 else [])
        assert answers["joins"] == {"last": 2, "weight": -9.0, "after": 3.0}


def test_a_rank_that_dies_is_noticed_by_every_collective(tmp_path: Path) -> None:
    first, died, last = launch("horovod_torch.dies", tmp_path, *["worker"] * 3, codes=(0, 7))
    assert died is None
    for answers in (first, last):
        assert answers["right"] == [True] * 6
        assert answers["after_s"] < 120


def test_elastic_ranks_have_every_row_once_although_one_begins_again(tmp_path: Path) -> None:
    gang = Gang(tmp_path, "horovod_torch", ["torch"])
    try:
        for rank in range(3):
            gang.start(rank, 3, "elastic")
        assert [gang.hear(rank)["generation"] for rank in range(3)] == [-1, -1, -1]
        gang.invite([0, 1, 2], is_calm=True)
        assert [gang.hear(rank)["generation"] for rank in (0, 1)] == [0, 0]
        gang.kill(2)
        gang.invite([0, 1], is_calm=True)
        gang.start(2, 3, "elastic", is_late=True)
        assert gang.hear(2)["has_state"] is False
        gang.tell("waiting")
        assert [gang.hear(rank)["generation"] for rank in (0, 1)] == [1, 1]
        gang.invite([0, 1, 2], is_calm=True)
        results = gang.results()
    finally:
        gang.close()
    assert [results[rank]["sizes"] for rank in range(3)] == [[3, 2, 3], [3, 2, 3], [3]]
    every = [[epoch, row] for epoch in range(2) for row in range(24)]
    for rank in range(3):
        assert sorted(results[rank]["rows"]) == every
        assert results[rank]["digest"] == results[0]["digest"]
        assert results[rank]["moved"]
