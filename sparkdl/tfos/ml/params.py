"""Runs on the driver. Define the params of the Spark ML stages, with getters and setters.

Names and types are those of TensorFlowOnSpark: `set<Name>(value)` returns the stage, and
`get<Name>()` returns the value or its default. Unlike Spark's own params, the names have
underscores.
"""

import argparse
import copy
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.ml.param import Params, TypeConverters

from sparkdl.errors import ConfigError, named_type
from sparkdl.spark.ml import accessors, param

__all__ = [
    "HasBatchSize",
    "HasClusterSize",
    "HasEpochs",
    "HasExportDir",
    "HasGraceSecs",
    "HasInputMapping",
    "HasInputMode",
    "HasMasterNode",
    "HasModelDir",
    "HasNumPS",
    "HasOutputMapping",
    "HasProtocol",
    "HasReaders",
    "HasSignatureDefKey",
    "HasSteps",
    "HasTFRecordDir",
    "HasTagSet",
    "HasTensorboard",
    "Namespace",
    "TFParams",
    "TFTypeConverters",
]


class TFTypeConverters:
    """The type converters that Spark's `TypeConverters` lacks."""

    @staticmethod
    def toDict(value: Any) -> dict[Any, Any]:
        """Return the dict itself.

        Raises:
            TypeError: if `value` is not a dict.

        Example:
            >>> TFTypeConverters.toDict({"x": "input"})
            {'x': 'input'}
        """
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is {named_type(value)}; expected a dict.")
        return value


class _Stage(Params):  # type: ignore[misc]
    """The base class of a stage with params."""


class HasBatchSize(_Stage):
    """The param `batch_size`: number of rows in a batch."""

    batch_size = param("batch_size", "rows in a batch", TypeConverters.toInt)
    setBatchSize, getBatchSize = accessors("batch_size")


class HasClusterSize(_Stage):
    """The param `cluster_size`: number of nodes, including parameter servers."""

    cluster_size = param("cluster_size", "nodes in the cluster", TypeConverters.toInt)
    setClusterSize, getClusterSize = accessors("cluster_size")


class HasEpochs(_Stage):
    """The param `epochs`: number of passes over the rows."""

    epochs = param("epochs", "passes over the rows", TypeConverters.toInt)
    setEpochs, getEpochs = accessors("epochs")


class HasGraceSecs(_Stage):
    """The param `grace_secs`: seconds that nodes have after the last row, to export a model."""

    grace_secs = param("grace_secs", "seconds after the last row", TypeConverters.toInt)
    setGraceSecs, getGraceSecs = accessors("grace_secs")


class HasInputMapping(_Stage):
    """The param `input_mapping`: the tensor for each input column, `{column: tensor}`."""

    input_mapping = param("input_mapping", "tensor by input column", TFTypeConverters.toDict)
    setInputMapping, getInputMapping = accessors("input_mapping")


class HasInputMode(_Stage):
    """The param `input_mode`: must be `InputMode.SPARK`, 1, since a stage feeds the nodes."""

    input_mode = param("input_mode", "1: Spark feeds the nodes", TypeConverters.toInt)
    _set_input_mode, getInputMode = accessors("input_mode")

    def setInputMode(self, value: int) -> Any:
        """Set `input_mode` and return the stage.

        Raises:
            ConfigError: if `value` is `InputMode.TENSORFLOW`, 0.
        """
        if value == 0:
            raise ConfigError(
                "InputMode.TENSORFLOW is not for pipelines: fit(df) feeds the rows of a DataFrame. "
                "Use InputMode.SPARK, or call TFCluster.run instead of a pipeline."
            )
        return self._set_input_mode(value)


class HasMasterNode(_Stage):
    """The param `master_node`: job name of the node that saves and reports, such as `chief`."""

    master_node = param("master_node", "job name of the chief", TypeConverters.toString)
    setMasterNode, getMasterNode = accessors("master_node")


class HasModelDir(_Stage):
    """The param `model_dir`: folder of checkpoints."""

    model_dir = param("model_dir", "folder of checkpoints", TypeConverters.toString)
    setModelDir, getModelDir = accessors("model_dir")


class HasNumPS(_Stage):
    """The params `num_ps` and `driver_ps_nodes`: number and place of parameter servers."""

    num_ps = param("num_ps", "parameter servers", TypeConverters.toInt)
    driver_ps_nodes = param(
        "driver_ps_nodes", "run parameter servers on the driver", TypeConverters.toBoolean
    )
    setNumPS, getNumPS = accessors("num_ps")
    setDriverPSNodes, getDriverPSNodes = accessors("driver_ps_nodes")


