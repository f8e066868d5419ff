"""Runs anywhere. The functions of a SavedModel: their inputs, outputs and method, from its file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.model_formats import SAVED_MODEL
from sparkdl.models.saved_model import saved_model_class
from sparkdl.serving.graph_arguments import separate_inputs
from sparkdl.serving.request_error import invalid

__all__ = ["DEFAULT", "Signature", "TensorInfo", "read_signatures", "signature_of"]

# The signature of a request that names none.
DEFAULT = "serving_default"

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
        name: _signature(name, definition, separate_inputs(graph, definition))
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
    from google.protobuf.json_format import MessageToDict

    return Signature(
        name=name,
        method=definition.method_name,
        separate=separate,
        inputs={key: _tensor(key, info) for key, info in sorted(definition.inputs.items())},
        outputs={key: _tensor(key, info) for key, info in sorted(definition.outputs.items())},
        metadata=MessageToDict(
            definition,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        ),
    )


def _tensor(name: str, info: Any) -> TensorInfo:
    from tensorboard.compat.proto import types_pb2

    is_ragged = info.HasField("composite_tensor")
    if is_ragged:
        info = info.composite_tensor.components[0]
    dtype = types_pb2.DataType.Name(info.dtype).removeprefix("DT_").lower()
    sizes = tuple(None if dim.size < 0 else int(dim.size) for dim in info.tensor_shape.dim)
    shape = None if info.tensor_shape.unknown_rank or is_ragged else sizes
    return TensorInfo(name, _DTYPES.get(dtype, dtype), shape, is_ragged)


def signature_of(signatures: Mapping[str, Signature], name: str) -> Signature:
    """Return the signature that a request names.

    Raises:
        RequestError: if there is no such signature.
    """
    name = name or DEFAULT
    if name not in signatures or name.startswith("__"):
        raise invalid(f'Serving signature name: "{name}" not found in signature def')
    return signatures[name]
