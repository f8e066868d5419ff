"""Runs on the driver. Train and apply models as stages of a Spark ML Pipeline."""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from pyspark.ml import Estimator, Model
from pyspark.sql import DataFrame

from sparkdl import experiment
from sparkdl.errors import ConfigError
from sparkdl.tfos import util
from sparkdl.tfos.absent_names import absent_names
from sparkdl.tfos.classic_spark import check_session
from sparkdl.tfos.ml import persistence, transform
from sparkdl.tfos.ml.params import (
    HasBatchSize,
    HasClusterSize,
    HasEpochs,
    HasExportDir,
    HasGraceSecs,
    HasInputMapping,
    HasInputMode,
    HasMasterNode,
    HasModelDir,
    HasNumPS,
    HasOutputMapping,
    HasProtocol,
    HasReaders,
    HasSignatureDefKey,
    HasSteps,
    HasTagSet,
    HasTensorboard,
    HasTFRecordDir,
    Namespace,
    TFParams,
)
from sparkdl.tfos.ml.params import TFTypeConverters as TFTypeConverters
from sparkdl.tfos.ml.params import __all__ as _of_params

__all__ = [*_of_params, "TFEstimator", "TFModel", "single_node_env", "yield_batch"]

__getattr__ = absent_names(__name__, __all__)

_ESTIMATOR = {
    "input_mapping": {},
    "cluster_size": 1,
    "num_ps": 0,
    "driver_ps_nodes": False,
    "input_mode": 1,  # InputMode.SPARK
    "master_node": "chief",
    "protocol": "grpc",
    "tensorboard": False,
    "model_dir": None,
    "export_dir": None,
    "tfrecord_dir": None,
    "batch_size": 100,
    "epochs": 1,
    "readers": 1,
    "steps": 1000,
    "grace_secs": 30,
}
_MODEL = {
    "input_mapping": {},
    "output_mapping": {},
    "batch_size": 100,
    "model_dir": None,
    "export_dir": None,
    "signature_def_key": None,
    "tag_set": None,
}


