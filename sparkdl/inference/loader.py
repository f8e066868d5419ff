"""Runs on the driver to check inputs and outputs, in Spark tasks to compute.

A model in this process.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.inference.tensor_spec import Tensor

__all__ = [
    "Loaded",
    "Traced",
    "from_keras",
    "from_saved_model",
    "library_of_object",
    "load_keras",
]


@dataclass(frozen=True)
class Traced:
    """A model as one compiled function of any number of rows.

    Attributes:
        outputs: what comes out.
        function: of one tensor an input; returns a list of one tensor an output.
    """

    outputs: tuple[Tensor, ...]
    function: Callable[..., list[Any]]


@dataclass(frozen=True)
class Loaded:
    """A model in memory.

    Attributes:
        inputs: what goes in, in the model's order.
        by_name: the model tells its inputs apart by their names, not by their order.
        function: takes one tensor an input, in that order; returns what the model returns.
        output_names: of outputs that come as a list.
    """

    inputs: tuple[Tensor, ...]
    by_name: bool
    function: Callable[..., Any]
    output_names: tuple[str, ...] = ()

    def trace(self, inputs: Sequence[Tensor]) -> Traced:
        """Compile the model.

        Args:
            inputs: as `self.inputs`, with all shapes and dtypes known.

        Raises:
            ValueError: an output is none that a column can hold.
        """
        import tensorflow as tf

        specs = [tf.TensorSpec([None, *(i.shape or ())], i.dtype) for i in inputs]
        compiled = tf.function(self.function, autograph=False).get_concrete_function(*specs)
        names, outputs = self._flat(compiled.structured_outputs)

        def call(*tensors: Any) -> list[Any]:
            return self._flat(compiled(*tensors))[1]

        found = zip(names, outputs, strict=True)
        return Traced(tuple(_tensor(name, output) for name, output in found), call)

    def _flat(self, outputs: Any) -> tuple[list[str], list[Any]]:
        if isinstance(outputs, Mapping):
            return [str(name) for name in outputs], list(outputs.values())
        if isinstance(outputs, list | tuple):
            # A layer that is used twice gives both its outputs one name.
            named = len(self.output_names) == len({*self.output_names}) == len(outputs)
            names = self.output_names if named else [f"output_{i}" for i in range(len(outputs))]
            return list(names), list(outputs)
        return ["output"], [outputs]


def _tensor(name: str, output: Any) -> Tensor:
    import tensorflow as tf

    if not isinstance(output, tf.Tensor | tf.TensorSpec):
        kind = type(output).__name__
        raise ValueError(f"the model's output {name!r} is a {kind}; expected a dense tensor.")
    if output.shape.rank == 0:
        raise ValueError(f"the model's output {name!r} is one number for all rows, not one a row.")
    shape = None if output.shape.rank is None else tuple(output.shape[1:])
    return Tensor(name, shape, output.dtype.name)


def load_keras(
    path: Path, library: str, custom: Mapping[str, Any] | None = None, trusted: bool = False
) -> Any:
    """Load a Keras file.

    Args:
        path: of the file.
        library: `keras` or `tf_keras`.
        custom: the person's own classes and functions, by the names that Keras knows them by.
        trusted: it may hold code of its own, such as that of a `Lambda` layer.
    """
    keras = importlib.import_module(library)
    return keras.models.load_model(
        path, custom_objects=dict(custom or {}), compile=False, safe_mode=not trusted
    )


def library_of_object(model: object) -> str | None:
    """`keras` or `tf_keras` if this is a model of it, else None."""
    for base in type(model).__mro__:
        top = base.__module__.partition(".")[0]
        if base.__name__ == "Model" and top in ("keras", "tf_keras"):
            return top
    return None


def from_keras(model: Any) -> Loaded:
    """A Keras model.

    Raises:
        ValueError: it was never called, so that nobody knows what goes in.
    """
    takes_training = "training" in inspect.signature(model.call).parameters
    options = {"training": False} if takes_training else {}
    structure, names, inputs = _inputs_of(model)

    def call(*tensors: Any) -> Any:
        if isinstance(structure, Mapping):
            return model(dict(zip(names, tensors, strict=True)), **options)
        return model(list(tensors) if isinstance(structure, list) else tensors[0], **options)

    return Loaded(
        tuple(inputs),
        by_name=isinstance(structure, Mapping),
        function=call,
        output_names=tuple(getattr(model, "output_names", None) or ()),
    )


def _inputs_of(model: Any) -> tuple[Any, list[str], list[Tensor]]:
    """The structure of what a model is called with, and its parts."""
    symbolic = getattr(model, "inputs", None)
    if not symbolic:  # A class of the person's own.
        return _called_with(model)
    structure = getattr(model, "input", symbolic[0])  # A Sequential has one, and does not tell.
    if isinstance(structure, Mapping):
        structure = {name: structure[name] for name in sorted(structure)}
        symbolic = list(structure.values())
        names = list(structure)
    elif isinstance(structure, list | tuple):
        structure, names = list(structure), [_name(one) for one in symbolic]
    else:
        names = [_name(one) for one in symbolic]
    parts = [
        Tensor(name, tuple(one.shape[1:]), str(getattr(one.dtype, "name", one.dtype)))
        for name, one in zip(names, symbolic, strict=True)
    ]
    return structure, names, parts


def _name(symbolic: Any) -> str:
    return str(symbolic.name).partition(":")[0]


def _called_with(model: Any) -> tuple[Any, list[str], list[Tensor]]:
    shapes = (model.get_build_config() or {}).get("input_shape")
    if shapes is None:
        raise ValueError(
            f"the model {model.name!r} has not been called, or takes several arguments: its input "
            "is not known. Start it with an Input layer, or call it on one batch (a tensor, or a "
            "list or dict of them) before it is saved."
        )
    if isinstance(shapes, Mapping):
        named = {name: tuple(shapes[name]) for name in sorted(shapes)}
    elif shapes and isinstance(shapes[0], list | tuple):
        named = {f"input_{i}": tuple(shape) for i, shape in enumerate(shapes)}
    else:
        named = {"input": tuple(shapes)}
    structure: Any = shapes if isinstance(shapes, Mapping) else list(named)
    if list(named) == ["input"]:
        structure = None
    return structure, list(named), [Tensor(n, shape[1:], "") for n, shape in named.items()]


def from_saved_model(path: Path, signature: str, tags: Sequence[str] = ()) -> Loaded:
    """One function of a SavedModel.

    Raises:
        ValueError: it has no such signature, or no graph with these tags.
    """
    import tensorflow as tf

    try:
        model = tf.saved_model.load(str(path), tags=list(tags) or None)
    except RuntimeError as exc:  # No graph of its has these tags.
        raise ValueError(str(exc)) from exc
    if signature not in model.signatures:
        known = ", ".join(map(repr, model.signatures)) or "none"
        raise ValueError(f"it has no signature {signature!r}; it has {known}.")
    function = model.signatures[signature]
    specs = function.structured_input_signature[1]
    names = sorted(specs)

    def call(*tensors: Any) -> Any:
        # The model is kept with it: its variables go when nobody holds it.
        return model.signatures[signature](**dict(zip(names, tensors, strict=True)))

    parts = [_tensor_of(name, specs[name]) for name in names]
    return Loaded(tuple(parts), by_name=True, function=call)


def _tensor_of(name: str, spec: Any) -> Tensor:
    shape = None if spec.shape.rank is None else tuple(spec.shape[1:])
    return Tensor(name, shape, spec.dtype.name)
