"""Runs anywhere. Load models into the current process as functions of tensors.

The driver loads a model to check its inputs and outputs, and Spark tasks load it to compute.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.inference.tensor_spec import TensorSpec

__all__ = [
    "LoadedModel",
    "TracedModel",
    "from_keras",
    "from_saved_model",
]


@dataclass(frozen=True)
class TracedModel:
    """A model compiled to one function of any number of rows.

    Attributes:
        outputs: the outputs of the model.
        function: takes one tensor per input and returns a list with one tensor per output.
    """

    outputs: tuple[TensorSpec, ...]
    function: Callable[..., list[Any]]


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        inputs: the inputs of the model, in the model's order.
        by_name: True if the model identifies its inputs by name, not by position.
        function: takes one tensor per input, in that order, and calls the model.
        output_names: names of the outputs if the model returns a list.
    """

    inputs: tuple[TensorSpec, ...]
    by_name: bool
    function: Callable[..., Any]
    output_names: tuple[str, ...] = ()

    def trace(self, inputs: Sequence[TensorSpec]) -> TracedModel:
        """Compile the model.

        Args:
            inputs: the inputs of the model with known shapes and dtypes.

        Raises:
            ValueError: if an output cannot be stored in a column.
        """
        import tensorflow as tf

        specs = [tf.TensorSpec([None, *(i.shape or ())], i.dtype) for i in inputs]
        compiled = tf.function(self.function, autograph=False).get_concrete_function(*specs)
        names, outputs = self.flatten(compiled.structured_outputs)

        def call(*tensors: Any) -> list[Any]:
            return self.flatten(compiled(*tensors))[1]

        named = zip(names, outputs, strict=True)
        return TracedModel(tuple(_output_spec(name, output) for name, output in named), call)

    def flatten(self, outputs: Any) -> tuple[list[str], list[Any]]:
        """Return the names and the tensors of what the model has returned."""
        if isinstance(outputs, Mapping):
            return [str(name) for name in outputs], list(outputs.values())
        if isinstance(outputs, list | tuple):
            # Outputs of a layer that is used twice have the same name.
            has_names = len(self.output_names) == len({*self.output_names}) == len(outputs)
            names = self.output_names if has_names else [f"output_{i}" for i in range(len(outputs))]
            return list(names), list(outputs)
        return ["output"], [outputs]


def _output_spec(name: str, output: Any) -> TensorSpec:
    import tensorflow as tf

    if not isinstance(output, tf.Tensor | tf.TensorSpec):
        kind = type(output).__name__
        raise ValueError(f"the model's output {name!r} is a {kind}; expected a dense tensor.")
    if output.shape.rank == 0:
        raise ValueError(
            f"the model's output {name!r} is one number for all rows; expected one per row."
        )
    shape = None if output.shape.rank is None else tuple(output.shape[1:])
    return TensorSpec(name, shape, output.dtype.name)


def from_keras(model: Any) -> LoadedModel:
    """Wrap a Keras model.

    Raises:
        ValueError: if the inputs are unknown because the model was never called.
    """
    takes_training = "training" in inspect.signature(model.call).parameters
    options = {"training": False} if takes_training else {}
    structure, names, inputs = _input_structure(model)

    def call(*tensors: Any) -> Any:
        if isinstance(structure, Mapping):
            return model(dict(zip(names, tensors, strict=True)), **options)
        return model(list(tensors) if isinstance(structure, list) else tensors[0], **options)

    return LoadedModel(
        tuple(inputs),
        by_name=isinstance(structure, Mapping),
        function=call,
        output_names=tuple(getattr(model, "output_names", None) or ()),
    )


def _input_structure(model: Any) -> tuple[Any, list[str], list[TensorSpec]]:
    """Return the structure of the argument that a model is called with, and its names and specs."""
    symbolic = getattr(model, "inputs", None)
    if not symbolic:  # A subclass of keras.Model.
        return _built_structure(model)
    # A Sequential has one input, without a structure.
    structure = getattr(model, "input", symbolic[0])
    if isinstance(structure, Mapping):
        structure = {name: structure[name] for name in sorted(structure)}
        symbolic = list(structure.values())
        names = list(structure)
    else:
        names = [_name_of(tensor) for tensor in symbolic]
        if isinstance(structure, list | tuple):
            structure = list(structure)
    specs = [
        TensorSpec(name, tuple(tensor.shape[1:]), str(getattr(tensor.dtype, "name", tensor.dtype)))
        for name, tensor in zip(names, symbolic, strict=True)
    ]
    return structure, names, specs


def _name_of(symbolic: Any) -> str:
    return str(symbolic.name).partition(":")[0]


def _built_structure(model: Any) -> tuple[Any, list[str], list[TensorSpec]]:
    """Return the same as `_input_structure` for a model that was built by its first call."""
    shapes = (model.get_build_config() or {}).get("input_shape")
    if shapes is None:
        raise ValueError(
            f"the input of the model {model.name!r} is unknown: the model has not been called, or "
            "takes several arguments. Begin the model with an Input layer, or call the model on "
            "one batch (a tensor, or a list or dict of tensors) before saving it."
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
    return structure, list(named), [TensorSpec(n, shape[1:], "") for n, shape in named.items()]


def from_saved_model(path: Path, signature: str, tags: Sequence[str] = ()) -> LoadedModel:
    """Load one function of a SavedModel.

    Args:
        path: path of the folder.
        signature: name of the function.
        tags: tags of the graph to load; empty for the only graph.

    Raises:
        ValueError: if the model has no such signature, or no graph with these tags.
    """
    import tensorflow as tf

    try:
        model = tf.saved_model.load(str(path), tags=list(tags) or None)
    except RuntimeError as exc:  # The model has no graph with these tags.
        raise ValueError(str(exc)) from exc
    if signature not in model.signatures:
        known = ", ".join(map(repr, model.signatures)) or "none"
        raise ValueError(f"the model has no signature {signature!r}; it has {known}.")
    function = model.signatures[signature]
    specs = function.structured_input_signature[1]
    names = sorted(specs)

    def call(*tensors: Any) -> Any:
        # The reference to `model` keeps its variables alive.
        return model.signatures[signature](**dict(zip(names, tensors, strict=True)))

    inputs = [_spec_of(name, specs[name]) for name in names]
    return LoadedModel(tuple(inputs), by_name=True, function=call)


def _spec_of(name: str, spec: Any) -> TensorSpec:
    shape = None if spec.shape.rank is None else tuple(spec.shape[1:])
    return TensorSpec(name, shape, spec.dtype.name)
