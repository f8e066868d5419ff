"""Horovod's estimator for PyTorch on Spark, against PyTorch itself."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession

import sparkdl.horovod.spark.torch as hvd
from sparkdl.errors import ConfigError
from sparkdl.horovod.spark.common.backend import SparkBackend
from sparkdl.horovod.spark.common.store import Store

POINTS = np.random.default_rng(3).normal(size=(16, 4)).astype("f4")
TARGETS = POINTS @ np.array([1, -2, 3, 0.5], "f4") + 1
CLASSES = (POINTS[:, 0] > 0).astype(int)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    data = [
        (Vectors.dense(point), float(point[0]), float(target), int(of), int(number % 4 == 0))
        for number, (point, target, of) in enumerate(zip(POINTS, TARGETS, CLASSES, strict=True))
    ]
    return spark.createDataFrame(data, ["x", "a", "y", "c", "v"])


def module(name: str = "Module") -> Any:
    """Return an object whose class is named as that of a module of PyTorch."""
    members = {"__module__": "torch.nn.modules.module", "forward": lambda self, x, y: x}
    return type(name, (), members)()


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"loss_constructors": [print]}, "pass the loss itself"),
        ({"train_minibatch_fn": print}, "experiment.allreduce"),
        ({"backward_passes_per_step": 2}, "set batch_size to the rows of all passes"),
        ({"loss_weights": [0.5]}, "with one label the loss has no other"),
        ({"run_id": "a"}, "run_id is 'a', .*experiment.resume"),
        ({"label_cols": ["a", "b"]}, "experiment.allreduce"),
        ({"model": object()}, r"model is an object; expected a torch\.nn\.Module"),
        ({"loss": [print, print]}, "loss contains .*expected one function, for one label"),
        ({"input_shapes": [[-1], [-1]]}, "expected a shape for each column"),
        ({"feature_cols": ["x", "y", "z"]}, "a module that takes x, y; expected a column for each"),
        ({"feature_cols": ["x", "a"], "input_shapes": [[-1, 2, 2], [-1]]}, r"x\.reshape\(\[-1, 2,"),
        ({"loss": None}, "loss is None; expected a function"),
        ({"optimizer": None}, "optimizer is None for model 'Module'"),
        ({"optimizers": 3}, r"no param 'optimizers'. Did you mean 'optimizer'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_not_carried_is_refused(
    params: dict[str, Any], says: str, spark: SparkSession
) -> None:
    given = {"num_proc": 1, "feature_cols": ["x"], "label_cols": ["y"], "model": module()}
    given |= {"optimizer": object(), "loss": print, **params}
    with pytest.raises(ConfigError, match=says):
        hvd.TorchEstimator(**given).fit(spark.range(1))


@pytest.mark.slow
def test_a_fit_equals_that_of_pytorch_with_the_global_batch(
    torch: Any, rows: DataFrame, tmp_path: Path
) -> None:
    """Each step has all rows that train, so that their order does not count."""

    def network() -> Any:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 1))

    def absolute(outputs: Any, labels: Any) -> Any:
        return (outputs - labels).abs().mean()

    expected = network()
    optimizer = torch.optim.SGD(expected.parameters(), 0.1, momentum=0.9)
    is_validation = np.arange(16) % 4 == 0
    x, y = torch.tensor(POINTS), torch.tensor(TARGETS)[:, None]
    losses, validated = [], []
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(expected(x[~is_validation]), y[~is_validation])
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            validated.append(float(absolute(expected(x[is_validation]), y[is_validation])))
    net, output = network(), io.StringIO()

    def mean_squared(outputs: Any, labels: Any) -> Any:
        print("a step")
        return torch.nn.functional.mse_loss(outputs, labels.float())

    estimator = hvd.TorchEstimator(
        backend=SparkBackend(num_proc=2, env={"A": "b"}, verbose=0, stdout=output),
        store=Store.create(str(tmp_path)),
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), 0.1, momentum=0.9),
        loss=[mean_squared],
        metrics=[[absolute]],
        input_shapes=[[-1, 2, 2]],
        feature_cols=["x"],
        label_cols=["y"],
        validation="v",
        batch_size=6,
        inmemory_cache_all=True,
    )
    model = estimator.fit(rows, {estimator.epochs: 3})
    assert {"[0]<stdout>:a step", "[1]<stdout>:a step"} <= {*output.getvalue().splitlines()}
    history = model.getHistory()
    assert [each["epoch"] for each in history] == [0, 1, 2]
    assert [each["train"]["loss"] for each in history] == pytest.approx(losses, rel=1e-4)
    found = [each["validation"]["all_metrics"][0]["group_0_y"] for each in history]
    assert found == pytest.approx(validated, rel=1e-4)
    for one, other in zip(model.getModel().parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        predictions = expected(x)[:, 0].numpy()
    model.save(str(tmp_path / "model"))
    loaded = hvd.TorchModel.load(str(tmp_path / "model"))
    for each in (model, loaded.setOutputCols(["y__output"])):
        outputs = [row.y__output for row in each.transform(rows).collect()]
        np.testing.assert_allclose(outputs, predictions, rtol=1e-4)
    assert (tmp_path / "runs" / model.getRunId() / "run.json").is_file()


@pytest.mark.slow
def test_two_inputs_of_a_classification_are_predicted_as_vectors(
    torch: Any, rows: DataFrame, tmp_path: Path
) -> None:
    class Two(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(5, 2)

        def forward(self, first: Any, second: Any) -> Any:
            return self.linear(torch.cat([first, second], dim=1)).log_softmax(dim=1)

    net = Two()
    loss = torch.nn.NLLLoss()
    model = hvd.TorchEstimator(
        num_proc=1,
        store=Store.create(str(tmp_path)),
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), 0.1),
        loss=lambda outputs, labels: loss(outputs, labels.long()),
        input_shapes=[[-1, 4], [-1, 1]],
        feature_cols=["x", "a"],
        label_cols=["c"],
        batch_size=16,
        epochs=2,
        verbose=0,
    ).fit(rows)
    assert model.getHistory()[1]["train"]["loss"] < model.getHistory()[0]["train"]["loss"]
    model.save(str(tmp_path / "model"))
    with torch.no_grad():
        expected = model.getModel()(torch.tensor(POINTS), torch.tensor(POINTS[:, :1])).numpy()
    for each in (model, hvd.TorchModel.load(str(tmp_path / "model"))):
        found = each.setOutputCols(["p"]).transform(rows).collect()
        np.testing.assert_allclose([row.p.toArray() for row in found], expected, rtol=1e-4)
