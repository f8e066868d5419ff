"""`--master` and `--conf` together with the options that the environment has already."""

import argparse
import os

import pytest

from sparkdl.cli.spark_options import use_spark_options


@pytest.mark.parametrize("earlier", ["--conf a=b pyspark-shell", "--conf a=b pyspark-shell "])
def test_options_come_before_the_name_of_the_shell(
    earlier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", earlier)
    use_spark_options(argparse.Namespace(master="yarn", conf=["c=d e"]))
    words = "--conf a=b --master yarn --conf 'c=d e' pyspark-shell"
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == words
