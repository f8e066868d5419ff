"""The names of Keras that are corrected: one that is missing or has changed is refused by name."""

import importlib
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from sparkdl.distribute import keras3_losses, keras3_metrics, keras3_optimizers, keras3_patches
from sparkdl.distribute.keras3_names import TESTED, Name, require
from tests.helpers.gang import launch

pytestmark = pytest.mark.slow
pytest.importorskip("tensorflow")


def needed() -> list[Name]:
    """Return the names that the corrections of the installed Keras replace and rely on."""
    names = [*keras3_patches.NAMES, *keras3_optimizers.NAMES]
    names += () if keras3_losses.DIVIDES.exists else keras3_losses.NAMES
    return [*names, *(() if keras3_metrics.SYNCHRONIZES.exists else keras3_metrics.NAMES)]


def test_each_name_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    require(needed())
    for name in needed():
        *owners, last = name.path.split(".")
        owner = reduce(getattr, owners, importlib.import_module(name.module))
        # A method of a parent class may take its place, or be one that raises NotImplementedError.
        places = [each for each in getattr(owner, "__mro__", [owner]) if last in vars(each)]
        with monkeypatch.context() as patch:
            for place in places:
                if place is not object:
                    patch.delattr(place, last)
            with pytest.raises(RuntimeError, match=re.escape(f"{name.module}.{name.path}")):
                require([name])


def test_changed_parameters_and_functions_without_a_caller_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    def fit(self: Any, callback_list: Any) -> None:
        self.build_symbolically()

    monkeypatch.setattr(TensorFlowTrainer, "fit", fit)
    before = vars(TensorFlowTrainer).copy()
    with pytest.raises(RuntimeError) as error:
        keras3_patches.apply()
    for problem in (
        "TensorFlowTrainer.fit has no parameter 'callbacks'",
        "TensorFlowTrainer.fit does not use '_maybe_symbolic_build'",
        f"Install {TESTED}",
    ):
        assert problem in str(error.value)
    assert dict(vars(TensorFlowTrainer)) == before  # Nothing is corrected by half.


@pytest.mark.acceptance("A25")
def test_strategy_refuses_a_keras_that_it_cannot_correct(tmp_path: Path) -> None:
    """A strategy looks for each name of Keras that a correction replaces."""
    import keras

    for answers in launch("strategies.names", tmp_path, "worker", "worker"):
        assert f"cannot correct Keras {keras.__version__}" in answers["error"]
        assert "reduce_per_replica does not exist" in answers["error"]
        assert "use distribute.optimizer without a strategy" in answers["error"]
        listed = {f"{name.module}.{name.path}" for name in needed()}
        assert set(answers["replaced"]) <= listed
        assert f"{keras3_patches.NAMES[0].module}.reduce_per_replica" in answers["replaced"]
