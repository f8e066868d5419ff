"""Collectives of a part of the ranks, in real processes."""

from pathlib import Path

import pytest

from sparkdl import distribute
from tests.helpers.gang import launch

pytestmark = pytest.mark.slow


def test_a_group_has_collectives_beside_those_of_all_ranks(tmp_path: Path) -> None:
    first, middle, last = launch("groups.parts", tmp_path, *["worker"] * 3)
    assert [told["all"] for told in (first, middle, last)] == [3.0] * 3
    assert [told["after"] for told in (first, middle, last)] == [[0, 1, 2]] * 3
    assert first["sum"] == last["sum"] == [20.0, 22.0, 24.0, 26.0]
    assert first["root"] == last["root"] == [20.0]
    assert (first["rows"], last["rows"]) == ([[0.0], [20.0]], [[1], [2], [3], [21], [22], [23]])
    assert (first["half"], last["half"]) == ([20.0, 22.0], [24.0, 26.0])
    assert first["gathered"] == last["gathered"] == [20.0, 21.0]
    assert "and is not in it" in middle["outside"]


@pytest.mark.parametrize("ranks", [[], [1], [-1, 0]])
def test_ranks_that_are_not_there_are_refused(ranks: list[int]) -> None:
    with pytest.raises(ValueError, match="expected some of the ranks 0 to 0"):
        distribute.group(ranks)
