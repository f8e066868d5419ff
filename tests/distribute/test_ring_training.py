"""Real rings: several processes, each a plain Keras program, whose gradients are averaged."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.gang import launch

pytestmark = pytest.mark.slow

TF_KERAS = {"TF_USE_LEGACY_KERAS": "1"}


def same_as(alone: Any, got: Any, rel: float = 1e-6) -> None:
    """That training gave what one process makes of the global batch."""
    assert got["weights"] == pytest.approx(alone["weights"], rel=rel, abs=1e-6)
    assert got["loss"] == pytest.approx(alone["loss"], rel=1e-5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process answers."""
    return launch("ring.everything", tmp_path_factory.mktemp("alone"), "worker")[0]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the ranks of a ring of two answer."""
    return launch("ring.everything", tmp_path_factory.mktemp("ring"), "worker", "worker")


@pytest.mark.parametrize(("count", "nodes"), [(3, "aba"), (4, "abab")])
def test_ranks_end_with_the_same_bits(count: int, nodes: str, alone: Any, tmp_path: Path) -> None:
    """From different seeds; over TCP, and over both kinds of sockets."""
    first, *others = launch("ring.adam", tmp_path, *["worker"] * count, nodes=nodes)
    assert others == [first] * (count - 1)
    same_as(alone["adam"], first)


@pytest.mark.parametrize("program", ["adam", "loop"])
def test_tf_keras(program: str, alone: Any, tmp_path: Path) -> None:
    first, second = launch(f"ring.{program}", tmp_path, "worker", "worker", env=TF_KERAS)
    assert first == second
    (tmp_path / "alone").mkdir()
    same_as(launch(f"ring.{program}", tmp_path / "alone", "worker", env=TF_KERAS)[0], first)


def test_fit_and_a_loop_of_ones_own(ring: Any, alone: Any) -> None:
    first, second = ring
    for program in ("adam", "loop"):
        assert first[program] == second[program]
        same_as(alone[program], first[program])


VARIANTS = ["name", "several steps", "eager", "accumulation", "clipping", "average", "loss scale"]


@pytest.mark.parametrize("variant", [*VARIANTS, "lion"])
def test_ways_to_compile(variant: str, ring: Any, alone: Any) -> None:
    first, second = (answers["variants"][variant] for answers in ring)
    assert first == second
    # A sign, as Lion takes it, of a sum near zero may turn with the order of its terms.
    same_as(alone["variants"][variant], first, rel=1e-2 if variant == "lion" else 1e-5)


def test_statistics_and_logs_are_those_of_all_ranks(ring: Any) -> None:
    first, second = (answers["statistics"] for answers in ring)
    assert first["digest"] == second["digest"]
    assert first["seen"] == second["seen"]
    assert first["history"] == second["history"]
    # Each rank validated on rows of its own.
    assert first["val"] != pytest.approx(second["val"])
    mean = (first["val"] + second["val"]) / 2
    assert first["history"]["val_loss"][-1] == pytest.approx(mean, rel=1e-5)


def test_ranks_with_more_batches_end_their_epoch_with_the_first(ring: Any) -> None:
    first, second = (answers["uneven"] for answers in ring)
    assert first == second
    assert (first["steps"], first["epochs"]) == ([6, 6], 2)


def test_where_one_rank_stops_all_stop(ring: Any) -> None:
    assert [answers["stops"] for answers in ring] == [2, 2]


def test_gradients_of_an_embedding_stay_sparse(ring: Any, alone: Any) -> None:
    first, second = (answers["embeds"] for answers in ring)
    assert first == second
    assert first["kind"] == "IndexedSlices"
    assert first["weights"] == pytest.approx(alone["embeds"]["weights"], rel=1e-4, abs=1e-5)


def test_a_saved_model_is_plain_keras(ring: Any) -> None:
    assert [answers["saves"] for answers in ring] == [[True, False, True]] * 2


def test_half_precision_skips_a_step_on_all_ranks(ring: Any) -> None:
    first, second = (answers["mixed"] for answers in ring)
    assert first == second
    assert (first["finite"], first["kind"]) == (True, "LossScaleOptimizer")


def test_gradients_that_travel_in_half_the_bits(ring: Any, alone: Any) -> None:
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
        ("no optimizer", "got a int; expected an optimizer of Keras"),
        ("op", "op is 'max'; expected 'mean' or 'sum'"),
        ("wire", "wire_dtype is 'int8'; expected None, 'bfloat16' or 'float16'"),
        ("inside", r"distribute.optimizer\(keras.*LossScaleOptimizer\(optimizer\)\)"),
    ],
)
def test_what_is_refused_before_training(what: str, says: str, ring: Any) -> None:
    import re

    for answers in ring:
        assert re.search(says, answers["refuses"][what])


def test_collectives(ring: Any) -> None:
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


def test_a_killed_rank_is_an_exception_on_the_others_within_a_second(tmp_path: Path) -> None:
    codes = (0, -9)
    *survivors, killed = launch("ring.breaks", tmp_path, *["worker"] * 3, codes=codes)
    assert killed is None
    for got in survivors:
        assert "lost connection to rank" in got["error"]
        assert got["after_s"] < 1


def test_graphs_copy_neither_what_they_give_nor_what_they_get(tmp_path: Path) -> None:
    """An update of TensorFlow that changes this makes each step slower, see `Pool`."""
    assert launch("ring.reuses", tmp_path, "worker")[0] == {
        "not copied": True,
        "used again": 1,
        "kept": [2.0, 4.0],
    }
