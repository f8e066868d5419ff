"""The folders of temporary copies of models."""

from pathlib import Path

import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from sparkdl.inference.model_file import temporary_folder


@pytest.mark.slow
def test_a_copy_in_a_task_is_inside_the_folder_that_spark_removes(spark: SparkSession) -> None:
    def folders(_: int) -> tuple[str, str]:
        with temporary_folder() as folder:
            return str(folder.parent), SparkFiles.getRootDirectory()

    parent, removed_by_spark = spark.sparkContext.parallelize([0], 1).map(folders).first()
    assert parent == removed_by_spark
    assert not list(Path(parent).glob("sparkdl-model-*"))
