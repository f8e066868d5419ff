"""Several workers under `distribute.strategy()` train the model that one process trains."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.gang import launch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The numbers of one process outside a gang."""
    folder = tmp_path_factory.mktemp("alone")
    return launch("strategy_numbers.numbers", folder, "worker", kind="local")[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("num_workers", "program"),
    [(2, "numbers"), pytest.param(3, "few_numbers", marks=pytest.mark.thorough)],
)
def test_several_workers_give_the_numbers_of_one_process(
    num_workers: int, program: str, alone: Any, tmp_path: Path
) -> None:
    ranks = launch(f"strategy_numbers.{program}", tmp_path, *["worker"] * num_workers)
    assert_equal_numbers(ranks, alone)


@pytest.mark.thorough
def test_several_gpus_of_one_worker_give_the_numbers_of_one_process(
    alone: Any, tmp_path: Path
) -> None:
    ranks = launch(
        "strategy_numbers.of_devices", tmp_path, "worker", env={"TF_CONFIG": "{{}}"}, kind="local"
    )
    assert_equal_numbers(ranks, alone)


def assert_equal_numbers(ranks: list[Any], alone: Any) -> None:
    first, *others = ranks
    differences = []
    for name in first:
        expected = alone[name]
        rel = 2e-2 if name.startswith("mixed") else 1e-3
        found = first[name]
        if any(other[name] != found for other in others):
            differences.append(f"{name}: the workers differ")
        if found["logs"].keys() != expected["logs"].keys():
            differences.append(f"{name}: {list(found['logs'])}, {list(expected['logs'])}")
        for part, values in expected["logs"].items():
            if found["logs"].get(part) != pytest.approx(values, rel=rel):
                differences.append(f"{name}: {part} {found['logs'].get(part)}, {values}")
        for part in ("weights", "state"):
            if any(
                have != pytest.approx(want, rel=rel, abs=rel / 10)
                for have, want in zip(found[part], expected[part], strict=True)
            ):
                differences.append(f"{name}: {part} {found[part]}, {expected[part]}")
    assert not differences, "\n".join(text[:1000] for text in differences)
