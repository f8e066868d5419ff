"""Runs anywhere. Load models into the current process as functions of tensors.

The driver loads a model to check its inputs and outputs, and Spark tasks load it to compute.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.errors import named_type
from sparkdl.inference.ragged_rows import RaggedRows
from sparkdl.inference.short_call import short_call
from sparkdl.inference.tensor_spec import TensorSpec, fit_rows
from sparkdl.inference.traced_model import TracedModel


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        inputs: the inputs of the model, in the model's order.
        by_name: True if the model identifies its inputs by name, not by position.
        function: takes one tensor per input, in that order, and calls the model.
        output_names: names of the outputs if the model returns a list.
        num_rows: the number of rows that the model takes at once; None for any number.
    """

    inputs: tuple[TensorSpec, ...]
    by_name: bool
    function: Callable[..., Any]
    output_names: tuple[str, ...] = ()
    num_rows: int | None = None

    def trace(self, inputs: Sequence[TensorSpec]) -> TracedModel:
        """Compile the model.

        Args:
            inputs: the inputs of the model with known shapes and dtypes.

        Raises:
            ValueError: if an output cannot be stored in a column.
        """
        import tensorflow as tf

        if self.num_rows and any(spec.ragged for spec in inputs):
            raise ValueError("a ragged input has a fixed number of rows, which is not supported.")
        specs = [_type_spec(spec, self.num_rows) for spec in inputs]
        compiled = tf.function(self.function, autograph=False).get_concrete_function(*specs)
        names, outputs = self.flatten(compiled.structured_outputs)
        compute = short_call(compiled)

        def call(arrays: Sequence[Any]) -> list[Any]:
            tensors = [_tensor(a, spec) for a, spec in zip(arrays, inputs, strict=True)]
            return [_array(output) for output in self.flatten(compute(*tensors))[1]]

        output_specs = tuple(_output_spec(*pair) for pair in zip(names, outputs, strict=True))
        errors = (ValueError, tf.errors.InvalidArgumentError)
        return TracedModel(output_specs, call, self.num_rows, errors)

    def flatten(self, outputs: Any) -> tuple[list[str], list[Any]]:
        """Return the names and the tensors of what the model has returned."""
        if isinstance(outputs, Mapping):
            return [str(name) for name in outputs], list(outputs.values())
        if isinstance(outputs, list | tuple):
            # Outputs of a layer that is used twice have the same name.
            has_names = len(self.output_names) == len({*self.output_names}) == len(outputs) > 1
            names = self.output_names if has_names else [f"output_{i}" for i in range(len(outputs))]
            return list(names), list(outputs)
        return ["output_0"], [outputs]  # As Keras names the output of `model.export`.


def _type_spec(spec: TensorSpec, num_rows: int | None) -> Any:
    import tensorflow as tf

    shape = [num_rows, *(spec.shape or ())]
    if spec.ragged:
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.num_variable_axes)
    return tf.TensorSpec(shape, spec.dtype)


def _tensor(values: Any, spec: TensorSpec) -> Any:
    """Convert an array or `RaggedRows` to a tensor."""
    import tensorflow as tf

    dtype = tf.as_dtype(spec.dtype)
    if not isinstance(values, RaggedRows):
        return tf.convert_to_tensor(fit_rows(values, spec, dtype.as_numpy_dtype), dtype)
    inner = replace(spec, shape=(spec.shape or ())[spec.num_variable_axes :])
    flat = tf.convert_to_tensor(fit_rows(values.values, inner, dtype.as_numpy_dtype), dtype)
    return tf.RaggedTensor.from_nested_row_lengths(flat, values.lengths)


def _array(output: Any) -> Any:
    import tensorflow as tf

    if isinstance(output, tf.RaggedTensor):
        lengths = tuple(np.asarray(axis) for axis in output.nested_row_lengths())
        return RaggedRows(np.asarray(output.flat_values), lengths)
    return np.asarray(output)


def _output_spec(name: str, output: Any) -> TensorSpec:
    import tensorflow as tf

    if not isinstance(output, tf.Tensor | tf.TensorSpec | tf.RaggedTensor | tf.RaggedTensorSpec):
        kind = named_type(output)
        raise ValueError(
            f"the model's output {name!r} is {kind}; expected a dense or a ragged tensor."
        )
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
    num_rows = _num_rows([tensor.shape for tensor in getattr(model, "inputs", None) or ()])

    def call(*tensors: Any) -> Any:
        if isinstance(structure, Mapping):
            return model(dict(zip(names, tensors, strict=True)), **options)
        return model(list(tensors) if isinstance(structure, list) else tensors[0], **options)

    return LoadedModel(
        tuple(inputs),
        by_name=isinstance(structure, Mapping),
        function=call,
        output_names=tuple(getattr(model, "output_names", None) or ()),
        num_rows=num_rows,
    )


