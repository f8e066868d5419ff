"""Runs anywhere. Leave one component out: the trials of a study, and their data and models."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import ConfigError, named_type
from sparkdl.maggy.ablation.ablationstudy import AblationStudy, group_label
from sparkdl.maggy.arguments import accepts

__all__ = ["Ablation", "ablations", "without_layers"]

FEATURE = "ablated_feature"
_NONE = "None"


@dataclass(frozen=True)
class Ablation:
    """A trial of a study.

    Attributes:
        dataset_function: what the training function gets under this name; None without data.
        model_function: what the training function gets under this name; None without a model.
        feature: the feature that is left out, or `None` as a text.
        layer: the layers that are left out, as a text.
    """

    dataset_function: Callable[..., Any] | None
    model_function: Callable[[], Any] | None
    feature: str = _NONE
    layer: str = _NONE

    @property
    def params(self) -> dict[str, str]:
        """The parameters of the trial, for its row in tables."""
        return {FEATURE: self.feature, "ablated_layer": self.layer}


def ablations(study: AblationStudy) -> list[Ablation]:
    """Return the trials of a study; the first leaves nothing out.

    Args:
        study: the study.

    Raises:
        ConfigError: if the study has no generator for what it leaves out.
    """
    data, model = _data_of(study), study.model.base_model_generator
    layers = study.model.layers
    if (layers.included_layers or layers.included_groups) and model is None:
        raise ConfigError(
            "the study leaves layers out and has no model. Call "
            "study.model.set_base_model_generator(function)."
        )
    trials = [Ablation(data(None), model)]
    trials += [Ablation(data(name), model, name) for name in sorted(_features(study))]
    singles = [(name, frozenset([name]), False) for name in sorted(layers.included_layers)]
    groups = [(group_label(g), g, len(g) == 1) for g in layers.included_groups]
    for label, names, is_prefix in [*singles, *sorted(groups)]:
        without = functools.partial(_without, model, names, is_prefix)
        trials.append(Ablation(data(None), without, layer=label))
    for function, name in study.model.custom_model_generators:
        trials.append(Ablation(data(None), function, layer=f"Custom model: {name}"))
    return trials


def _features(study: AblationStudy) -> set[str]:
    return study.features.included_features


def _data_of(study: AblationStudy) -> Callable[[str | None], Callable[..., Any] | None]:
    """Return a function from the feature that is left out to the dataset function."""
    generator = study.custom_dataset_generator or None
    if generator is None:
        raise ConfigError(
            f"the study names the training dataset {study.hops_training_dataset_name!r}, and there "
            "is no feature store. Pass AblationStudy(..., dataset_generator=function), which "
            "returns the data."
        )
    if accepts(generator, FEATURE):
        return lambda feature: functools.partial(generator, **{FEATURE: feature})
    if _features(study):
        raise ConfigError(
            f"the study leaves out {', '.join(sorted(_features(study)))}, and its dataset "
            f"generator does not learn of it. Give the generator an argument {FEATURE}=None, with "
            "the feature to leave out."
        )
    return lambda feature: generator


def _without(generate: Any, names: frozenset[str], is_prefix: bool) -> Any:
    return without_layers(generate(), names, is_prefix)


def without_layers(model: Any, names: frozenset[str], is_prefix: bool) -> Any:
    """Return a new `Sequential` without some layers; the first and the last always stay.

    Args:
        model: a `Sequential` of Keras 3 or of tf_keras.
        names: the names of the layers, or the beginning of their names.
        is_prefix: `names` has the beginning.

    Raises:
        TypeError: if the model is no `Sequential`.
        ValueError: if no layer has the name.
    """
    classes: list[Any] = [cls for cls in type(model).__mro__ if cls.__name__ == "Sequential"]
    if not classes:
        raise TypeError(
            f"layers can be left out of a keras.Sequential; got {named_type(model)}. Return "
            "a Sequential, or call study.model.add_custom_model_generator for each model."
        )
    config = model.get_config()
    layers = config["layers"]
    prefix = min(names).lower()

    def is_left_out(name: str) -> bool:
        return name.lower().startswith(prefix) if is_prefix else name in names

    inner = [layer for layer in layers[1:-1] if not is_left_out(layer["config"]["name"])]
    if len(inner) == len(layers) - 2:
        raise ValueError(
            f"no layer between the first and the last one is named {', '.join(sorted(names))}; "
            f"the layers are {', '.join(layer['config']['name'] for layer in layers)}."
        )
    # The shapes with which layers were built are those of the whole model.
    kept = [
        {key: value for key, value in layer.items() if key != "build_config"}
        for layer in (layers[0], *inner, layers[-1])
    ]
    return classes[-1].from_config({**config, "layers": kept})
