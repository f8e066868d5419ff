"""Runs on the driver. Find the user's own classes and functions that a Keras model uses."""

import contextlib
import importlib
import importlib.metadata
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle

from sparkdl.host.pickler import dumps

# cloudpickle has one register of modules for the whole process, which must stay as it is while a
# thread pickles: fits and predictions may begin in several threads.
_REGISTER_LOCK = threading.Lock()


def custom_objects(model: Any, library: str, for_training: bool = False) -> dict[str, Any]:
    """Return the user's own classes and functions that Keras needs to load a model, by name.

    An object is found if it is registered (`@keras.saving.register_keras_serializable()`), if it
    is in a `keras.saving.custom_object_scope` around the call, or if it is the class of the model
    or of one of its layers, or a loss or a metric with which the model was compiled.

    Args:
        model: the model.
        library: the library of the model: `keras` or `tf_keras`.
        for_training: also return those of the loss, the metrics and the optimizer.

    Raises:
        ValueError: if a class or function is not found.
    """
    keras = importlib.import_module(library)
    classes = {type(part).__name__: type(part) for part in (model, *model.layers)}
    compiled = _compiled_objects(model) if for_training else {}
    objects = {}
    for name in sorted(_custom_names(json.loads(model.to_json()), for_training)):
        registered = keras.saving.get_registered_object(name)
        custom_object = registered or classes.get(name) or compiled.get(name)
        if custom_object is None:
            raise ValueError(
                f"the model uses {name!r}, which executors cannot find. Decorate {name!r} with "
                f"@{library}.saving.register_keras_serializable()."
            )
        objects[name] = custom_object
    return objects


def _compiled_objects(model: Any) -> dict[str, Any]:
    """Return the functions, and the classes of objects, that `compile` of Keras 3 was given.

    The model itself has its loss, but its metrics only in another form.

    Raises:
        ValueError: if two of them have one name, by which executors find them.
    """
    import keras

    config = getattr(model, "_compile_config", None)
    given = keras.tree.flatten(config.config if config else model.loss)
    names = {part for part in given if isinstance(part, str)}
    objects: dict[str, Any] = {}
    for part in given:
        kind = part if hasattr(part, "__name__") else type(part)
        is_own = not str(kind.__module__).startswith(("keras.", "tf_keras.", "builtins"))
        is_other = objects.setdefault(kind.__name__, kind) is not kind
        if is_other or (is_own and kind.__name__ in names):
            raise ValueError(
                f"the losses and metrics of the model have two objects named {kind.__name__!r}. "
                "Give one of them another name."
            )
    return objects


def _custom_names(config: Any, for_training: bool) -> Iterator[str]:
    """Yield the registered names in a config, see `keras.saving.serialize_keras_object`."""
    if isinstance(config, list):
        for part in config:
            yield from _custom_names(part, for_training)
    if not isinstance(config, dict):
        return
    name, module = config.get("registered_name"), config.get("module") or ""
    if name == "function":
        yield str(config["config"])
    elif name and module.partition(".")[0] not in ("keras", "tf_keras"):
        yield name
    # Inference does not need the loss and the optimizer of the training.
    for key, part in config.items():
        if for_training or key != "compile_config":
            yield from _custom_names(part, for_training)


def pickle_objects(objects: dict[str, Any]) -> bytes:
    """Pickle classes and functions; those of modules that are not installed are pickled by value.

    Args:
        objects: classes and functions, by name.
    """
    if not objects:
        return b""
    installed = {*importlib.metadata.packages_distributions(), *sys.stdlib_module_names}
    modules = {sys.modules[obj.__module__] for obj in objects.values()}
    with _REGISTER_LOCK, contextlib.ExitStack() as stack:
        for module in modules:
            if module.__name__.partition(".")[0] not in {*installed, "__main__"}:
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        return dumps(objects)
