"""The contract of several ranks: their numbers are those of one process on the same batches."""

from typing import Any

import pytest

from tests.helpers.gang import launch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of one process."""
    return launch("contract.everything", tmp_path_factory.mktemp("alone"), "worker")[0]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of several ranks, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    return launch("contract.everything", folder, *["worker"] * request.param)


WAYS = ["optimizer", "horovod"]


@pytest.mark.parametrize("way", WAYS)
def test_metrics_and_evaluations_are_of_all_rows(way: str, ranks: Any, alone: Any) -> None:
    for answers in ranks:
        for what, expected in alone[way]["metrics"].items():
            # An evaluation outside `fit` is that of each rank in Horovod.
            if way == "optimizer" or what in ("weights", "history"):
                assert_close(answers[way]["metrics"][what], expected, what)


@pytest.mark.parametrize("way", WAYS)
def test_several_optimizers_train_the_model_of_one_process(
    way: str, ranks: Any, alone: Any
) -> None:
    for answers in ranks:
        assert_close(answers[way]["several"], alone[way]["several"])


@pytest.mark.parametrize("way", WAYS)
def test_train_on_batch_starts_equal(way: str, ranks: Any, alone: Any) -> None:
    for answers in ranks:
        seen, expected = answers[way]["by_hand"], alone[way]["by_hand"]
        assert_close(seen["weights"], expected["weights"])
        if way == "optimizer":
            assert_close(seen["logs"], expected["logs"])


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_without_rows_is_named_on_all_ranks(way: str, ranks: Any) -> None:
    for answers in ranks:
        assert answers[way]["no_rows"].startswith(f"no rows on rank {len(ranks) - 1}, and an epoch")


@pytest.mark.parametrize("way", WAYS)
def test_a_metric_without_variables_is_averaged_with_a_warning(way: str, ranks: Any) -> None:
    for answers in ranks:
        values, warnings = answers[way]["without_variables"]
        assert values == [pytest.approx((len(ranks) - 1) / 2)]
        assert [text.partition(", as")[0] for text in warnings] == [
            "largest: logged is the mean of the ranks' values"
        ]


def test_a_loaded_model_goes_on_as_one(ranks: Any, alone: Any) -> None:
    for answers in ranks:
        assert_close(answers["loaded"]["weights"], alone["loaded"]["weights"])
        assert answers["loaded"]["silent"] == []
        (said,) = answers["loaded"]["said"]
        assert said.startswith(f"each of the {len(ranks)} ranks trains a model ")
    assert alone["loaded"]["said"] == []


def assert_close(seen: Any, expected: Any, *where: Any) -> None:
    """Assert that nested values are equal but for the order of sums of float32."""
    if isinstance(expected, dict):
        assert seen.keys() == expected.keys(), where
        for name in expected:
            assert_close(seen[name], expected[name], *where, name)
    elif isinstance(expected, list) and expected and isinstance(expected[0], list):
        for one, other in zip(seen, expected, strict=True):
            assert_close(one, other, *where)
    else:
        assert seen == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True), where
