"""Training on Spark records the keys of its rows. PyArrow tells which rows there were."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment, models
from sparkdl.errors import ConfigError
from tests.helpers.runs import quiet

pytestmark = pytest.mark.slow


def register(root: str, name: str, run: Any) -> None:
    content = {"format": 1, "name": name, "version": 1, "metrics": {}, "run": run.id, "trial": 0}
    folder = Path(root, "models", name, "1")
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(json.dumps(content))


def test_rows_of_dataframes_and_files_are_found_in_the_models_that_read_them(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    rows = spark.range(100).selectExpr("id", "id / 2 AS x").repartition(4)
    rows.where("id >= 50").write.parquet(str(tmp_path / "late"))
    late = str(tmp_path / "late")

    def train() -> float:
        from sparkdl import data

        total = 0.0
        for batch in data.dataset(batch_size_per_worker=8, feature_cols="x").as_numpy():
            total += float(batch.sum())
        return total

    def read() -> float:
        from sparkdl import data

        files = data.parquet(late, batch_size_per_worker=8, feature_cols="x").as_numpy()
        return float(sum(batch.sum() for batch in files))

    options = quiet(root, row_key="id")
    early = rows.where("id < 60")
    register(root, "gang", experiment.allreduce(train, num_workers=2, data=early, **options))
    register(root, "trial", experiment.launch(train, data=early, **options))
    register(root, "files", experiment.launch(read, **options))
    register(root, "unkept", experiment.launch(read, **quiet(root)))
    for number in (0, 59, 60, 99, 100):
        found = {each.name: each.answer for each in models.affected([number], key="id", root=root)}
        is_early, is_late = number < 60, 50 <= number < 100
        answers = {True: "yes", False: "no"}
        assert found == {
            "gang": answers[is_early],
            "trial": answers[is_early],
            "files": answers[is_late],
            "unkept": "unknown",
        }
    (gang,) = models.affected(rows.select("id"), name="gang", root=root)
    assert gang.num_rows == 60
    with pytest.raises(ConfigError, match="of data 'train', it has no column 'customer'"):
        experiment.launch(train, data=rows, **quiet(root, row_key="customer"))
    with pytest.raises(ConfigError, match="column 'x' is double"):
        experiment.launch(train, data=rows, **quiet(root, row_key="x"))
