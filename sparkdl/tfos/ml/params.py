"""Runs on the driver. The params of the Spark ML stages, each with its getter and setter.

Names and types are TensorFlowOnSpark's: `set<Name>(value)` returns the stage, `get<Name>()` the
value or its default. They differ from Spark's own in that their names have underscores.
"""

import argparse
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl.errors import ConfigError

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

_Get = Callable[[Any], Any]
_Set = Callable[[Any, Any], Any]


class TFTypeConverters:
    """Beside Spark's `TypeConverters`: for dicts."""

    @staticmethod
    def toDict(value: Any) -> dict[Any, Any]:
        """The dict itself.

        Raises:
            TypeError: it is none.

        Example:
            >>> TFTypeConverters.toDict({"x": "input"})
            {'x': 'input'}
        """
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is a {type(value).__name__}; expected a dict.")
        return value


class _Stage(Params):  # type: ignore[misc]
    """What has params."""


def _param(name: str, meaning: str, converter: Callable[[Any], Any]) -> Any:
    return Param(Params._dummy(), name, meaning, typeConverter=converter)


def _accessors(name: str) -> tuple[_Set, _Get]:
    def set_value(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    def get_value(self: Any) -> Any:
        return self.getOrDefault(name)

    set_value.__doc__ = f"Set `{name}`; returns the stage."
    get_value.__doc__ = f"The value of `{name}`, or its default."
    return set_value, get_value


class HasBatchSize(_Stage):
    """`batch_size`: how many rows the model gets at once."""

    batch_size = _param("batch_size", "rows in a batch", TypeConverters.toInt)
    setBatchSize, getBatchSize = _accessors("batch_size")


class HasClusterSize(_Stage):
    """`cluster_size`: how many nodes, parameter servers among them."""

    cluster_size = _param("cluster_size", "nodes in the cluster", TypeConverters.toInt)
    setClusterSize, getClusterSize = _accessors("cluster_size")


class HasEpochs(_Stage):
    """`epochs`: how often the rows are fed."""

    epochs = _param("epochs", "how often all rows are fed", TypeConverters.toInt)
    setEpochs, getEpochs = _accessors("epochs")


class HasGraceSecs(_Stage):
    """`grace_secs`: seconds that nodes have after the last row, such as for an export."""

    grace_secs = _param("grace_secs", "seconds after the last row", TypeConverters.toInt)
    setGraceSecs, getGraceSecs = _accessors("grace_secs")


class HasInputMapping(_Stage):
    """`input_mapping`: which column goes into which tensor, `{column: tensor}`."""

    input_mapping = _param("input_mapping", "tensor by input column", TFTypeConverters.toDict)
    setInputMapping, getInputMapping = _accessors("input_mapping")


class HasInputMode(_Stage):
    """`input_mode`: how nodes get rows; a stage feeds them, which is `InputMode.SPARK`, 1."""

    input_mode = _param("input_mode", "1: Spark feeds the nodes", TypeConverters.toInt)
    _set_input_mode, getInputMode = _accessors("input_mode")

    def setInputMode(self, value: int) -> Any:
        """Set `input_mode`; returns the stage.

        Raises:
            ConfigError: it is `InputMode.TENSORFLOW`, 0.
        """
        if value == 0:
            raise ConfigError(
                "InputMode.TENSORFLOW is not for pipelines: fit(df) feeds the rows of a DataFrame. "
                "Leave it at InputMode.SPARK, or call TFCluster.run yourself."
            )
        return self._set_input_mode(value)


class HasMasterNode(_Stage):
    """`master_node`: what the node that saves and reports is called, such as `chief`."""

    master_node = _param("master_node", "job name of the chief", TypeConverters.toString)
    setMasterNode, getMasterNode = _accessors("master_node")


class HasModelDir(_Stage):
    """`model_dir`: where checkpoints are."""

    model_dir = _param("model_dir", "folder of checkpoints", TypeConverters.toString)
    setModelDir, getModelDir = _accessors("model_dir")


class HasNumPS(_Stage):
    """`num_ps`: how many nodes are parameter servers; `driver_ps_nodes`: they run on the driver."""

    num_ps = _param("num_ps", "parameter servers", TypeConverters.toInt)
    driver_ps_nodes = _param("driver_ps_nodes", "run them on the driver", TypeConverters.toBoolean)
    setNumPS, getNumPS = _accessors("num_ps")
    setDriverPSNodes, getDriverPSNodes = _accessors("driver_ps_nodes")


class HasOutputMapping(_Stage):
    """`output_mapping`: which tensor comes out in which column, `{tensor: column}`."""

    output_mapping = _param("output_mapping", "column by output tensor", TFTypeConverters.toDict)
    setOutputMapping, getOutputMapping = _accessors("output_mapping")


class HasProtocol(_Stage):
    """`protocol`: passed on to the training function."""

    protocol = _param("protocol", "network protocol", TypeConverters.toString)
    setProtocol, getProtocol = _accessors("protocol")


class HasReaders(_Stage):
    """`readers`: passed on to the training function."""

    readers = _param("readers", "threads that read", TypeConverters.toInt)
    setReaders, getReaders = _accessors("readers")


class HasSteps(_Stage):
    """`steps`: passed on to the training function."""

    steps = _param("steps", "steps to train at most", TypeConverters.toInt)
    setSteps, getSteps = _accessors("steps")


class HasTensorboard(_Stage):
    """`tensorboard`: start TensorBoard on one node."""

    tensorboard = _param("tensorboard", "start TensorBoard", TypeConverters.toBoolean)
    setTensorboard, getTensorboard = _accessors("tensorboard")


class HasTFRecordDir(_Stage):
    """`tfrecord_dir`: passed on to the training function."""

    tfrecord_dir = _param("tfrecord_dir", "folder of TFRecord files", TypeConverters.toString)
    setTFRecordDir, getTFRecordDir = _accessors("tfrecord_dir")


class HasExportDir(_Stage):
    """`export_dir`: where the SavedModel is."""

    export_dir = _param("export_dir", "folder of the SavedModel", TypeConverters.toString)
    setExportDir, getExportDir = _accessors("export_dir")


class HasSignatureDefKey(_Stage):
    """`signature_def_key`: which function of the SavedModel."""

    signature_def_key = _param("signature_def_key", "function", TypeConverters.toString)
    setSignatureDefKey, getSignatureDefKey = _accessors("signature_def_key")


class HasTagSet(_Stage):
    """`tag_set`: which graph of the SavedModel, by its tags with commas between them."""

    tag_set = _param("tag_set", "tags of the graph, with commas", TypeConverters.toString)
    setTagSet, getTagSet = _accessors("tag_set")


class Namespace:
    """Arguments as attributes, from a dict or argparse's; or a list as a program's `sys.argv`.

    Args:
        d: a dict, an `argparse.Namespace`, a `Namespace`, or a list of words.

    Raises:
        TypeError: it is none of these.

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
                f"Namespace got a {type(d).__name__}; expected a dict, an argparse.Namespace, a "
                "Namespace, or a list of words."
            )

    def __getattr__(self, name: str) -> Any:
        have = ", ".join(self) or "none"
        raise AttributeError(f"there is no argument {name!r}; there are {have}.")

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
    """A stage that has arguments beside its params."""

    args: Any = None

    def merge_args_params(self) -> Any:
        """A copy of the arguments, with all params beside them or in their place.

        Raises:
            KeyError: a param has neither a value nor a default.
        """
        merged = copy.copy(self.args)
        vars(merged).update({param.name: self.getOrDefault(param.name) for param in self.params})
        return merged
