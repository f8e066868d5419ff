"""One model over several processes of JAX trains as it does in one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.gang import launch

pytestmark = pytest.mark.slow


def trained(folder: Path, num_ranks: int, num_parts: int, **env: str) -> list[Any]:
    variables = {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "{address}",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(num_ranks),
        "KERAS_DISTRIBUTION_PROCESS_ID": "{rank}",
        "PARTS": str(num_parts),
    }
    folder.mkdir()
    roles = ["worker"] * num_ranks
    return launch("model_parallel.train", folder, *roles, env=variables | env)


def assert_as(one: Any, other: Any) -> None:
    """Sums over parts have another order than in one process, hence not the same bits."""
    for weights, others in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(weights, others, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one["losses"], other["losses"][-len(one["losses"]) :], rtol=1e-4)


def test_parts_train_as_one_process_and_go_on_in_another_number(tmp_path: Path) -> None:
    pytest.importorskip("jax", "0.6", "setup.cfg asks for jax 0.6, the oldest with CPU gangs")
    (alone,) = trained(tmp_path / "alone", 1, 1)
    halves = trained(tmp_path / "halves", 2, 2)
    assert [rank["parts"] for rank in halves] == [[[64, 32], [32], [32, 10], [10]]] * 2
    for rank in halves:
        assert_as(rank, alone)
    saved = str(tmp_path / "halves" / "parts")
    (resumed,) = trained(tmp_path / "resumed", 1, 1, RESUME=saved)
    assert_as(resumed, alone)
    for rank in trained(tmp_path / "copies", 4, 2, RESUME=saved):
        assert_as(rank, alone)
