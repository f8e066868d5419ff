"""Ranks join and leave a `fit` between epochs, whose rows those that are present divide."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.elastic_gang import Gang
from tests.helpers.processes import eventually
from tests.programs.growing_fit import BATCH, EPOCHS, RATE, ROWS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def one_process(sizes: list[int]) -> tuple[float, list[float]]:
    """The weight and the losses of one process on the batches of all ranks."""
    x, weight, losses = np.arange(ROWS) / ROWS, 0.0, []
    for count in sizes:
        each, errors = ROWS // count, []
        for step in range(each // BATCH):
            places = [r * each + step * BATCH + i for r in range(count) for i in range(BATCH)]
            error = (weight - 2) * x[places]
            errors += list(error**2)
            weight -= RATE * 2 * float(np.mean(error * x[places]))
        losses.append(float(np.mean(errors)))
    return weight, losses


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_rows_of_each_epoch_are_those_of_one_process(tmp_path: Path, package: str) -> None:
    me = {"grows": True, "num_readers": 2}
    gang = Gang(tmp_path, "growing_fit", ["tensorflow", package], me)
    try:
        gang.begin(2, package)
        assert eventually((tmp_path / "at-1").exists, 200), (tmp_path / "0.log").read_text()
        gang.tell("waiting")  # Rank 1 is to leave.
        (tmp_path / "go-1").touch()
        assert gang.hear(0)["is_calm"] is gang.hear(1)["is_calm"] is True
        gang.invite([0], is_calm=True)
        gang.kill(1)
        assert eventually((tmp_path / "at-3").exists, 200), (tmp_path / "0.log").read_text()
        gang.start(1, 2, package, is_late=True)
        assert gang.hear(1)["has_state"] is False
        gang.tell("waiting")
        (tmp_path / "go-3").touch()
        assert gang.hear(0)["is_calm"] is True
        gang.invite([0, 1], is_calm=True)
        first, late = gang.results().values()
    finally:
        gang.close()
    assert [each["epoch"] for each in first["epochs"]] == list(range(EPOCHS))
    sizes = [len(each["present"]) for each in first["epochs"]]
    assert sizes == [2, 2, 1, 1, 2, 2]
    assert [len(each["rows"]) for each in first["epochs"]] == [ROWS // count for count in sizes]
    half = list(range(ROWS // 2, ROWS))
    assert late["epochs"] == [{"epoch": e, "present": [0, 1], "rows": half} for e in (4, 5)]
    weight, losses = one_process(sizes)
    assert first["weight"] == late["weight"] == pytest.approx(weight, rel=1e-5)
    # The one that came late has the states of the callbacks, such as the History.
    assert first["losses"] == late["losses"] == pytest.approx(losses, rel=1e-4)
