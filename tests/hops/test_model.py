"""Models of HopsML programs, exported by training processes and found by the driver."""

from pathlib import Path

import pytest

from sparkdl.errors import ConfigError
from sparkdl.hops import experiment, model
from sparkdl.hops.model import Metric

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


def test_trials_export_versions_and_the_driver_finds_the_best(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)

    def train(weight: float) -> float:
        import tensorflow as tf

        module = tf.Module()
        module.weight = tf.Variable(weight)
        spec = tf.TensorSpec([None], tf.float32)
        module.predict = tf.function(lambda x: x * module.weight, input_signature=[spec])
        tf.saved_model.save(module, "exported", {"serving_default": module.predict})
        model.export("exported", "product", metrics={"accuracy": weight})
        return weight

    experiment.launch(train, {"weight": [0.5]})
    experiment.launch(train, {"weight": [0.25]})
    best = model.get_best_model("product", "accuracy", Metric.MAX)
    assert (best["name"], best["version"], best["metrics"]) == ("product", 1, {"accuracy": 0.5})
    assert Path(best["path"], "saved_model.pb").exists()
    assert model.get_best_model("product", "accuracy", Metric.MIN)["version"] == 2
    assert model.get_model("product", 2)["metrics"] == {"accuracy": 0.25}
    for call in (
        lambda: model.get_model("product", 3),
        lambda: model.get_best_model("other", "accuracy", Metric.MAX),
    ):
        with pytest.raises(model.ModelNotFound):
            call()
    with pytest.raises(ConfigError, match="model_version"):
        model.export(best["path"], "product", model_version=7)
