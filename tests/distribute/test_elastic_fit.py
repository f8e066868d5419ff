"""A rank that joins a `fit` late has callbacks like those of the other ranks."""

from pathlib import Path

import pytest

from tests.helpers.elastic_gang import Gang
from tests.helpers.gang import launch
from tests.helpers.processes import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_a_replaced_rank_ends_as_an_undisturbed_process(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    alone = launch("elastic_fit.fits", tmp_path / "alone", "worker")[0]
    gang = Gang(tmp_path, "elastic_fit", ["tensorflow", "keras"])
    try:
        gang.begin(2, "fits")
        assert eventually((tmp_path / "hangs").exists, 200), (tmp_path / "1.log").read_text()
        gang.kill(1)
        gang.hear(0)
        gang.invite([0], is_calm=False)
        gang.start(1, 2, "fits", is_late=True)
        assert gang.hear(1)["has_state"] is False
        gang.tell("waiting")
        (tmp_path / "awaited").touch()
        assert gang.hear(0)["is_calm"] is True
        gang.invite([0, 1], is_calm=True)
        results = gang.results()
    finally:
        gang.close()
    assert alone["epochs"] == [0, 1, 2, 3, 4]
    assert results == {0: alone, 1: alone}
