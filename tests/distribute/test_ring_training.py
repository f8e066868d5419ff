"""Real rings: several processes, each a plain Keras program, whose gradients are averaged."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.gang import launch
from tests.helpers.tf_keras import TF_KERAS, needs_tf_keras

pytestmark = pytest.mark.slow


def same_as(alone: Any, got: Any, rel: float = 1e-6) -> None:
    """Assert that training gave the result of one process with the global batch."""
    assert got["weights"] == pytest.approx(alone["weights"], rel=rel, abs=1e-6)
    assert got["loss"] == pytest.approx(alone["loss"], rel=1e-5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of one process."""
    return launch("ring.everything", tmp_path_factory.mktemp("alone"), "worker")[0]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of a ring of two ranks, by rank."""
    return launch("ring.everything", tmp_path_factory.mktemp("ring"), "worker", "worker")


@pytest.mark.parametrize(("count", "nodes"), [(3, "aba"), (4, "abab")])
def test_ranks_end_with_the_same_bits(count: int, nodes: str, alone: Any, tmp_path: Path) -> None:
    """Ranks start from different seeds, and use TCP or both kinds of sockets."""
    first, *others = launch("ring.adam", tmp_path, *["worker"] * count, nodes=nodes)
    assert others == [first] * (count - 1)
    same_as(alone["adam"], first)


@pytest.mark.thorough
@needs_tf_keras
@pytest.mark.parametrize("program", ["adam", "loop"])
def test_tf_keras_ranks_end_with_the_same_bits(program: str, alone: Any, tmp_path: Path) -> None:
    first, second = launch(f"ring.{program}", tmp_path, "worker", "worker", env=TF_KERAS)
    assert first == second
    (tmp_path / "alone").mkdir()
    same_as(launch(f"ring.{program}", tmp_path / "alone", "worker", env=TF_KERAS)[0], first)


def test_fit_equals_a_custom_loop(ring: Any, alone: Any) -> None:
    first, second = ring
    for program in ("adam", "loop"):
        assert first[program] == second[program]
        same_as(alone[program], first[program])


VARIANTS = ["name", "several steps", "eager", "accumulation", "clipping", "average", "loss scale"]


@pytest.mark.parametrize("variant", [*VARIANTS, "lion"])
def test_compiled_variants_equal_one_process(variant: str, ring: Any, alone: Any) -> None:
    first, second = (answers["variants"][variant] for answers in ring)
    assert first == second
    # Lion uses the sign of a sum; near zero, the sign depends on the order of the terms.
    same_as(alone["variants"][variant], first, rel=1e-2 if variant == "lion" else 1e-5)


def test_statistics_and_logs_are_averaged_over_all_ranks(ring: Any) -> None:
    first, second = (answers["statistics"] for answers in ring)
    assert first["digest"] == second["digest"]
    assert first["seen"] == second["seen"]
    assert first["history"] == second["history"]
    assert first["val"] == second["val"] == first["history"]["val_loss"][-1]


def test_logs_may_be_arrays(ring: Any, alone: Any) -> None:
    assert [answers["arrays"] for answers in ring] == [[[2]]] * 2


def test_an_epoch_ends_on_all_ranks_when_one_rank_has_no_more_batches(ring: Any) -> None:
    first, second = (answers["uneven"] for answers in ring)
    assert first == second
    assert (first["steps"], first["epochs"]) == ([6, 6], 2)


def test_all_ranks_stop_when_one_rank_stops(ring: Any) -> None:
    assert [answers["stops"] for answers in ring] == [2, 2]


def test_gradients_of_an_embedding_stay_sparse(ring: Any, alone: Any) -> None:
    first, second = (answers["embeds"] for answers in ring)
    assert first == second
    assert first["kind"] == "IndexedSlices"
    assert first["weights"] == pytest.approx(alone["embeds"]["weights"], rel=1e-4, abs=1e-5)


def test_a_gradient_can_travel_alone_in_an_eager_step(ring: Any) -> None:
    for answers in ring:
        assert answers["lone_tensors"] == [[[1 << 18], "float32", 0.5], [[2, 3], "float64", 0.5]]


def test_a_loop_whose_variables_differ_at_its_first_step_is_refused(ring: Any) -> None:
    for answers in ring:
        # Two steps of the product 1 x 1 by its gradients, and two by gradients of 1.
        expected = [[["1 of 2", "own"], [0.25, 0.25]], [["1 of 2", "uneven"], [0.0, -1.0]]]
        assert answers["different"] == expected * 2


def test_a_saved_model_is_plain_keras(ring: Any) -> None:
    assert [answers["saves"] for answers in ring] == [[True, False, True]] * 2


def test_half_precision_skips_a_step_on_all_ranks(ring: Any) -> None:
    first, second = (answers["mixed"] for answers in ring)
    assert first == second
    assert (first["finite"], first["kind"]) == (True, "LossScaleOptimizer")


def test_wire_dtype_keeps_ranks_equal_and_the_loss_close(ring: Any, alone: Any) -> None:
    first, second = (answers["halves"] for answers in ring)
    assert first == second
    for wire, rel in (("bfloat16", 1e-2), ("float16", 1e-3)):
        assert first[wire]["loss"] == pytest.approx(alone["adam"]["loss"], rel=rel)
        assert first[wire]["digest"] != ring[0]["adam"]["digest"]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("xla", r"jit_compile=True.*jit_compile=False"),
        ("twice", "averages its gradients already"),
        ("no optimizer", "got an int; expected an optimizer of Keras"),
        ("op", "op is 'max'; expected 'mean' or 'sum'"),
        ("wire", "wire is 'int8'; expected None, 'bfloat16' or 'float16'"),
        ("inside", r"distribute.optimizer\(keras.*LossScaleOptimizer\(optimizer\)\)"),
    ],
)
def test_optimizer_rejects_invalid_use_before_training(what: str, says: str, ring: Any) -> None:
    import re

    for answers in ring:
        assert re.search(says, answers["refuses"][what])


def test_collectives_work_for_all_kinds_of_arrays(ring: Any) -> None:
    first, second = (answers["collectives"] for answers in ring)
    assert first["sums"] == second["sums"]
    assert set(first["sums"].values()) == {True}
    for got in (first, second):
        assert got["booleans"] == [True, False]
        assert (got["mean"], got["floor"]) == (0.5, [2])
        assert got["tensors"] == [[[1, 1]], [[0, 1], [1, 1]], [[1, 1]]]
        assert got["jax"] == ["jaxlib", [0, 2]]
        assert got["gathered"] == [[1, 1]]
        assert got["empty"] == [0, 3]
        assert got["objects"] == [{"rank": 0, "text": "é"}, {"rank": 1, "text": "é"}]
        assert (got["object"], got["means"]) == ([1, None], {"a": 0.5, "b": 1.0})
        assert got["large"] == 2 * 3_000_001
    assert first["scattered"] + second["scattered"] == [2.0 * row for row in range(7)]


def test_a_killed_rank_raises_on_the_other_ranks_within_a_second(tmp_path: Path) -> None:
    codes = (0, -9)
    *survivors, killed = launch("ring.breaks", tmp_path, *["worker"] * 3, codes=codes)
    assert killed is None
    for got in survivors:
        assert "lost connection to rank" in got["error"]
        assert got["after_s"] < 1


def test_graphs_pass_arrays_to_and_from_python_without_a_copy(tmp_path: Path) -> None:
    """An update of TensorFlow that changes this makes each step slower, see `Pool`."""
    assert launch("ring.reuses", tmp_path, "worker")[0] == {
        "not copied": True,
        "used again": 1,
        "kept": [2.0, 4.0],
    }
