"""The contract of several ranks: their numbers are those of one process on the same batches."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.elastic_gang import Gang
from tests.helpers.gang import launch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of one process."""
    return launch("contract.everything", tmp_path_factory.mktemp("alone"), "worker")[0]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of two ranks, by rank."""
    return launch("contract.everything", tmp_path_factory.mktemp("two"), "worker", "worker")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Some results of three ranks, by rank."""
    return launch("contract.few", tmp_path_factory.mktemp("three"), *["worker"] * 3)


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Any:
    """The results of a gang, by rank."""
    return request.getfixturevalue(request.param)


TRAINED = ["weights", "history", "validation of few rows"]
WAYS_OF_TWO = [("two", "optimizer"), ("two", "horovod")]
with_two = pytest.mark.parametrize(("ranks", "way"), WAYS_OF_TWO, indirect=["ranks"])
with_both = pytest.mark.parametrize(
    ("ranks", "way"),
    [*WAYS_OF_TWO, pytest.param("three", "optimizer", marks=pytest.mark.thorough)],
    indirect=["ranks"],
)


@with_both
def test_metrics_and_evaluations_are_of_all_rows(way: str, ranks: Any, alone: Any) -> None:
    for answers in ranks:
        for what, expected in alone["optimizer"]["metrics"].items():
            # An evaluation outside `fit` is that of each rank in Horovod.
            if way == "optimizer" or what in TRAINED:
                assert_close(answers[way]["metrics"][what], expected, what)


@with_two
def test_several_optimizers_train_the_model_of_one_process(
    way: str, ranks: Any, alone: Any
) -> None:
    for answers in ranks:
        assert_close(answers[way]["several"], alone["optimizer"]["several"])


@with_both
def test_a_row_that_training_repeats_counts_once_in_validation(
    way: str, ranks: Any, alone: Any
) -> None:
    for answers in ranks:
        for what, expected in alone["optimizer"]["validated"].items():
            # An evaluation outside `fit` is that of each rank in Horovod.
            if way == "optimizer" or not what.startswith("evaluate"):
                assert_close(answers[way]["validated"][what], expected, what)


@with_both
def test_train_on_batch_starts_equal(way: str, ranks: Any, alone: Any) -> None:
    for answers in ranks:
        seen, expected = answers[way]["by_hand"], alone["optimizer"]["by_hand"]
        assert_close(seen["weights"], expected["weights"])
        if way == "optimizer":
            assert_close(seen["logs"], expected["logs"])


@with_both
def test_a_rank_without_rows_is_named_on_all_ranks(way: str, ranks: Any) -> None:
    for answers in ranks:
        assert answers[way]["no_rows"].startswith(f"no rows on rank {len(ranks) - 1}, and an epoch")


@with_both
def test_a_metric_without_variables_is_averaged_with_a_warning(way: str, ranks: Any) -> None:
    for answers in ranks:
        values, warnings = answers[way]["without_variables"]
        assert values == [pytest.approx((len(ranks) - 1) / 2)]
        assert [text.partition(", as")[0] for text in warnings] == [
            "largest: logged is the mean of the ranks' values"
        ]


def test_a_loaded_model_goes_on_as_one(two: Any, alone: Any) -> None:
    for answers in two:
        assert_close(answers["loaded"]["weights"], alone["loaded"]["weights"])
        assert answers["loaded"]["silent"] == []
        (said,) = answers["loaded"]["said"]
        assert said.startswith("each of the 2 ranks trains a model ")
    assert alone["loaded"]["said"] == []


def test_a_file_of_all_ranks_is_written_by_the_chief(two: Any) -> None:
    for rank, answers in enumerate(two):
        assert answers["files"] == [[rank == 0, True], [True, True], True]


@pytest.fixture(scope="module")
def cases_alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of one process."""
    return launch("contract_cases.everything", tmp_path_factory.mktemp("alone"), "worker")[0]


def of_gang(folder: Path, kind: str) -> list[Any]:
    """Return the results of a gang of two or three ranks, by rank."""
    if kind == "horovod":
        return launch("contract_cases.horovod", folder, "worker", "worker")
    if kind == "three ranks":
        return launch("contract_cases.few", folder, "worker", "worker", "worker")
    gang = Gang(folder, "contract_cases", ["tensorflow", "keras"])
    try:
        gang.begin(2, "everything")
        return list(gang.results().values())
    finally:
        gang.close()


# Two ranks with `distribute.optimizer` are those of the elastic gang, and of test_ring_training.
@pytest.mark.parametrize(
    "kind", [pytest.param("three ranks", marks=pytest.mark.thorough), "horovod", "elastic"]
)
def test_what_is_trained_is_the_model_of_one_process(
    kind: str, cases_alone: Any, tmp_path: Path
) -> None:
    first, *others = of_gang(tmp_path, kind)
    for case, seen in first.items():
        assert all(other[case] == seen for other in others), case
        # The mean and variance of BatchNorm are those of each rank's rows.
        if case != "norm":
            close = {"rel": 2e-2, "abs": 2e-3} if case == "half_precision" else {}
            assert_close(seen, cases_alone[case], case, **close)


def assert_close(seen: Any, expected: Any, *where: str, **close: float) -> None:
    """Assert that nested values are equal but for the order of sums of float32."""
    if isinstance(expected, dict):
        assert seen.keys() == expected.keys(), where
        for name in expected:
            assert_close(seen[name], expected[name], *where, name, **close)
    elif isinstance(expected, list) and expected and isinstance(expected[0], list):
        for one, other in zip(seen, expected, strict=True):
            assert_close(one, other, *where, **close)
    else:
        close = close or {"rel": 1e-4, "abs": 2e-6}
        assert seen == pytest.approx(expected, nan_ok=True, **close), where
