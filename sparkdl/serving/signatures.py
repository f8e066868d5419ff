"""Runs anywhere. The functions of a SavedModel: their inputs, outputs and method, from its file."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.files.model_formats import SAVED_MODEL
from sparkdl.models.saved_model import saved_model_class
from sparkdl.serving.request_error import RequestError

# The signature of a request that names none.
DEFAULT = "serving_default"

# The attribute with the name of an argument of a function.
_ARGUMENT = "_user_specified_name"
_DTYPES = {"half": "float16", "float": "float32", "double": "float64"}


@dataclass(frozen=True)
class TensorInfo:
    """An input or an output of a signature.

    Attributes:
        name: its name in the signature.
        dtype: the name of its dtype in TensorFlow, such as `float32` or `string`.
        shape: its shape with the axis of the rows, None for a variable length; None if the rank is
            unknown.
        is_ragged: it is a ragged tensor, whose rows have different lengths.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    is_ragged: bool = False


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A function of a SavedModel.

    Attributes:
        name: its name.
        method: the name of its method, such as `tensorflow/serving/predict`.
        inputs: the inputs by name.
        outputs: the outputs by name.
        separate: names of inputs that are arguments of their own, such as `item` and `item_1`.
        metadata: the definition, as TensorFlow Serving shows it.
    """

    name: str
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]
    method: str = "tensorflow/serving/predict"
    separate: frozenset[str] = frozenset()
    metadata: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ragged_inputs(self) -> dict[str, str]:
        """The names of the row splits of ragged inputs, by the name of the values.

        A ragged input `x` is stored as its values `x` and its row splits `x_1`.
        """
        return {
            name: f"{name}_1"
            for name in self.inputs
            if (splits := self.inputs.get(f"{name}_1"))
            and (splits.dtype, splits.shape) == ("int64", (None,))
            and splits.name not in self.separate
        }

    @property
    def has_rows(self) -> bool:
        """The first axis of all inputs and outputs counts the rows, so that rows can be batched."""
        tensors = [*self.inputs.values(), *self.outputs.values()]
        is_plain = not self.ragged_inputs and not any(tensor.is_ragged for tensor in tensors)
        return is_plain and all(tensor.shape and tensor.shape[0] is None for tensor in tensors)


def read_signatures(folder: Path) -> dict[str, Signature]:
    """Return the signatures of a SavedModel by name. TensorFlow is not imported.

    Raises:
        ValueError: if the file cannot be read, or has no signature.
    """
    from google.protobuf.message import DecodeError

    try:
        saved = saved_model_class().FromString((folder / SAVED_MODEL).read_bytes())
    except (DecodeError, OSError) as exc:
        raise ValueError(f"{folder / SAVED_MODEL} is no SavedModel: {exc}") from exc
    graphs = [g for g in saved.meta_graphs if "serve" in g.meta_info_def.tags]
    signatures = {
        name: _signature(name, definition, _separate_inputs(graph, definition))
        for graph in graphs or saved.meta_graphs
        for name, definition in sorted(graph.signature_def.items())
    }
    if all(name.startswith("__") for name in signatures):
        raise ValueError(
            f"{folder} has no signature, such as {DEFAULT!r}. Export the model with "
            "models.export, or with tf.saved_model.save(model, path, signatures=...)."
        )
    return signatures


def _signature(name: str, definition: Any, separate: frozenset[str]) -> Signature:
    return Signature(
        name=name,
        method=definition.method_name,
        separate=separate,
        inputs={key: _tensor(key, info) for key, info in sorted(definition.inputs.items())},
        outputs={key: _tensor(key, info) for key, info in sorted(definition.outputs.items())},
        metadata=_as_dict(definition),
    )


def _as_dict(message: Any) -> dict[str, Any]:
    """Return the fields of a message, those without a value too."""
    from google.protobuf import json_format

    complete = "always_print_fields_with_no_presence"
    # protobuf 4, which TensorFlow 2.16 and 2.17 have, has another name for it.
    if complete not in inspect.signature(json_format.MessageToDict).parameters:
        complete = "including_default_value_fields"
    fields: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, **{complete: True}
    )
    return fields


def _tensor(name: str, info: Any) -> TensorInfo:
    from tensorboard.compat.proto import types_pb2

    is_ragged = info.HasField("composite_tensor")
    if is_ragged:
        info = info.composite_tensor.components[0]
    dtype = types_pb2.DataType.Name(info.dtype).removeprefix("DT_").lower()
    sizes = tuple(None if dim.size < 0 else int(dim.size) for dim in info.tensor_shape.dim)
    shape = None if info.tensor_shape.unknown_rank or is_ragged else sizes
    return TensorInfo(name, _DTYPES.get(dtype, dtype), shape, is_ragged)


def _separate_inputs(graph: Any, definition: Any) -> frozenset[str]:
    """Return the inputs of a signature that are arguments of their own, as far as it can be told.

    A signature names the parts of a ragged argument `x` `x` and `x_1`. Two arguments may have the
    same names. The function that the signature calls keeps the name of the argument of each part.

    Args:
        graph: the `MetaGraphDef`.
        definition: the `SignatureDef`.
    """
    functions = {f.signature.name: f for f in graph.graph_def.library.function}
    names = {info.name.partition(":")[0]: key for key, info in definition.inputs.items()}
    for node in graph.graph_def.node:
        wrapper = functions.get(node.attr["f"].func.name) if "f" in node.attr else None
        if wrapper is None or not names.keys() & {*node.input}:
            continue
        # The wrapper has the inputs of the signature, in the order of the call.
        pairs = zip(wrapper.signature.input_arg, node.input, strict=False)
        inputs = {arg.name: names[name] for arg, name in pairs if name in names}
        return _separate(wrapper, inputs, functions)
    return frozenset()


def _separate(
    wrapper: Any, inputs: Mapping[str, str], functions: Mapping[str, Any]
) -> frozenset[str]:
    for call in wrapper.node_def:
        inner = functions.get(call.attr["f"].func.name) if "f" in call.attr else None
        if inner is None:
            continue
        arguments = {}
        for index, name in enumerate(call.input):
            attributes = inner.arg_attr.get(index)
            if name in inputs and attributes is not None and _ARGUMENT in attributes.attr:
                arguments[inputs[name]] = attributes.attr[_ARGUMENT].s
        names = [*arguments.values()]
        return frozenset(key for key, name in arguments.items() if names.count(name) == 1)
    return frozenset()


def signature_of(
    signatures: Mapping[str, Signature], name: str, code: str = "INVALID_ARGUMENT"
) -> Signature:
    """Return the signature that a request names.

    Args:
        signatures: the signatures of the model.
        name: the name; an empty one stands for the default.
        code: the code of the error.

    Raises:
        RequestError: if there is no such signature.
    """
    name = name or DEFAULT
    if name not in signatures or name.startswith("__"):
        raise RequestError(code, f'Serving signature name: "{name}" not found in signature def')
    return signatures[name]
