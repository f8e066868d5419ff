"""The trials of an ablation study, and models without some of their layers."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.maggy import AblationStudy
from sparkdl.maggy.ablation.loco import ablations


def study_of(**kwargs: Any) -> AblationStudy:
    return AblationStudy("titanic", 1, "survived", dataset_generator=lambda: "rows", **kwargs)


def test_one_trial_for_each_component() -> None:
    study = study_of()
    study.set_dataset_generator(lambda ablated_feature: ablated_feature)
    study.features.include("pclass", ["fare", "sibsp"])
    study.features.exclude(["sibsp"])
    study.model.set_base_model_generator(lambda: "model")
    study.model.layers.include("two", ["three", "four"])
    study.model.layers.exclude("four")
    study.model.layers.include_groups(["two", "four"], ["two", "three"], prefix="my_dense")
    study.model.layers.exclude_groups(["three", "two"])
    study.model.add_custom_model_generator(lambda: "own", "mine")
    trials = ablations(study)
    none = "None"
    assert [(t.feature, t.layer) for t in trials] == [
        *((none, none), ("fare", none), ("pclass", none), (none, "three"), (none, "two")),
        *((none, "Layers prefixed my_dense"), (none, "['four', 'two']")),
        (none, "Custom model: mine"),
    ]
    data = [t.dataset_function() for t in trials if t.dataset_function]
    assert data == [None, "fare", "pclass", *[None] * 5]
    assert [trials[i].model_function() for i in (0, 1, 7)] == [  # type: ignore[misc]
        *("model", "model", "own")
    ]


def test_a_study_without_what_it_needs() -> None:
    study = study_of()
    study.model.layers.include("two")
    with pytest.raises(ConfigError, match="leaves layers out and has no model"):
        ablations(study)
    study = study_of()
    study.features.include("fare")
    with pytest.raises(ConfigError, match=r"leaves out fare, .* argument ablated_feature=None"):
        ablations(study)
    with pytest.raises(ValueError, match=r"features.include got 3, an int"):
        study.features.include(3)
    with pytest.raises(ValueError, match=r"include_groups got .'two'.; expected lists of at least"):
        study.model.layers.include_groups(["two"])


MODELS = """
import json, keras
from tensorflow.keras import Input, Model, Sequential, layers
from sparkdl.maggy.ablation.loco import without_layers

def model(built):
    first = [Input((3,))] if built else []
    units = {"one": 8, "my_two": 4, "my_three": 5, "four": 2}
    return Sequential([*first, *(layers.Dense(n, name=k) for k, n in units.items())])

def names(layers, is_prefix=False, built=True):
    left = without_layers(model(built), frozenset(layers), is_prefix)
    left.build((None, 3))
    assert left.predict(__import__("numpy").zeros((2, 3)), verbose=0).shape == (2, 2)
    return [layer.name for layer in left.layers]

found = [names(["my_two"]), names(["my_two"], built=False), names(["my_two", "one"]),
         names(["my"], True), names(["one", "my_two", "four"])]
for broken in (lambda: names(["five"]), lambda: names(["four"]), lambda: names(["my_two"], True)
               if False else without_layers(Model(i := Input((3,)), layers.Dense(1)(i)),
                                            frozenset(["x"]), False)):
    try:
        broken()
    except (TypeError, ValueError) as exc:
        found.append(str(exc).split(";")[0])
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("legacy", ["0", pytest.param("1", marks=pytest.mark.thorough)])
def test_a_sequential_without_layers(legacy: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MODELS],
        env={**os.environ, "TF_USE_LEGACY_KERAS": legacy, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    missing = "no layer between the first and the last one is named"
    assert json.loads(done.stdout.splitlines()[-1]) == [
        ["one", "my_three", "four"],
        ["one", "my_three", "four"],
        ["my_three", "four"],
        ["one", "four"],
        ["my_three", "four"],
        f"{missing} five",
        f"{missing} four",
        "layers can be left out of a keras.Sequential",
    ]
