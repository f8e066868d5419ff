"""The order of Horovod's collectives, in real processes."""

from typing import Any

import pytest

from tests.helpers.gang import launch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return launch("horovod_order.all_orders", tmp_path_factory.mktemp("ranks"), "worker", "worker")


def test_functions_keep_the_order_of_the_program(ranks: Any) -> None:
    """Ranks compute what comes before the collectives in calls and loops at different speeds."""
    kinds = ("call", "branch", "loop", "gradient")
    right = str([[2.0] * 4, 8.0, [2.0, 2.0]])
    for answers in ranks:
        assert answers["nested"] == {kind: [right] for kind in kinds}


def test_threads_of_a_rank_take_turns(ranks: Any) -> None:
    for answers in ranks:
        assert answers["threads"] == [80, 2.0]


def test_sessions_have_one_order_although_the_graphs_differ(ranks: Any) -> None:
    for rank, answers in enumerate(ranks):
        once, named, part, twice, both, branch, *weights = answers["sessions"]
        assert (once, named, part, twice) == ([2.0, 4.0], [9.0], [2.0 * rank + 2.0], [4.0, 8.0])
        assert (both, branch) == ([4.0, 4.0], [2.0, 4.0])
        assert weights == [[-5.0] * 3, [-5.0] * 5]


def test_collectives_that_do_not_fit_are_told_and_the_next_ones_work(ranks: Any) -> None:
    for answers in ranks:
        told = dict(answers["errors"])
        ends = told.pop("ends")
        right = {"warned": True, "threads": True, "others": [2.0], "after": 2.0}
        assert told == right | {"barrier0": True, "barrier1": True}
        assert ends == {"released": True, "is": [False, False], "init": True, "later": True}
