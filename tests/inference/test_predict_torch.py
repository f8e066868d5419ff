"""Predictions by models of PyTorch; run by scripts/torch.sh."""

import os
import pickle
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl import data, experiment
from sparkdl.errors import ConfigError
from tests.helpers.models import numbers, values
from tests.helpers.runs import quiet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
    pytest.mark.filterwarnings("ignore:.*torch.jit"),
]


def linear() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.5))


def batch_of(rows: int) -> tuple[Any, pa.RecordBatch]:
    x = np.random.default_rng(0).random((rows, 2), dtype="float32")
    lists = pa.array(x.tolist(), pa.list_(pa.float32()))
    return x, pa.record_batch({"id": pa.array(range(rows)), "x": lists})


def exported(rows: int | None) -> Any:
    import torch

    shapes = None if rows else ({0: torch.export.Dim("rows")},)
    return torch.export.export(linear().eval(), (torch.zeros(rows or 4, 2),), dynamic_shapes=shapes)


def make(kind: str, folder: Path) -> Any:
    """Return a model, or the path of its file."""
    import torch

    if kind == "module":
        return linear()
    if kind == "script":
        return torch.jit.script(linear())
    if kind == "program":
        return exported(None)
    path = folder / ("m.pt" if kind == "script file" else "m.pt2")
    if kind == "script file":
        torch.jit.save(torch.jit.script(linear()), path)
    else:
        torch.export.save(exported(4 if kind == "file of 4 rows" else None), path)
    return path


@pytest.mark.parametrize(
    "kind", ["module", "script", "program", "script file", "program file", "file of 4 rows"]
)
def test_predict_computes_what_the_module_computes(
    spark: SparkSession, tasks: list[Any], tmp_path: Path, kind: str
) -> None:
    import torch

    df = spark.createDataFrame([(0, [1.0])], "id long, x array<float>")
    model = make(kind, tmp_path)
    experiment.predict(model, df, feature_cols="x", outputs="array<float>", batch_size=3)
    x, batch = batch_of(10)
    before = dict(os.environ)
    (found,) = tasks[0]([batch])
    with torch.inference_mode():
        expected = linear().eval()(torch.tensor(x)).numpy()
    assert np.allclose(found["prediction"].to_pylist(), expected, atol=1e-6)
    assert dict(os.environ) == before


def test_a_module_runs_in_the_workers_of_spark(spark: SparkSession) -> None:
    """Its class is in this module, which executors do not have; a worker has no TensorFlow."""
    import torch

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(4, 1, dtype=torch.bfloat16)
            self.table.weight.data[:] = torch.arange(4)[:, None]

        def forward(self, *, ids: Any, x: Any) -> Any:
            return {"found": self.table(ids), "total": x.sum(1), "ids": ids, "cache": None}

    df = numbers(spark).selectExpr("id", "x0", "x1", "id % 4 as place")
    scored = experiment.predict(
        Named(),
        df,
        feature_cols={"ids": "place", "x": ["x0", "x1"]},
        outputs="found float, total float, ids bigint",
    )
    rows = scored.orderBy("id").collect()
    assert [row.prediction_found for row in rows] == [float(i % 4) for i in range(10)]
    assert [row.prediction_ids for row in rows] == [i % 4 for i in range(10)]
    assert np.allclose([r.prediction_total for r in rows], values(df, "x0", "x1").sum(1))


def test_an_index_that_an_embedding_does_not_have_may_become_null(
    spark: SparkSession, tasks: list[Any]
) -> None:
    import torch

    df = spark.createDataFrame([(0,)], "x int")
    table = torch.nn.Embedding(3, 1)
    table.weight.data[:] = torch.tensor([[0.0], [1.0], [2.0]])
    experiment.predict(table, df, feature_cols="x", outputs="float", errors="null")
    (found,) = tasks[0]([pa.record_batch({"x": pa.array([2, 1, 7, 0], pa.int32())})])
    assert found["prediction"].to_pylist() == [2.0, 1.0, None, 0.0]


class Planted:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["module", "weights", "pickle", "constant"])
def test_files_that_run_any_code_are_refused(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    import torch

    path = tmp_path / "m.pt"
    if kind == "module":
        torch.save(linear(), path)
    elif kind == "weights":
        torch.save(linear().state_dict(), path)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Planted(tmp_path / "planted")))
    else:
        torch.export.save(exported(None), path.with_suffix(".pt2"))
        path = path.with_suffix(".pt2")
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("m/data/constants/opaque_obj_0", b"")
    message = {"pickle": "is not an archive", "constant": "contains pickled objects"}
    with pytest.raises(ConfigError, match=message.get(kind, "the file is a pickle")):
        experiment.predict(path, numbers(spark), feature_cols="x0", outputs="float")
    assert not (tmp_path / "planted").exists()


