"""An optimizer whose state is sharded: equal weights, and checkpoints for all numbers of ranks."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.elastic_gang import Gang
from tests.helpers.gang import launch
from tests.helpers.tf_keras import TF_KERAS, needs_tf_keras

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Folders = pytest.TempPathFactory

# TensorFlow rounds inverse square roots at the end of an array differently.
ROUNDED = ("rmsprop", "adadelta", "adagrad")


def close_to(expected: Any, rel: float = 1e-4) -> Any:
    return pytest.approx(expected, rel=rel, abs=5e-6, nan_ok=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: Folders) -> Any:
    """The results of one process without shards."""
    return launch("sharded.alone", tmp_path_factory.mktemp("alone"), "worker")[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Folders) -> Path:
    """The folder of the files of gangs."""
    return tmp_path_factory.mktemp("gangs")


@pytest.fixture(scope="module")
def two(folder: Path) -> Any:
    """The results of two ranks, which have saved their models."""
    (begun := folder / "begun-2").mkdir()
    return launch("sharded.two", begun, "worker", "worker")


@pytest.fixture(scope="module")
def three(folder: Path) -> Any:
    """The results of three ranks."""
    (here := folder / "three").mkdir()
    return launch("sharded.three", here, *["worker"] * 3)


def assert_equal(ranks: list[Any], alone: Any) -> None:
    """Assert that all ranks have the weights that they have without shards, and one process has."""
    first, *others = ranks
    for name, seen in first.items():
        assert [o[name]["sharded"] for o in others] == [seen["sharded"]] * len(others), name
        if "norm" not in name and name not in ROUNDED:
            assert seen["sharded"] == seen["whole"], name  # Bit by bit.
        assert seen["sharded weights"] == close_to(seen["weights"], 1e-5), name
        # The order of sums counts in bfloat16, and for the signs that Lion uses.
        if not name.startswith(("mixed", "lion")):
            assert seen["sharded weights"] == close_to(alone[name]["weights"], 1e-3), name


def assert_divided(ranks: list[Any]) -> None:
    """Assert that each rank has an equal part of the optimizer's state."""
    for name, seen in ranks[0].items():
        slots = [answers[name]["slots"] for answers in ranks]
        assert sum(sharded for _, sharded in slots) == seen["slots"][0], name
        # The parts of a variable differ by one element.
        longest = seen["slots"][0] / len(ranks) + seen["num_slots"]
        assert max(sharded for _, sharded in slots) <= longest, name


def test_optimizers_train_the_same_weights(three: Any, alone: Any) -> None:
    ranks = [answers["few_optimizers"] for answers in three]
    assert_equal(ranks, alone["few_optimizers"])
    assert_divided(ranks)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 3])
def test_all_kinds_train_the_same_weights(count: int, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (alone,) = launch("sharded.all_kinds", tmp_path / "alone", "worker")
    ranks = launch("sharded.all_kinds", tmp_path, *["worker"] * count)
    for kind, expected in alone.items():
        assert_equal([answers[kind] for answers in ranks], expected)
        assert_divided([answers[kind] for answers in ranks])


def test_models_train_the_same_weights(three: Any, alone: Any) -> None:
    ranks = [answers["few_models"] for answers in three]
    assert_equal(ranks, alone["few_models"])
    assert_divided(ranks)


@pytest.mark.parametrize("way", ["eagerly", "in_steps", "in_a_loop", "with_a_tape", "in_halves"])
def test_all_ways_to_train_are_as_in_one_process(way: str, three: Any, alone: Any) -> None:
    first, *others = (answers["ways"][way] for answers in three)
    assert others == [first] * len(others)
    assert first == close_to(alone["ways"][way], 2e-2 if way == "in_halves" else 1e-4)


@pytest.mark.parametrize("count", [3, pytest.param(1, marks=pytest.mark.thorough)])
def test_another_number_of_ranks_goes_on(count: int, two: Any, alone: Any, folder: Path) -> None:
    """With shards and without them, from a model and from its weights."""
    (here := folder / f"goes-on-{count}").mkdir()
    for answers in launch("sharded.goes_on", here, *["worker"] * count):
        assert len(answers) == 3
        for what, seen in answers.items():
            assert seen == close_to(alone["undisturbed"]), what


def test_callbacks_of_keras_save_whole_states(two: Any, alone: Any) -> None:
    for answers in two:
        assert answers["with_callbacks"] == close_to(alone["with_callbacks"])


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("lamb", "cannot divide the state of Lamb"),
        ("adafactor", "cannot divide the state of Adafactor"),
        ("own", "cannot divide the state of Own"),
        ("built", "has variables already"),
        ("swap", "SwapEMAWeights needs the whole moving averages"),
        ("best", "ModelCheckpoint(save_freq=2, save_best_only=True) saves by"),
        ("legacy file", "save the model as a file that ends in .keras"),
        ("float8", "is replaced by its gradient"),
        ("restored", "are of the steps [12, 0]"),
        ("alone", "all ranks must save the model at the same time"),
    ],
)
def test_what_cannot_be_divided_is_refused(what: str, says: str, two: Any) -> None:
    assert says in two[0]["refused"][what]


def test_an_elastic_gang_is_refused(tmp_path: Path) -> None:
    gang = Gang(tmp_path, "sharded", ["tensorflow", "keras"])
    try:
        gang.begin(2, "refused_elastic")
        results = gang.results()
    finally:
        gang.close()
    assert len(results) == 2
    assert all("does not work in an elastic gang" in said for said in results.values())


@needs_tf_keras
def test_tf_keras_is_refused(tmp_path: Path) -> None:
    (said,) = launch("sharded.refused_legacy", tmp_path, "worker", env=TF_KERAS)
    assert "needs an optimizer of Keras 3" in said
