"""Runs on the driver. The person's own classes and functions that a Keras model is made of."""

import contextlib
import importlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle

__all__ = ["custom_objects", "pickled"]


def custom_objects(model: Any, library: str) -> dict[str, Any]:
    """The classes and functions that Keras needs to be told of to load a model.

    Found are those that are registered (`@keras.saving.register_keras_serializable()`), or named
    in a `keras.saving.custom_object_scope` around the call, and the classes of the model itself
    and of its layers.

    Args:
        model: the model.
        library: `keras` or `tf_keras`, which it belongs to.

    Raises:
        ValueError: one is not found.
    """
    keras = importlib.import_module(library)
    own = {type(part).__name__: type(part) for part in (model, *model.layers)}
    found = {}
    for name in sorted(_custom_names(json.loads(model.to_json()))):
        known = keras.saving.get_registered_object(name) or own.get(name)
        if known is None:
            raise ValueError(
                f"the model is made of {name!r}, which executors cannot find. Decorate it with "
                f"@{library}.saving.register_keras_serializable()."
            )
        found[name] = known
    return found


def _custom_names(config: Any) -> Iterator[str]:
    """The registered names in a model's config: see `keras.saving.serialize_keras_object`."""
    if isinstance(config, list):
        for part in config:
            yield from _custom_names(part)
    if not isinstance(config, dict):
        return
    name, module = config.get("registered_name"), config.get("module") or ""
    if name == "function":
        yield str(config["config"])
    elif name and module.partition(".")[0] not in ("keras", "tf_keras"):
        yield name
    # How it is trained does not matter here.
    for key, part in config.items():
        if key != "compile_config":
            yield from _custom_names(part)


def pickled(objects: dict[str, Any]) -> bytes:
    """Classes and functions as bytes; of modules that are not installed, all that they are."""
    if not objects:
        return b""
    installed = {*importlib.metadata.packages_distributions(), *sys.stdlib_module_names}
    modules = {sys.modules[thing.__module__] for thing in objects.values()}
    with contextlib.ExitStack() as stack:
        for module in modules:
            if module.__name__.partition(".")[0] not in {*installed, "__main__"}:
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        return bytes(cloudpickle.dumps(objects))