def test_a_pickle_among_the_weights_of_a_program_is_not_loaded(
    spark: SparkSession, tasks: list[Any], tmp_path: Path
) -> None:
    """The loader of PyTorch itself would fall back to loading any pickle."""
    import torch

    path, planted = tmp_path / "m.pt2", tmp_path / "planted"
    torch.export.save(exported(None), tmp_path / "good.pt2")
    torch.save({"x": Planted(planted)}, tmp_path / "bad.pt")
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(path, "w") as bad:
        for name in good.namelist():
            is_sample = name.endswith("sample_inputs/model.pt")
            bad.writestr(name, (tmp_path / "bad.pt").read_bytes() if is_sample else good.read(name))
    df = spark.createDataFrame([(0, [1.0])], "id long, x array<float>")
    experiment.predict(path, df, feature_cols="x", outputs="array<float>")
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        list(tasks[0]([batch_of(2)[1]]))
    assert not planted.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"outputs": None}, "outputs is missing"),
        ({"feature_cols": "s"}, "input 'input_0' would be text"),
    ],
)
def test_predict_refuses_modules_that_do_not_fit(
    spark: SparkSession, given: dict[str, Any], message: str
) -> None:
    df = numbers(spark).selectExpr("*", "'a' as s")
    options: Any = {"feature_cols": ["x0", "x1"], "outputs": "array<float>", **given}
    with pytest.raises(ConfigError, match=message):
        experiment.predict(linear(), df, **options)


@pytest.mark.parametrize("kind", ["module", "script", "program", "program file"])
@pytest.mark.parametrize("floats", ["float32", "float64"])
def test_floats_have_the_dtype_of_the_weights(
    spark: SparkSession, tasks: list[Any], tmp_path: Path, kind: str, floats: str
) -> None:
    """Doubles of Spark, as `Linear` of either dtype takes them."""
    import torch

    module = torch.nn.Linear(1, 1).to(getattr(torch, floats))
    rows = torch.zeros(4, 1, dtype=getattr(torch, floats))
    model: Any = module
    if kind == "script":
        model = torch.jit.script(module)
    elif kind != "module":
        model = torch.export.export(
            module, (rows,), dynamic_shapes=({0: torch.export.Dim("rows")},)
        )
    if kind == "program file":
        torch.export.save(model, tmp_path / "m.pt2")
        model = tmp_path / "m.pt2"
    df = spark.createDataFrame([(0.1,)], "x double")
    experiment.predict(model, df, feature_cols=["x"], outputs="double")
    (found,) = tasks[0]([pa.record_batch({"x": [0.1, 1.0]})])
    expected = module(torch.tensor([[0.1], [1.0]], dtype=getattr(torch, floats))).tolist()
    assert found["prediction"].to_pylist() == [row[0] for row in expected]


@pytest.mark.parametrize("returned", ["module", "program"])
def test_a_trial_knows_its_module_and_the_columns_of_its_training(
    spark: SparkSession, root: str, returned: str
) -> None:
    def train() -> dict[str, Any]:
        import torch

        columns = {"feature_cols": ["age", "visits"], "label_cols": "y"}
        rows = data.dataset("train", fill={"age": 48.0}, batch_size_per_worker=1, **columns)
        x, _ = next(iter(rows.as_torch()))
        net = torch.nn.Linear(2, 1, bias=False)
        net.weight.data[:] = torch.tensor([[1.0, 100.0]])
        assert net(x).item() == 320.0
        if returned == "module":
            return {"model": net, "size": 1}
        torch.jit.save(torch.jit.script(net), "net.pt")
        return {"model": "net.pt", "size": 1}

    df = spark.createDataFrame(
        [(20.0, 3.0, 0.0), (None, 4.0, 1.0)], "age double, visits double, y double"
    ).coalesce(1)
    run = experiment.launch(train, data=df, **quiet(root))
    scored = experiment.predict(run, df.select("visits", "age"), outputs="double", errors="null")
    assert [row.prediction for row in scored.collect()] == [320.0, 448.0]
