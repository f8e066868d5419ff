"""Every example in a docstring runs."""

import doctest
import importlib
import re
import subprocess
import sys
from importlib.util import find_spec
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
        "sparkdl.data.tfexample.dataframe_writer",
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
    *("sparkdl.databricks.keras_stages", "sparkdl.databricks.named_models"),
    "sparkdl.hops.trials",
    *("sparkdl.horovod.launch", "sparkdl.horovod.spark.runner"),
    *("sparkdl.ml.estimator", "sparkdl.ml.model"),
}
# The packages without which the examples of a module cannot run.
WITH_TORCH = {
    **{name: "torch" for name in NAMES if name.startswith("sparkdl.horovod.torch")},
    "sparkdl.inference.torch_objects": "torch",
    "sparkdl.huggingface": "transformers",
    "sparkdl.lightning": "lightning",
    **dict.fromkeys(("sparkdl.ml.torch_estimator", "sparkdl.ml.torch_model"), "torch"),
}
# These import TensorFlow or PyTorch.
SLOW = {
    *("sparkdl.data.readers.delimited", "sparkdl.data.readers.images", "sparkdl.keras"),
    *WITH_TORCH,
    *("sparkdl.data.readers.parquet", "sparkdl.data.readers.tfrecord"),
    *("sparkdl.databricks.horovod_runner", "sparkdl.databricks.log_callback"),
    *("sparkdl.distribute.collectives", "sparkdl.distribute.optimizers"),
    *(name for name in NAMES if name.startswith("sparkdl.horovod")),
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
    if name in WITH_TORCH:
        check_with_torch(name)
        return
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0


def check_with_torch(name: str) -> None:
    """Run the examples in a process without TensorFlow, with which PyTorch may not fit."""
    if find_spec(WITH_TORCH[name]) is None:
        pytest.skip(f"{WITH_TORCH[name]} is not installed")
    code = f"import doctest, {name} as module; print(doctest.testmod(module, optionflags=8))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert re.search(r"failed=0, attempted=[1-9]", done.stdout), done.stdout + done.stderr
