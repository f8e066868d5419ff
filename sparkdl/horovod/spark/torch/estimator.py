"""Runs on the driver. Horovod's estimator for PyTorch, over that of `sparkdl.ml`."""

from typing import Any

from pyspark.sql import DataFrame

from sparkdl import experiment, ml
from sparkdl.errors import ConfigError, named_type
from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.spark.common.params import TorchParams
from sparkdl.horovod.spark.stages import OptionsOfBackend, SparkEstimator, label_type
from sparkdl.horovod.spark.torch.model import TorchModel, features_of, names_of, with_shapes
from sparkdl.inference.torch_objects import is_torch

__all__ = ["TorchEstimator", "TorchModel"]


class TorchEstimator(SparkEstimator, TorchParams):
    """An estimator that trains a PyTorch module on a DataFrame. `fit(df)` returns a `TorchModel`.

    Each `fit` is a run, see `sparkdl.ml.TorchEstimator`, which also has what this one does not:
    params for a `ParamGridBuilder`, classification for Spark's evaluators, and `save`.

    Args:
        num_proc: the number of ranks; by default the number of slots.
        model: a `torch.nn.Module`.
        backend: a `SparkBackend`, in place of `num_proc`.
        store: a `Store`: the folder of the runs. By default the usual one.
        optimizer: the optimizer of the module. Its learning rate is that of all ranks together:
            it is not multiplied by their number.
        loss: a function of outputs and labels, or a list with one.
        metrics: functions of outputs and labels, or lists with one of them each.
        feature_cols: the columns of the features, one for each argument of the module.
        input_shapes: the shape of each input, the rows included, such as `[[-1, 1, 28, 28]]`.
        label_cols: a list with the column of the label, which the loss gets in the dtype of the
            outputs.
        sample_weight_col: the column of the weights of the rows.
        validation: the part of the rows that validates each epoch; or the column that is true, or
            1, for those rows.
        batch_size: rows in a step of one rank.
        epochs: passes over the rows.
        verbose: 0 to show nothing, 2 to show the output of all ranks.
        random_seed, shuffle: the seed; shuffle the rows.
        backend_env: environment variables of the ranks.
        use_gpu: False to train without GPUs.
        **params: the other params of Horovod. Those without effect are named in a warning.

    Raises:
        ConfigError: from `fit`, if a param is invalid, or not possible here.

    Example:
        >>> estimator = TorchEstimator(num_proc=2, feature_cols=["x"], input_shapes=[[-1, 2, 2]])
        >>> estimator.setBatchSize(16).getBatchSize(), estimator.getInputShapes()
        (16, [[-1, 2, 2]])
    """

    def _fit(self, dataset: DataFrame) -> TorchModel:
        self._check()
        backend = self._backend()
        num_proc = backend.num_processes()
        columns, label = self._columns()
        model, shapes = self.getOrDefault("model"), self.getOrDefault("input_shapes")
        if not is_torch(model):
            raise ConfigError(f"model is {named_type(model)}; expected a torch.nn.Module.")
        wrapped = with_shapes(model, shapes)
        dataset = self._validated(dataset)
        metrics = self._metrics(label)
        stage = _Stage(
            wrapped,
            optimizer=self.getOrDefault("optimizer"),
            loss=_only(self.getOrDefault("loss"), "loss"),
            metrics=metrics,
            featuresCol=features_of(names_of(model), columns, shapes),
            **self._stage_params(label, num_proc),
        )
        stage.backend, stage.options = backend, self._options(backend)
        fitted = stage.fit(dataset)
        run = experiment.load(fitted.getRunPath())
        trained = fitted.torch_model
        return TorchModel(
            history=_history(run.trials[0].history, list(metrics)),
            model=trained if wrapped is model else trained[1],
            feature_columns=columns,
            input_shapes=shapes,
            label_columns=[label],
            run_id=run.id,
            label_type=label_type(dataset, label),
            outputs=fitted.getOutputs(),
            inputs=fitted.getInputs(),
        )

    def _metrics(self, label: str) -> dict[str, Any]:
        """Return the metrics by Horovod's names for them."""
        groups = enumerate(self.getOrDefault("metrics"))
        return {f"group_{number}_{label}": _only(group, "metrics") for number, group in groups}


def _only(value: Any, name: str) -> Any:
    """Return the only function of a list; of anything else, the value itself."""
    if not isinstance(value, list | tuple):
        return value
    if len(value) != 1:
        raise ConfigError(f"{name} contains {value!r}; expected one function, for one label.")
    return value[0]


def _history(table: Any, metrics: list[str]) -> list[dict[str, Any]]:
    """Return the metrics of each epoch in the form of Horovod."""

    def of(row: Any, prefix: str) -> dict[str, Any]:
        values = [{name: float(row[prefix + name])} for name in metrics]
        return {"loss": float(row[f"{prefix}loss"]), "all_metrics": values}

    history = []
    for epoch, row in table.iterrows():
        part = {"epoch": int(epoch), "train": of(row, "")}
        history.append(part | ({"validation": of(row, "val_")} if "val_loss" in row else {}))
    return history


class _Stage(OptionsOfBackend, ml.TorchEstimator):
    """The estimator with options of a run that no saved stage may have, such as `env`."""


__getattr__ = absent_names(__name__, __all__)