class HasOutputMapping(_Stage):
    """The param `output_mapping`: the column for each output tensor, `{tensor: column}`."""

    output_mapping = param("output_mapping", "column by output tensor", TFTypeConverters.toDict)
    setOutputMapping, getOutputMapping = accessors("output_mapping")


class HasProtocol(_Stage):
    """The param `protocol`, which is only passed to the training function."""

    protocol = param("protocol", "network protocol", TypeConverters.toString)
    setProtocol, getProtocol = accessors("protocol")


class HasReaders(_Stage):
    """The param `readers`, which is only passed to the training function."""

    readers = param("readers", "number of reader threads", TypeConverters.toInt)
    setReaders, getReaders = accessors("readers")


class HasSteps(_Stage):
    """The param `steps`, which is only passed to the training function."""

    steps = param("steps", "maximum number of training steps", TypeConverters.toInt)
    setSteps, getSteps = accessors("steps")


class HasTensorboard(_Stage):
    """The param `tensorboard`: run TensorBoard on one node."""

    tensorboard = param("tensorboard", "start TensorBoard", TypeConverters.toBoolean)
    setTensorboard, getTensorboard = accessors("tensorboard")


class HasTFRecordDir(_Stage):
    """The param `tfrecord_dir`, which is only passed to the training function."""

    tfrecord_dir = param("tfrecord_dir", "folder of TFRecord files", TypeConverters.toString)
    setTFRecordDir, getTFRecordDir = accessors("tfrecord_dir")


class HasExportDir(_Stage):
    """The param `export_dir`: folder of the SavedModel."""

    export_dir = param("export_dir", "folder of the SavedModel", TypeConverters.toString)
    setExportDir, getExportDir = accessors("export_dir")


class HasSignatureDefKey(_Stage):
    """The param `signature_def_key`: signature of the SavedModel."""

    signature_def_key = param("signature_def_key", "signature", TypeConverters.toString)
    setSignatureDefKey, getSignatureDefKey = accessors("signature_def_key")


class HasTagSet(_Stage):
    """The param `tag_set`: comma-separated tags that select a graph of the SavedModel."""

    tag_set = param("tag_set", "comma-separated tags of the graph", TypeConverters.toString)
    setTagSet, getTagSet = accessors("tag_set")


class Namespace:
    """A namespace of arguments, or a list of strings that becomes `sys.argv` of the nodes.

    Args:
        d: a dict, an `argparse.Namespace`, a `Namespace`, or a list of strings.

    Raises:
        TypeError: if `d` has another type.

    Example:
        >>> args = Namespace({"learning_rate": 0.1})
        >>> args, "learning_rate" in args, args.learning_rate
        (Namespace(learning_rate=0.1), True, 0.1)
        >>> list(Namespace(["--epochs", "3"]))
        ['--epochs', '3']
    """

    argv: list[str] | None = None

    def __init__(self, d: "Mapping[str, Any] | argparse.Namespace | Namespace | list[str]") -> None:
        if isinstance(d, list):
            self.argv = d
        elif isinstance(d, Mapping):
            self.__dict__.update(d)
        elif isinstance(d, argparse.Namespace | Namespace):
            self.__dict__.update(vars(d))
        else:
            raise TypeError(
                f"Namespace got {named_type(d)}; expected a dict, an argparse.Namespace, a "
                "Namespace, or a list of strings."
            )

    def __getattr__(self, name: str) -> Any:
        names = ", ".join(self) or "none"
        raise AttributeError(f"no argument {name!r}; the arguments are {names}.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.argv or vars(self))

    def __repr__(self) -> str:
        if self.argv:
            return repr(self.argv)
        return f"Namespace({', '.join(f'{k}={v!r}' for k, v in sorted(vars(self).items()))})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list):
            return self.argv == other
        return isinstance(other, argparse.Namespace | Namespace) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class TFParams(_Stage):
    """A stage with arguments in addition to its params."""

    args: Any = None

    def merge_args_params(self) -> Any:
        """Return a copy of the arguments, in which params are added and take precedence.

        Raises:
            KeyError: if a param has neither a value nor a default.
        """
        merged = copy.copy(self.args)
        vars(merged).update({param.name: self.getOrDefault(param.name) for param in self.params})
        return merged
