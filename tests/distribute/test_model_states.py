"""The weights and the optimizer of a model after they were written and read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl.distribute.model_states import read_model, write_model

pytestmark = pytest.mark.slow


def build(package: str, kind: str) -> Any:
    keras = pytest.importorskip(package)
    module = keras.optimizers.legacy if kind.startswith("legacy") else keras.optimizers
    optimizer = module.Adam(0.1)
    if kind.endswith("scaled"):
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model


def values(model: Any) -> list[Any]:
    variables = model.optimizer.variables
    of_optimizer = variables() if callable(variables) else variables
    return [np.asarray(v).tolist() for v in [*model.weights, *of_optimizer]]


@pytest.mark.parametrize(
    ("package", "kind"),
    [("keras", "new")]
    + [("tf_keras", kind) for kind in ("new", "new scaled", "legacy", "legacy scaled")],
)
def test_the_optimizer_is_restored_before_the_first_step(
    package: str, kind: str, tmp_path: Path
) -> None:
    """A `fit` that was over makes no step, and the model may be saved afterwards."""
    trained, new = build(package, kind), build(package, kind)
    for _ in range(2):
        trained.train_on_batch(np.ones((4, 2)), np.ones((4, 2)))
    legacy = package == "tf_keras"
    write_model(trained, str(tmp_path), legacy)
    read_model(new, str(tmp_path), legacy)
    assert values(new) == values(trained)
    for model in (trained, new):
        model.train_on_batch(np.ones((4, 2)), np.ones((4, 2)))
    assert values(new) == values(trained)
