"""Every feature that needs an optional package names its extra, before anything starts.

The package is blocked, as if it were not installed; the extras are those of setup.cfg.
"""

import ast
import configparser
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.registry import _registry

from sparkdl import callbacks, data, experiment, ml, models, search, serving
from sparkdl.board.server import TensorBoardServer
from sparkdl.data.readers.petastorm import compat as petastorm
from sparkdl.errors import ConfigError, MissingPackageError
from sparkdl.files import storage
from sparkdl.files.model_formats import load_model
from sparkdl.hops import kafka
from sparkdl.host import optional_packages
from sparkdl.host.optional_packages import EXTRAS, advice_for_missing, is_installed, require
from sparkdl.inference.loaders import LOADERS
from sparkdl.inference.resolve import resolve_model
from sparkdl.monitoring.distances import chi_squared
from sparkdl.ui.server import serve

REPOSITORY = Path(__file__).parents[2]


def setup() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    return config


def train(x: int = 0) -> float:
    return x


def rows(folder: Path) -> Any:
    path = str(folder / "rows.parquet")
    pq.write_table(pa.table({"x": [1.0, 2.0]}), path)
    return data.parquet(path, batch_size_per_worker=1)


def empty_file(folder: Path, name: str) -> str:
    (folder / name).touch()
    return str(folder / name)


def saved_model(folder: Path) -> str:
    (folder / "model").mkdir()
    (folder / "model" / "saved_model.pb").touch()
    return str(folder / "model")


def find(algorithm: str) -> None:
    space = {"x": search.Int(0, 3)}
    experiment.search(train, space, num_trials=1, algorithm=algorithm, metric="x", direction="max")


# The package, its extra, and what needs it. Nothing here may start Spark, or a server.
FEATURES: list[tuple[str, str, Callable[[Path], Any]]] = [
    ("tensorboard", "tensorboard", lambda f: experiment.launch(train, tensorboard=True)),
    ("tensorboard", "tensorboard", lambda f: TensorBoardServer(str(f))),
    (
        "tensorflow",
        "tensorflow",
        lambda f: experiment.parameter_server(train, num_workers=1, num_ps=1),
    ),
    ("tensorflow", "tensorflow", lambda f: next(iter(rows(f)))),
    ("torch", "torch", lambda f: rows(f).as_torch()),
    ("jax", "jax", lambda f: rows(f).as_jax()),
    ("tensorflow", "tensorflow", lambda f: data.images(str(f), size=(2, 2))),
    ("tensorflow", "tensorflow", lambda f: ml.KerasEstimator(train)),
    ("tensorflow", "tensorflow", lambda f: models.export(saved_model(f), "digits", root=str(f))),
    ("tf2onnx", "onnx", lambda f: models.export(saved_model(f), "m", onnx=True, root=str(f))),
    ("tensorflow", "tensorflow", lambda f: load_model(Path(saved_model(f)))),
    ("tensorflow", "tensorflow", lambda f: resolve_model(saved_model(f), "serving_default")),
    ("torch", "gp", lambda f: find("gp")),
    ("scipy", "gp", lambda f: find("gp")),
    ("scipy", "qmc", lambda f: find("qmc")),
    ("cmaes", "cmaes", lambda f: find("cmaes")),
    ("scipy", "monitoring", lambda f: chi_squared([1, 2], [2, 1])),
    ("mlflow", "mlflow", lambda f: callbacks.MLflow(str(f))),
    ("confluent_kafka", "kafka", lambda f: kafka.create_topic("rows")),
    ("deltalake", "delta", lambda f: data.delta(str(f), batch_size_per_worker=1)),
    ("petastorm", "petastorm", lambda f: petastorm.load.__wrapped__()),
    ("lightning", "lightning", lambda f: importlib.import_module("sparkdl.lightning")),
    ("transformers", "huggingface", lambda f: importlib.import_module("sparkdl.huggingface")),
    ("waitress", "ui", lambda f: serve(str(f))),
    ("werkzeug", "ui", lambda f: serve(str(f))),
    *(
        (package, EXTRAS[package], lambda f: serving.start("digits", root=str(f)))
        for package in ("h11", "prometheus_client", "uvicorn", "uvloop")
    ),
    ("tensorflow", "tensorflow", lambda f: serving.start(saved_model(f))),
    ("onnxruntime", "onnx", lambda f: models.export(empty_file(f, "m.onnx"), "m", root=str(f))),
    ("xgboost", "xgboost", lambda f: LOADERS["xgboost"](f)),
    *(
        (package, EXTRAS[package], lambda f: serving.start("digits", grpc_port=0, root=str(f)))
        for package in ("grpc", "tensorflow_serving")
    ),
]


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("sparkdl.runner.pipeline.prepare.SparkCluster", refuse)


@pytest.mark.parametrize(
    ("package", "extra", "call"), FEATURES, ids=[f"{n}-{p}" for n, (p, *_) in enumerate(FEATURES)]
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str,
    extra: str,
    call: Callable[[Path], Any],
    tmp_path: Path,
    no_spark: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"\b{package}\b.*\[{extra}\]'$"):
        call(tmp_path)


def test_stores_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    with pytest.raises(ConfigError, match=r"'sparkdl-platform\[s3\]'"):
        storage.read("s3://bucket/file")


def test_every_feature_has_an_extra_of_setup_cfg() -> None:
    extras = setup()["options.extras_require"]
    named = {*EXTRAS.values(), *(extra for _, extra, _ in FEATURES)}
    assert named <= set(extras)
    # The others are asked for where a module is imported, or a store is opened.
    others = {"adlfs", "gcsfs", "hdfs_native", "keras", "ml_dtypes", "PIL", "s3fs", "skops"}
    assert {package for package, *_ in FEATURES} | others == set(EXTRAS)


# Modules whose distribution has another name, and that a framework or pyspark brings along.
DISTRIBUTIONS = {"yaml": "pyyaml", "google_crc32c": "google-crc32c"}
BROUGHT = {"google", "h5py", "IPython", "ipywidgets", "tf_keras"}


def test_every_import_is_of_the_core_or_has_an_extra() -> None:
    """A new dependency is in `install_requires`, or in EXTRAS."""
    lines = setup()["options"]["install_requires"].splitlines()
    core = {re.split(r"[ >=<]", line)[0] for line in lines if line and line[0] != "#"}
    unknown = set()
    for path in (REPOSITORY / "sparkdl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            for top in {name.partition(".")[0] for name in names}:
                if DISTRIBUTIONS.get(top, top) not in core:
                    unknown.add(top)
    assert unknown - sys.stdlib_module_names - EXTRAS.keys() - BROUGHT == {"sparkdl"}


def test_a_folder_of_the_same_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cmaes").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "cmaes", raising=False)
    assert not is_installed("cmaes")
    with pytest.raises(MissingPackageError, match=re.escape(sys.executable)):
        require("cmaes", "this test")


def test_a_missing_module_of_an_installed_package_is_no_reason_to_install_it() -> None:
    scipy = importlib.import_module("scipy")
    with pytest.raises(ModuleNotFoundError) as failed:
        importlib.import_module("scipy.examples.tutorials")
    assert failed.value.name == "scipy.examples"
    advice = advice_for_missing(failed.value.name) or ""
    assert f"scipy {scipy.__version__} is installed" in advice
    assert "pip" not in advice


def test_a_missing_package_is_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_packages, "is_installed", lambda module: False)
    assert "pip install 'sparkdl-platform[mlflow]'" in (advice_for_missing("mlflow.keras") or "")
