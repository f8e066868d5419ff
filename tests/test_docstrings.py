"""Every example in a docstring runs."""

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sparkdl"
NAMES = [
    "sparkdl." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>>" in path.read_text() and path.name != "__init__.py"
]
SPARK = {
    *(
        "sparkdl.data.dataframe.dataset",
        "sparkdl.data.local_rows",
        "sparkdl.data.tfexample.dataframe_io",
    ),
    *(
        "sparkdl.experiment.distributed",
        "sparkdl.experiment.reproducing",
        "sparkdl.experiment.saved_runs",
        "sparkdl.experiment.trials",
    ),
    *("sparkdl.inference.prediction", "sparkdl.tfos.dfutil", "sparkdl.tfos.pipeline"),
    *("sparkdl.monitoring.drift", "sparkdl.monitoring.performance"),
    *("sparkdl.monitoring.read_log", "sparkdl.profiles.profile"),
    *("sparkdl.hops.trials", "sparkdl.tfos.reservation"),
}
# These import TensorFlow.
SLOW = {
    *("sparkdl.data.readers.delimited", "sparkdl.data.readers.images", "sparkdl.keras"),
    *("sparkdl.data.readers.parquet", "sparkdl.data.readers.tfrecord"),
    *("sparkdl.distribute.collectives", "sparkdl.distribute.optimizers"),
    *("sparkdl.horovod.callbacks", "sparkdl.horovod.training"),
    "sparkdl.models.exporting",
    *("sparkdl.tfos.compat", "sparkdl.tfos.node.saved_model"),
} | SPARK


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in NAMES]
)
def test_examples_in_docstrings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    # An active Spark session of another test has a folder of its own.
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path / "runs"))
    if name in SPARK:
        request.getfixturevalue("spark")
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
