"""Runs on the driver. The params of Horovod's estimators."""

import logging
from collections.abc import Mapping
from typing import Any

from pyspark.ml.param import Param, Params

from sparkdl.errors import ConfigError, suggest
from sparkdl.horovod.absent_names import absent_names
from sparkdl.spark.ml import accessors

__all__ = ["EstimatorParams"]

_logger = logging.getLogger("sparkdl.horovod")

# The params that count, with Horovod's defaults.
_USED: dict[str, Any] = {
    "num_proc": None,
    "model": None,
    "backend": None,
    "store": None,
    "custom_objects": {},
    "optimizer": None,
    "loss": None,
    "loss_weights": None,
    "sample_weight_col": None,
    "metrics": [],
    "feature_cols": None,
    "label_cols": None,
    "validation": None,
    "callbacks": [],
    "checkpoint_callback": None,
    "batch_size": 32,
    "epochs": 1,
    "verbose": 1,
    "random_seed": None,
    "shuffle": True,
    "shuffle_buffer_size": None,
    "backend_env": {},
    "use_gpu": True,
}
# Those of Horovod's files and readers, which the result does not depend on.
_UNUSED: dict[str, Any] = {
    "val_batch_size": None,
    "partitions_per_process": 10,
    "train_reader_num_workers": 2,
    "val_reader_num_workers": 2,
    "reader_pool_type": "thread",
    "inmemory_cache_all": False,
    "mp_start_method": None,
    "compress_sparse_cols": False,
    "continuous_cols": None,
    "categorical_cols": None,
}
_STEPS = "each epoch has all rows: fit df.limit(n), or df.sample(fraction), for fewer"
# Those on which the result depends, and that are not possible here, with what to do.
_REFUSED: dict[str, tuple[Any, str]] = {
    "data_module": (None, "Spark sends the rows to the ranks: leave it out"),
    "gradient_compression": (
        None,
        "write the training as a function, with hvd.DistributedOptimizer(optimizer, "
        "compression=hvd.Compression.fp16), for experiment.horovod(train, data=df)",
    ),
    "train_steps_per_epoch": (None, _STEPS),
    "validation_steps_per_epoch": (None, _STEPS),
    "transformation_fn": (None, "apply it to the DataFrame before fit, or in layers of the model"),
    "label_shapes": (None, "labels have the shape of their column: fit df with a column of arrays"),
    "run_id": (
        None,
        "each fit is a run of its own, whose id is getRunId() of the model: "
        "experiment.resume(run) continues one",
    ),
    "backward_passes_per_step": (
        1,
        "set batch_size to the rows of all passes, or gradient_accumulation_steps of the optimizer",
    ),
}
# The same for PyTorch.
_USED_BY_TORCH: dict[str, Any] = {"input_shapes": None}
_UNUSED_BY_TORCH: dict[str, Any] = {"callbacks": [], "checkpoint_callback": None}
_REFUSED_BY_TORCH: dict[str, tuple[Any, str]] = {
    "loss_constructors": (None, "pass the loss itself, loss=function"),
    "loss_weights": (None, "with one label the loss has no other beside it"),
    "train_minibatch_fn": (
        None,
        'write the loop as a function, for experiment.allreduce(train, framework="torch", data=df)',
    ),
    "backward_passes_per_step": (1, "set batch_size to the rows of all passes"),
}


def _defaults(*groups: Mapping[str, Any]) -> dict[str, Any]:
    return {name: default for group in groups for name, default in group.items()}


def _refused_defaults(refused: Mapping[str, tuple[Any, str]]) -> dict[str, Any]:
    return {name: default for name, (default, _) in refused.items()}


# The methods whose names Horovod spells in another way.
_METHODS = {
    "inmemory_cache_all": "InMemoryCacheAll",
    "shuffle_buffer_size": "ShufflingBufferSize",
    "train_reader_num_workers": "TrainReaderNumWorker",
    "val_reader_num_workers": "ValReaderNumWorker",
}


class EstimatorParams(Params):  # type: ignore[misc]
    """The params of an estimator: `num_proc`, `setNumProc`, `getNumProc`, and so on."""

    _unused: Mapping[str, Any] = _UNUSED
    _refused: Mapping[str, tuple[Any, str]] = _REFUSED
    _defaults: Mapping[str, Any] = _defaults(_USED, _UNUSED, _refused_defaults(_REFUSED))

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**self._defaults)

    def setParams(self, **params: Any) -> Any:
        """Set params by name and return the stage; None leaves a default.

        Raises:
            ConfigError: if there is no such param.
        """
        for name in params:
            if name not in self._defaults:
                raise ConfigError(
                    f"{type(self).__name__} has no param {name!r}.{suggest(name, self._defaults)} "
                    f"Params are {', '.join(self._defaults)}."
                )
        return self._set(**{name: value for name, value in params.items() if value is not None})

    def _check(self) -> None:
        """Refuse params that are not possible here, and name those without effect.

        Raises:
            ConfigError: if a param is not possible.
        """
        set_params: Mapping[str, Any] = {
            name: self.getOrDefault(name)
            for name in (*self._unused, *self._refused)
            if self.getOrDefault(name) != self._defaults[name]
        }
        for name in set_params:
            if name in self._refused:
                raise ConfigError(
                    f"{name} is {set_params[name]!r}, which {type(self).__name__} of sparkdl does "
                    f"not have; {self._refused[name][1]}."
                )
        if set_params:
            _logger.warning(
                "%s of %s have no effect: Spark sends the rows to the ranks, without files.",
                ", ".join(set_params),
                type(self).__name__,
            )


class TorchParams(EstimatorParams):
    """The params of an estimator for PyTorch."""

    _unused = {**_UNUSED, **_UNUSED_BY_TORCH}
    _refused = {**_REFUSED, **_REFUSED_BY_TORCH}
    _defaults = {
        **EstimatorParams._defaults,
        **_defaults(_USED_BY_TORCH, _UNUSED_BY_TORCH, _refused_defaults(_REFUSED_BY_TORCH)),
    }


def _add_params(stage: type[EstimatorParams]) -> None:
    for name in stage._defaults:
        method = _METHODS.get(name, name.title().replace("_", ""))
        setattr(stage, name, Param(Params._dummy(), name, "see Horovod's estimators"))
        setter, getter = accessors(name)
        setattr(stage, f"set{method}", setter)
        setattr(stage, f"get{method}", getter)


_add_params(EstimatorParams)
_add_params(TorchParams)

__getattr__ = absent_names(__name__, __all__)
