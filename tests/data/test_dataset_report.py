"""Notes of a trial about datasets that gave no step."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import context, data
from sparkdl.data.dataset_report import notes_of_datasets
from sparkdl.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of the trial that this process is."""
    monkeypatch.setenv(context.VARIABLE, "{}")
    folder = tmp_path / "trial"
    folder.mkdir()
    context.activate(context.Context(run="r", folder=str(folder)))
    return str(folder)


def test_a_dataset_without_a_full_batch_is_noted(tmp_path: Path, folder: str) -> None:
    path = f"{tmp_path}/three.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path)
    assert notes_of_datasets(folder) == []
    data.parquet(path, batch_size_per_worker=2, last_batch="drop")
    assert notes_of_datasets(folder) == []
    for _ in range(2):
        data.parquet(path, batch_size_per_worker=4, last_batch="drop")
    (note,) = notes_of_datasets(folder)
    assert note == (
        f"{path} gave no step: its 3 rows do not fill a batch of 4, and last_batch is 'drop'"
    )


@pytest.mark.parametrize(
    "conditions",
    [
        {"filter": [("x", ">", 9)]},
        {"where": {"x": [9]}},
        {"split": ("x", 0.0, 1e-9)},
        {"filter": [("k", "=", 3)]},
    ],
)
def test_conditions_that_no_row_passes_are_refused(
    tmp_path: Path, conditions: dict[str, Any]
) -> None:
    (tmp_path / "t" / "k=1").mkdir(parents=True)
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "t" / "k=1" / "a")
    with pytest.raises(ConfigError, match=r"t has no rows\. .* conditions filter=, where="):
        data.parquet(tmp_path / "t", batch_size_per_worker=2, **conditions)


def test_a_header_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n")
    with pytest.raises(ConfigError, match=r"a\.csv has no rows"):
        data.csv(tmp_path / "a.csv", batch_size_per_worker=2)