class TFEstimator(
    persistence.PersistentStage,
    Estimator,  # type: ignore[misc]
    TFParams,
    HasInputMapping,
    HasClusterSize,
    HasNumPS,
    HasInputMode,
    HasMasterNode,
    HasProtocol,
    HasGraceSecs,
    HasTensorboard,
    HasModelDir,
    HasExportDir,
    HasTFRecordDir,
    HasBatchSize,
    HasEpochs,
    HasReaders,
    HasSteps,
):
    """An estimator that trains a model on a cluster. `fit(df)` returns a `TFModel`.

    `fit` starts a cluster, feeds the rows of the DataFrame, and shuts the cluster down. The columns
    in `input_mapping` are fed, sorted by name. The training function finds all params in its
    arguments, and writes its model to `args.export_dir`.

    Args:
        train_fn: the training function `train_fn(args, ctx)`, which each node runs.
        tf_args: the arguments of the training function: a dict, an `argparse.Namespace`, or a list
            of strings, which becomes `sys.argv` of the nodes.
        export_fn: a function `export_fn(args)` that runs once, in its own process, after training;
            for TensorFlow 1 programs that export from a checkpoint.

    Example:
        >>> def train(args, ctx):
        ...     feed = ctx.get_data_feed(input_mapping=args.input_mapping)
        >>> estimator = TFEstimator(train, {"learning_rate": 0.1}).setInputMapping({"x": "x"})
        >>> estimator.setClusterSize(2).setEpochs(3).merge_args_params().epochs
        3
    """

    _FUNCTIONS = ("train_fn", "export_fn")

    def __init__(
        self,
        train_fn: Callable[..., Any],
        tf_args: Any,
        export_fn: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        self.train_fn = train_fn
        self.export_fn = export_fn
        self.args = Namespace(tf_args)
        self._setDefault(**_ESTIMATOR)

    def _fit(self, dataset: DataFrame) -> "TFModel":
        from sparkdl.tfos import TFCluster

        check_session(dataset, "TFEstimator.fit")
        args = self.merge_args_params()
        self._check(dataset)
        tf_args = self.args.argv or args
        cluster = TFCluster.run(
            dataset.sparkSession.sparkContext,
            self.train_fn,
            tf_args,
            args.cluster_size,
            args.num_ps,
            args.tensorboard,
            TFCluster.InputMode.SPARK,
            master_node=args.master_node,
            driver_ps_nodes=args.driver_ps_nodes,
        )
        try:
            cluster.train(dataset.select(sorted(args.input_mapping)).rdd, args.epochs)
        except BaseException:
            cluster.run.cancel()  # Nodes would wait indefinitely for rows or for each other.
            raise
        cluster.shutdown(grace_secs=args.grace_secs)
        if self.export_fn:
            experiment.launch(partial(_export, self.export_fn, tf_args), name="export")
        return self._copyValues(TFModel(self.args))  # type: ignore[no-any-return]

    def _check(self, dataset: DataFrame) -> None:
        missing = sorted(set(self.getInputMapping()).difference(dataset.columns))
        if missing or not self.getInputMapping():
            raise ConfigError(
                f"input_mapping is {self.getInputMapping()!r}; expected columns of the DataFrame, "
                f"which are {', '.join(dataset.columns)}. Call setInputMapping({{column: tensor}})."
            )
        if self.export_fn and not self.getExportDir():
            raise ConfigError("export_fn needs an export_dir: call setExportDir(path).")


def single_node_env(args: Any) -> None:
    """Set the environment of a process that runs TensorFlow alone, and its `sys.argv`.

    Args:
        args: a list of strings, which becomes `sys.argv`; or arguments with the fields `argv` and
            `num_gpus`, which is 1 by default. See `util.single_node_env`.

    Example:
        >>> import argparse, os
        >>> previous = sys.argv, os.environ.get("CUDA_VISIBLE_DEVICES")
        >>> single_node_env(argparse.Namespace(argv=["train", "--fast"], num_gpus=0))
        >>> sys.argv, os.environ.pop("CUDA_VISIBLE_DEVICES")
        (['train', '--fast'], '')
        >>> sys.argv = previous[0]
        >>> os.environ.update({"CUDA_VISIBLE_DEVICES": previous[1]} if previous[1] else {})
    """
    argv = args if isinstance(args, list) else getattr(args, "argv", None)
    if argv:
        sys.argv = argv
    util.single_node_env(getattr(args, "num_gpus", 1))


def yield_batch(
    iterable: Iterable[Any], batch_size: int, num_tensors: int = 1
) -> Iterator[list[list[Any]]]:
    """Yield the rows of a partition in batches of columns.

    Args:
        iterable: the rows, up to a row that is None.
        batch_size: number of rows in a batch; the last batch may have fewer.
        num_tensors: number of columns to take from each row.

    Example:
        >>> list(yield_batch([(1, "a"), (2, "b"), (3, "c")], 2, num_tensors=2))
        [[[1, 2], ['a', 'b']], [[3], ['c']]]
    """
    rows = itertools.takewhile(lambda row: row is not None, iterable)
    while batch := list(itertools.islice(rows, batch_size)):
        columns = [[row[number] for row in batch] for number in range(num_tensors)]
        yield [[bytes(v) if isinstance(v, bytearray) else v for v in c] for c in columns]


def _export(export_fn: Callable[..., Any], args: Any) -> None:
    """Run the user's function in the training process, and discard the result.

    The result of a run must be metrics, and an export function may return anything.
    """
    export_fn(args)


class TFModel(
    persistence.PersistentStage,
    Model,  # type: ignore[misc]
    TFParams,
    HasInputMapping,
    HasOutputMapping,
    HasBatchSize,
    HasModelDir,
    HasExportDir,
    HasSignatureDefKey,
    HasTagSet,
):
    """A model that applies a SavedModel to a DataFrame. Each Python worker loads the model once.

    `transform` returns only the columns in `output_mapping`, sorted by the names of their tensors.
    Numbers become bigint or double, and the dimensions of a tensor after the first become arrays.

    Args:
        tf_args: arguments in addition to the params: a dict, an `argparse.Namespace` or a list.

    Example:
        >>> import tensorflow as tf
        >>> from pyspark.sql import SparkSession
        >>> module = tf.Module()
        >>> spec = tf.TensorSpec([None], "float32", name="x")
        >>> module.serve = tf.function(lambda x: {"y": 2 * x}, input_signature=[spec])
        >>> tf.saved_model.save(module, "doubled", {"serving_default": module.serve})
        >>> model = TFModel({}).setExportDir("doubled")
        >>> model = model.setInputMapping({"a": "x"}).setOutputMapping({"y": "twice"})
        >>> df = SparkSession.active().createDataFrame([(1.5,)], ["a"])
        >>> model.transform(df).collect()
        [Row(twice=3.0)]
    """

    _FUNCTIONS = ()

    def __init__(self, tf_args: Any) -> None:
        super().__init__()
        self.args = Namespace(tf_args)
        self._setDefault(**_MODEL)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return transform.transform(dataset, self.merge_args_params())
