"""Names that programs import from `horovod.spark`, taken from its source at 0.28.1."""

import importlib

import pytest

LOOP = r"experiment\.allreduce\(train, num_workers=\.\.\., data=df, framework=\"torch\"\)"
ROWS = r"call fit\(df\)"


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("torch.datamodule", "NVTabularDataModule", ROWS),
        ("lightning", "TorchEstimator", LOOP),
        ("lightning.estimator", "MIN_PL_VERSION", LOOP),
        ("lightning.datamodule", "PetastormDataModule", ROWS),
        ("keras.datamodule", "NVTabularDataModule", ROWS),
        ("common.cache", "TrainingDataCache", r"fit\(df\.cache\(\)\)"),
        ("common.constants", "ARRAY", ROWS),
        ("common.datamodule", "DataModule", ROWS),
        ("common.estimator", "HorovodEstimator", r"pyspark\.ml\.Estimator"),
        ("common.serialization", "HorovodParamsWriter", r"model\.save\(path\)"),
        ("common.util", "prepare_data", ROWS),
        ("conf", "SPARK_CONF_BLACKLIST_ENABLED", r"spark\.excludeOnFailure"),
    ],
)
def test_an_import_of_an_absent_name_shows_the_line_to_write(
    module: str, name: str, instead: str
) -> None:
    with pytest.raises(ImportError, match=instead):
        exec(f"from sparkdl.horovod.spark.{module} import {name}", {})  # noqa: S102


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("spark.keras.estimator", "KerasEstimator"),
        ("spark.keras.estimator", "KerasModel"),
        ("spark.torch", "TorchEstimator"),
        ("spark.torch.estimator", "TorchModel"),
        ("spark.common.params", "EstimatorParams"),
        ("spark.common.backend", "SparkBackend"),
        ("spark.common.store", "DBFSLocalStore"),
        ("spark.conf", "SPARK_CONF_ALWAYS_RESTART_FAILED_TASK"),
        ("runner.common.util.timeout", "TimeoutException"),
    ],
)
def test_a_name_is_where_horovod_has_it(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(f"sparkdl.horovod.{module}"), name)