def _input_structure(model: Any) -> tuple[Any, list[str], list[TensorSpec]]:
    """Return the structure of the argument that a model is called with, and its names and specs."""
    symbolic = getattr(model, "inputs", None)
    if not symbolic:  # A subclass of keras.Model.
        return _built_structure(model)
    try:
        structure = model.input
    except (AttributeError, ValueError):  # ValueError in Keras 3.5.
        structure = symbolic[0]  # A Sequential has one input, without a structure.
    if isinstance(structure, Mapping):
        structure = {name: structure[name] for name in sorted(structure)}
        symbolic = list(structure.values())
        names = list(structure)
    else:
        names = [_name_of(tensor) for tensor in symbolic]
        if isinstance(structure, list | tuple):
            structure = list(structure)
    specs = [_keras_spec(*pair) for pair in zip(names, symbolic, strict=True)]
    return structure, names, specs


def _keras_spec(name: str, tensor: Any) -> TensorSpec:
    kind = getattr(tensor, "type_spec", None)  # In Keras 2; Keras 3 has `ragged`.
    ragged = getattr(tensor, "ragged", False) or type(kind).__name__ == "RaggedTensorSpec"
    dtype = str(getattr(tensor.dtype, "name", tensor.dtype))
    return TensorSpec(name, tuple(tensor.shape[1:]), dtype, ragged)


def _num_rows(shapes: Sequence[Any]) -> int | None:
    """Return the number of rows of a model's inputs, which is None for any number."""
    numbers = {shape[0] for shape in shapes if len(shape)} - {None}
    if len(numbers) > 1:
        raise ValueError(
            f"the inputs of the model have batches of {sorted(numbers)} rows; expected one number."
        )
    return numbers.pop() if numbers else None


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
        shape_by_name = {name: tuple(shapes[name]) for name in sorted(shapes)}
    elif shapes and isinstance(shapes[0], list | tuple):
        shape_by_name = {f"input_{i}": tuple(shape) for i, shape in enumerate(shapes)}
    else:
        shape_by_name = {"input": tuple(shapes)}
    structure: Any = shapes if isinstance(shapes, Mapping) else list(shape_by_name)
    if list(shape_by_name) == ["input"]:
        structure = None
    specs = [TensorSpec(name, shape[1:], "") for name, shape in shape_by_name.items()]
    return structure, list(shape_by_name), specs


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
        signatures = ", ".join(map(repr, model.signatures)) or "none"
        raise ValueError(f"the model has no signature {signature!r}; it has {signatures}.")
    function = model.signatures[signature]
    specs = function.structured_input_signature[1]
    names = sorted(specs)

    def call(*tensors: Any) -> Any:
        # The reference to `model` keeps its variables alive.
        return model.signatures[signature](**dict(zip(names, tensors, strict=True)))

    inputs = [_spec_of(name, specs[name]) for name in names]
    num_rows = _num_rows([specs[name].shape for name in names if specs[name].shape.rank])
    return LoadedModel(tuple(inputs), by_name=True, function=call, num_rows=num_rows)


def _spec_of(name: str, spec: Any) -> TensorSpec:
    shape = None if spec.shape.rank is None else tuple(spec.shape[1:])
    return TensorSpec(name, shape, spec.dtype.name)


def with_ragged_inputs(model: LoadedModel) -> LoadedModel:
    """Return a model of a SavedModel that takes a `tf.RaggedTensor` as one input.

    TensorFlow writes a ragged argument `x` as the inputs `x`, its values, and `x_1`, `x_2` and so
    on, its row splits (`tensorflow/python/saved_model/signature_serialization.py`). Nothing else
    tells them from other inputs.

    Args:
        model: the model with all inputs as they are written.
    """
    by_name = {spec.name: spec for spec in model.inputs}
    splits: dict[str, list[str]] = {}
    for name in by_name:
        if not any(name in keys for keys in splits.values()):
            splits[name] = _row_splits(name, by_name)
    if not any(splits.values()):
        return model

    def call(*tensors: Any) -> Any:
        import tensorflow as tf

        flat: dict[str, Any] = {}
        for (name, parts), tensor in zip(splits.items(), tensors, strict=True):
            flat[name] = tensor.flat_values if parts else tensor
            for part, nested in zip(parts, getattr(tensor, "nested_row_splits", ()), strict=True):
                flat[part] = tf.cast(nested, by_name[part].dtype)
        return model.function(*(flat[name] for name in by_name))

    inputs = [
        replace(
            by_name[name], shape=(*[None] * len(parts), *(by_name[name].shape or ())), ragged=True
        )
        if parts
        else by_name[name]
        for name, parts in splits.items()
    ]
    return replace(model, inputs=tuple(inputs), function=call)


def _row_splits(name: str, by_name: Mapping[str, TensorSpec]) -> list[str]:
    names: list[str] = []
    while spec := by_name.get(f"{name}_{len(names) + 1}"):
        if spec.shape != () or spec.dtype not in ("int32", "int64"):
            break
        names.append(spec.name)
    return names
