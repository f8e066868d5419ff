"""Several workers under `distribute.strategy()` train the model that one process trains."""

from typing import Any

import pytest

from tests.helpers.gang import launch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The numbers of one process outside a gang."""
    folder = tmp_path_factory.mktemp("alone")
    return launch("strategy_numbers.numbers", folder, "worker", kind="local")[0]


@pytest.mark.parametrize("num_workers", [2, 3])
def test_several_workers_give_the_numbers_of_one_process(
    num_workers: int, alone: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("gang")
    first, *others = launch("strategy_numbers.numbers", folder, *["worker"] * num_workers)
    assert first.keys() == alone.keys()
    differences = []
    for name, expected in alone.items():
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
