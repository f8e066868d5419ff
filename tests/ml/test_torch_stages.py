"""PyTorch stages of Spark ML: params, fits on two slots against DDP, predictions, saved stages.

What needs no PyTorch runs without it.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit
from pyspark.sql import DataFrame, SparkSession

from sparkdl import experiment, models
from sparkdl.errors import ConfigError
from sparkdl.ml import TorchEstimator, TorchModel, saved_by_name
from sparkdl.ml.torch_losses import loss_by_row, task_and_logits
from tests.programs import torch_stages
from tests.programs.torch_stages import absolute_error, accuracy, classifier, linear, regressor

QUIET = {"progress": False}


@pytest.fixture
def root(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    return root


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def points(spark: SparkSession) -> DataFrame:
    """The label is 1 where a + b > 0; every fourth row is for validation."""
    x = np.random.default_rng(0).normal(size=(200, 2))
    rows = [(i, float(a), float(b), float(a + b > 0), i % 4 == 0) for i, (a, b) in enumerate(x)]
    return spark.createDataFrame(rows, "id int, a double, b double, label double, held boolean")


def of_torch(kind: str, name: str, **attributes: Any) -> Any:
    """Return an object whose class is named as one of PyTorch."""
    return type(name, (), {"__module__": kind, "__call__": lambda *_: None, **attributes})()


MODULE = "torch.nn.modules.module"
LOSS = "torch.nn.modules.loss"


# ---- params, without PyTorch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs is 0; expected a whole number of at least 1"),
        ({"epoch": 3}, "no param 'epoch'. Did you mean 'epochs'"),
        ({"runOptions": {"framework": "jax"}}, "'framework', which is not possible"),
        (
            {"model": 3},
            "model is 3, an int; expected a torch.nn.Module, or a function that returns",
        ),
        ({"model": lambda epochs: epochs}, "parameter 'epochs', which the stage itself has"),
        ({"model": of_torch(MODULE, "Module")}, "optimizer is None for model 'Module'"),
        ({"optimizer": object()}, "none beside a function"),
        ({"loss": "mse"}, "loss is 'mse'; expected a function"),
        ({"loss": dict}, "loss is <class 'dict'>; expected a function"),
        ({"metrics": {"loss": abs}}, "metrics is .*; expected functions"),
        ({"metrics": ["accuracy"]}, "metrics is .*; expected functions"),
        ({"metrics": [abs, abs]}, "metrics is .*; expected functions"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_arguments_are_checked_when_they_are_set(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        TorchEstimator(**{"model": classifier, "loss": absolute_error, **arguments})


def test_params_have_setters_getters_and_copies(spark: SparkSession) -> None:
    estimator = TorchEstimator(classifier, loss=absolute_error, metrics=[accuracy], units=8)
    other = estimator.copy({estimator.units: 16, estimator.epochs: 5})
    assert (other.getOrDefault("units"), other.getEpochs(), other.uid) == (16, 5, estimator.uid)
    assert (estimator.getOrDefault("units"), estimator.getEpochs()) == (8, 1)
    assert (other.model, other.loss, other.metrics) == (
        classifier,
        absolute_error,
        {"accuracy": accuracy},
    )
    assert "units: parameter of the function of the model" in other.explainParams()
    with pytest.raises(ConfigError, match=r"torch_model is a str; expected a torch\.nn\.Module"):
        TorchModel("model.pt", task="regression")


@pytest.mark.parametrize(
    ("loss", "task", "from_logits", "expected"),
    [
        (of_torch(LOSS, "CrossEntropyLoss"), None, None, ("classification", True)),
        (of_torch(LOSS, "NLLLoss"), None, None, ("classification", True)),
        (of_torch(LOSS, "BCELoss"), None, None, ("classification", False)),
        (of_torch(LOSS, "MSELoss"), None, None, ("regression", False)),
        (of_torch(LOSS, "MSELoss"), "classification", True, ("classification", True)),
        (absolute_error, "regression", None, ("regression", False)),
        (of_torch(LOSS, "MSELoss"), "classification", None, "does not tell logits"),
        (of_torch("mine", "MSELoss"), None, None, "'MSELoss' does not tell classification"),
        (absolute_error, None, True, "'absolute_error' does not tell classification"),
    ],
)
def test_a_loss_of_pytorch_tells_task_and_logits(
    loss: Any, task: str | None, from_logits: bool | None, expected: Any
) -> None:
    if not isinstance(expected, str):
        assert task_and_logits(loss, task, from_logits) == expected
        return
    with pytest.raises(ConfigError, match=expected):
        task_and_logits(loss, task, from_logits)


def test_only_a_loss_with_values_of_rows_takes_weights() -> None:
    loss = of_torch(LOSS, "MSELoss", reduction="mean")
    assert loss_by_row(loss).reduction == "none"
    assert loss.reduction == "mean"
    with pytest.raises(ConfigError, match="weightCol needs the loss of each row"):
        loss_by_row(absolute_error)


# ---- saved, without PyTorch


def test_only_functions_with_the_mark_are_saved_and_loaded(
    spark: SparkSession, tmp_path: Path
) -> None:
    metrics = {"right": accuracy}
    estimator = TorchEstimator(classifier, loss=absolute_error, metrics=metrics, units=8, epochs=7)
    Pipeline(stages=[estimator]).save(str(tmp_path / "saved"))
    [again] = Pipeline.load(str(tmp_path / "saved")).getStages()
    assert (again.uid, again.getEpochs(), again.getOrDefault("units")) == (estimator.uid, 7, 8)
    assert (again.model, again.loss, again.metrics) == (classifier, absolute_error, metrics)
    [metadata] = (tmp_path / "saved" / "stages").glob("*/metadata/part-*")
    # A folder that names another function, which loading would hand its params to.
    changed = metadata.read_text().replace("tests.programs.torch_stages", "os")
    (tmp_path / "forged" / "metadata").mkdir(parents=True)
    changed = changed.replace("classifier", "system")
    (tmp_path / "forged" / "metadata" / "part-0").write_text(changed)
    with pytest.raises(ConfigError, match=r"of the module 'os', which is not there, or not for"):
        TorchEstimator.load(str(tmp_path / "forged"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": lambda: 3}, "model is .*cannot be saved: a saved stage contains no code"),
        ({"model": partial(classifier)}, r"model is functools\.partial"),
        ({"loss": of_torch(LOSS, "MSELoss")}, "loss is .*cannot be saved"),
        ({"metrics": {"m": abs}}, r"metrics\['m'\] is .*cannot be saved"),
        ({"model": of_torch(MODULE, "Module"), "optimizer": 3}, "model is a module, Module, which"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_saved_is_named(
    spark: SparkSession, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    estimator = TorchEstimator(**{"model": classifier, "loss": absolute_error, **arguments})
    with pytest.raises(ConfigError, match=message):
        estimator.save(str(tmp_path / "saved"))
    assert not (tmp_path / "saved").exists()


def test_a_function_inside_another_has_no_name_to_save() -> None:
    with pytest.raises(ConfigError, match=r"saved_by_name got .*at the top of a module"):
        saved_by_name(lambda: 3)


def test_a_model_without_inputs_is_not_saved(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the param inputs is not set"):
        TorchModel(of_torch(MODULE, "Module"), task="regression").save(str(tmp_path / "saved"))


# ---- fit


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
def test_a_pipeline_trains_on_two_workers_and_its_columns_suit_the_evaluators(
    torch: Any, spark: SparkSession, points: DataFrame, root: str, tmp_path: Path
) -> None:
    together = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    estimator = TorchEstimator(
        classifier,
        loss=torch.nn.functional.cross_entropy,
        metrics=[accuracy],
        units=8,
        epochs=12,
        numWorkers=2,
        seed=3,
        runOptions=QUIET,
    )
    estimator.setValidationIndicatorCol("held").setBatchSize(10).setCheckpointInterval(5)
    fitted = Pipeline(stages=[together, estimator]).fit(points)
    model = fitted.stages[1]
    run = experiment.load(model.getRunPath())
    numbers = {"accuracy", "loss", "val_accuracy", "val_loss"}
    assert run.result.keys() == {*numbers, "weights", "model"}
    assert [line["rows"] for line in run.trials[0].data] == [150, 50]
    assert list(run.trials[0].history.index) == list(range(12))
    assert (model.uid, model.getTask(), model.getFromLogits()) == (
        estimator.uid,
        "classification",
        True,
    )
    assert model.getInputs() == [["input_0", "float32", [2]]]
    found = fitted.transform(points)
    multiclass = MulticlassClassificationEvaluator(metricName="accuracy")
    assert multiclass.evaluate(found) > 0.8
    held = multiclass.evaluate(found.filter("held"))
    assert held == pytest.approx(run.result["val_accuracy"])
    rows = found.collect()
    with torch.no_grad():
        outputs = model.torch_model(torch.tensor([(row.a, row.b) for row in rows]))
    raw = np.array([row.rawPrediction.toArray() for row in rows])
    np.testing.assert_allclose(raw, outputs.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        [row.probability.toArray() for row in rows], outputs.softmax(1).numpy(), rtol=1e-5
    )
    assert torch.equal(run.trials[0].model()[0].weight, model.torch_model[0].weight)
    fitted.write().overwrite().save(str(tmp_path / "saved"))
    again = PipelineModel.load(str(tmp_path / "saved"))
    loaded = np.array([row.rawPrediction.toArray() for row in again.transform(points).collect()])
    np.testing.assert_allclose(loaded, raw, rtol=1e-5, atol=1e-6)
    again.write().overwrite().save(str(tmp_path / "again"))
    assert PipelineModel.load(str(tmp_path / "again")).stages[1].getRunPath() == run.path
    exported = models.export(run, "points", signature=np.zeros((2, 2), "float32"))
    assert exported.version == 1


def noted_in(folder: str) -> Callable[[Any, Any], float]:
    def note(outputs: Any, labels: Any) -> float:
        import os

        numbers = (labels * 50).round().long().flatten().tolist()
        with open(f"{folder}/rank-{os.environ['RANK']}.txt", "a") as file:
            file.write(" ".join(map(str, numbers)) + "\n")
        return 0.0

    return note


@pytest.mark.slow
def test_weights_are_those_of_ddp_with_the_same_batches(
    torch: Any, spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """Bit for bit, also with the state of momentum, over three epochs with a short last batch."""
    rows = [(*torch_stages.point(number), number / 50) for number in range(37)]
    df = spark.createDataFrame(rows, "a double, b double, label double")
    estimator = TorchEstimator(
        regressor,
        loss=torch.nn.MSELoss(),
        metrics={"note": noted_in(str(tmp_path))},
        featuresCol=["a", "b"],
        numWorkers=2,
        batchSize=8,
        epochs=3,
        runOptions=QUIET,
    )
    model = estimator.fit(df)
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*words, torch_stages.__name__, tmp_path], env=environ, check=True, timeout=200)
    expected = torch.load(tmp_path / "expected-0.pt")
    steps = [(tmp_path / f"rank-{rank}.txt").read_text().splitlines() for rank in range(2)]
    assert len(steps[0]) == len(steps[1]) == 15
    seen = {int(word) for line in (*steps[0][:5], *steps[1][:5]) for word in line.split()}
    assert seen == set(range(37))
    for name, value in model.torch_model.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.slow
def test_a_module_with_two_inputs_and_weights_goes_on_from_its_state(
    torch: Any, spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """Only rows of weight 1 say that the target is 3 a + 3 b + 0 c. The oracle is a loop."""

    class Two(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net, _ = linear(3)

        def forward(self, second: Any, first: Any) -> Any:
            return self.net(torch.cat([first, second[:, None]], dim=1))

    net = Two()
    optimizer = torch.optim.SGD(net.parameters(), 0.001, momentum=0.9)
    rows = [
        (float(i % 7), float(i % 5), 1.0, 3.0 * (i % 7 + i % 5) if i % 2 else -1e6, float(i % 2))
        for i in range(140)
    ]
    df = spark.createDataFrame(rows, "a double, b double, c double, target double, trust double")
    estimator = TorchEstimator(
        net,
        optimizer=optimizer,
        loss=torch.nn.HuberLoss(),
        featuresCol={"first": ["a", "b"], "second": "c"},
        labelCol="target",
        weightCol="trust",
        numWorkers=2,
        epochs=15,
        batchSize=140,
        checkpointInterval=-1,
        predictionCol="estimate",
        runOptions={**QUIET, "name": "weighted"},
    )
    before = [p.detach().clone() for p in net.parameters()]
    model = estimator.fit(df)
    assert all(torch.equal(p, q) for p, q in zip(before, net.parameters(), strict=True))
    run = experiment.load(model.getRunPath())
    assert (run.name, run.trials[0].checkpoints, len(run.trials[0].history)) == ("weighted", [], 15)
    x = torch.tensor(rows)
    net.train()
    for _ in range(15):
        optimizer.zero_grad()
        outputs = net(x[:, 2], x[:, :2])[:, 0]
        losses = torch.nn.functional.huber_loss(outputs, x[:, 3], reduction="none")
        (losses * x[:, 4]).mean().backward()
        optimizer.step()
    for found, expected in zip(model.torch_model.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(found, expected)
    model.save(str(tmp_path / "saved"))
    for each in (model, TorchModel.load(str(tmp_path / "saved"))):
        estimates = [row.estimate for row in each.transform(df).collect()]
        with torch.no_grad():
            np.testing.assert_allclose(estimates, net(x[:, 2], x[:, :2])[:, 0], rtol=1e-4)


@pytest.mark.slow
def test_a_killed_fit_ends_with_the_same_weights(
    torch: Any, spark: SparkSession, root: str, tmp_path: Path
) -> None:
    flag = tmp_path / "killed"
    rows = [(*torch_stages.point(number), number / 50) for number in range(32)]
    df = spark.createDataFrame(rows, "a double, b double, label double").coalesce(1)

    def kill(outputs: Any, labels: Any) -> float:
        import os
        import signal

        from sparkdl import context

        found = context.get_checkpoint()
        steps = Path(f"{flag}-steps")
        with steps.open("a") as file:
            file.write(f"{found is not None}\n")
        is_late = len(steps.read_text().splitlines()) == 10
        if is_late and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.0

    found = []
    for metrics in ({"kill": kill}, {}):
        estimator = TorchEstimator(
            regressor,
            loss=torch.nn.MSELoss(),
            metrics=metrics,
            featuresCol=["a", "b"],
            shuffle=False,
            batchSize=8,
            epochs=5,
            runOptions={**QUIET, "max_restarts": 1},
        )
        found.append(estimator.fit(df))
    run = experiment.load(found[0].getRunPath())
    assert run.trials[0].attempts == 2
    # Ten steps, and those of the third epoch and later again.
    assert len((tmp_path / "killed-steps").read_text().splitlines()) == 10 + 12
    pair = (each.torch_model.state_dict().values() for each in found)
    assert all(torch.equal(a, b) for a, b in zip(*pair, strict=True))


@pytest.mark.slow
# Spark leaves its threads to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")
def test_a_grid_varies_the_function_of_the_model(
    torch: Any, spark: SparkSession, points: DataFrame, root: str
) -> None:
    estimator = TorchEstimator(
        classifier,
        loss=torch.nn.functional.cross_entropy,
        featuresCol=["a", "b"],
        epochs=3,
        seed=1,
        runOptions=QUIET,
    )
    # A learning rate of 0 learns nothing.
    split = TrainValidationSplit(
        estimator=estimator,
        estimatorParamMaps=ParamGridBuilder().addGrid(estimator.learning_rate, [0.0, 0.1]).build(),
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        parallelism=2,
        seed=0,
    )
    best = split.fit(points)
    assert best.validationMetrics[1] > best.validationMetrics[0]


# ---- what a fit refuses


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"featuresCol": "c"}, "there is no column 'c'"),
        ({"labelCol": "name"}, "labels in the column 'name' are strings"),
        ({"featuresCol": "name"}, "would be text"),
        ({"batchSize": 9, "numWorkers": 2}, "batchSize is 9 for numWorkers=2"),
        ({"loss": absolute_error}, "'absolute_error' does not tell classification"),
        ({"loss": absolute_error, "task": "regression", "weightCol": "a"}, "weightCol needs"),
        ({"model": lambda: 3}, "the model is int; expected a torch.nn.Module and an optimizer"),
        ({"model": lambda: (linear(2)[0], linear(2)[1])}, "are not those of Linear"),
        ({"featuresCol": {"x": "a", "y": "b"}}, r"passes to Sequential.forward by name: x, y"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_fit_refuses_what_is_wrong_before_any_run(
    torch: Any, points: DataFrame, root: str, params: dict[str, Any], message: str
) -> None:
    df = points.selectExpr("*", "'x' AS name")
    given = {"model": classifier, "loss": torch.nn.CrossEntropyLoss(), "featuresCol": ["a", "b"]}
    with pytest.raises(ConfigError, match=message):
        TorchEstimator(**{**given, **params}).fit(df)
    assert list(Path(root).iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "params", "message"),
    [
        ({}, {"model": lambda: linear(2, 3), "loss": "BCEWithLogitsLoss"}, "several classes"),
        ({"label": "0.5D"}, {}, "column 'label' has 0.5, which the loss takes as int64"),
        ({"a": "1e300D"}, {}, r"1e\+300, which float32 cannot represent"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_fit_refuses_rows_that_the_module_or_the_loss_would_change(
    torch: Any,
    spark: SparkSession,
    root: str,
    columns: dict[str, str],
    params: dict[str, Any],
    message: str,
) -> None:
    values = {"a": "1.0D", "b": "2.0D", "label": "1.0D", **columns}
    df = spark.sql("SELECT " + ", ".join(f"{value} AS {name}" for name, value in values.items()))
    loss = getattr(torch.nn, params.get("loss", "CrossEntropyLoss"))()
    model = params.get("model", lambda: linear(2, 3))
    estimator = TorchEstimator(
        model, loss=loss, featuresCol=["a", "b"], batchSize=1, runOptions=QUIET
    )
    with pytest.raises(Exception, match=message):
        estimator.fit(df)


@pytest.mark.slow
def test_a_regression_and_a_probability_are_columns_of_numbers(
    torch: Any, spark: SparkSession
) -> None:
    df = spark.createDataFrame([(2.0, 1.0, 3.0)], "a double, b double, label double")
    net, _ = linear(2)
    params = {"featuresCol": ["a", "b"], "outputs": "double"}
    row = TorchModel(net, task="regression", **params).transform(df).first()
    assert row.prediction == 3.0
    row = TorchModel(net, task="classification", fromLogits=True, **params).transform(df).first()
    assert row.rawPrediction.toArray().tolist() == [-3.0, 3.0]
    vector = TorchModel(linear(2, 2)[0], task="regression", featuresCol=["a", "b"]).transform(df)
    assert vector.first().prediction.toArray().tolist() == [3.0, 3.0]
    assert RegressionEvaluator().evaluate(
        TorchModel(net, task="regression", **params).transform(df)
    ) == pytest.approx(0.0)


@pytest.mark.slow
def test_a_fit_keeps_the_dtype_and_the_columns(torch: Any, spark: SparkSession, root: str) -> None:
    net, optimizer = linear(2)
    df = spark.createDataFrame([(0.1, 0.2, 0.1 + 0.2)], "a double, b double, label double")
    loss = torch.nn.functional.mse_loss
    options = {"optimizer": optimizer, "epochs": 1, "batchSize": 1, "runOptions": QUIET}
    estimator = TorchEstimator(net.double(), loss=loss, featuresCol=["a", "b"], **options)
    fitted = estimator.fit(df)
    assert fitted.transform(df).first().prediction == 0.1 + 0.2  # In float32, it is another number.
    run = experiment.load(fitted.getRunPath())
    version = models.export(run, "net", signature=np.zeros((1, 2)), root=root)
    assert experiment.predict(version, df).first().prediction == 0.1 + 0.2
    with pytest.raises(ConfigError, match=r"was trained with \['a', 'b'\]"):
        experiment.predict(version, df, feature_cols=["b", "a"])
