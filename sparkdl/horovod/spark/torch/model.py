"""Runs on the driver. A trained module of PyTorch with the interface of Horovod's."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl import ml
from sparkdl.errors import ConfigError
from sparkdl.horovod.spark.stages import SparkModel
from sparkdl.spark.ml import accessors, param

__all__ = ["TorchModel", "features_of", "names_of", "with_shapes"]


def names_of(model: Any) -> list[str]:
    """Return the names of the arguments of a module."""
    return list(inspect.signature(model.forward).parameters)


def features_of(names: Sequence[str], columns: Sequence[str], shapes: Any) -> Any:
    """Return the feature columns as `sparkdl.ml` takes them: one column for each input.

    Args:
        names: the names of the arguments of the module.
        columns: the columns, in this order.
        shapes: the shape of each input, the rows included; None for those of the columns.

    Raises:
        ConfigError: if there are more columns than arguments, or more or fewer shapes.
    """
    if shapes is not None and len(shapes) != len(columns):
        raise ConfigError(
            f"input_shapes is {shapes!r} for feature_cols={list(columns)!r}; expected a shape for "
            "each column."
        )
    if len(columns) > len(names):
        raise ConfigError(
            f"feature_cols is {list(columns)!r} for a module that takes {', '.join(names)}; "
            "expected a column for each argument. pyspark.ml.feature.VectorAssembler makes one of "
            "several."
        )
    # A list of columns has the shape (rows, n), also for one column of numbers.
    given = [
        [column] if shape is not None and len(shape) > 1 else column
        for column, shape in zip(columns, shapes or [None] * len(columns), strict=True)
    ]
    return given[0] if len(given) == 1 else dict(zip(names, given, strict=False))


def with_shapes(model: Any, shapes: Any) -> Any:
    """Return a module that gives its input the shape that the user has named.

    Raises:
        ConfigError: if one of several inputs has another shape than (rows, n).
    """
    wide = [list(shape) for shape in shapes or [] if len(shape) > 2]
    if not wide:
        return model
    if len(shapes) > 1:
        raise ConfigError(
            f"input_shapes is {shapes!r}; several inputs have the shape [-1, n] or [-1]. Let "
            f"forward() of the module reshape the others: x.reshape({wide[0]})."
        )
    import torch

    return torch.nn.Sequential(torch.nn.Unflatten(1, wide[0][1:]), model)


class TorchModel(SparkModel):
    """A module of PyTorch that adds a column of predictions to a DataFrame.

    The column has the name of the label with `__output` behind it, unless `setOutputCols` names
    another: a vector of the outputs, or a number of the type of the label.

    Args:
        history: for each epoch, the metrics of the training and of the validation.
        model: the module; after `load` a program of `torch.export`.
        feature_columns: the columns of the features, one for each argument of the module.
        input_shapes: the shape of each input, the rows included, such as `[[-1, 1, 28, 28]]`.
        label_columns: the column of the label.
        run_id: the id of the run that trained the model.
        label_type: the type of the column of the label.
        outputs: `double` for a module with one number for each row, otherwise `array<double>`.
        inputs: dtype and shape of the inputs, with which the model is saved; see
            `sparkdl.ml.TorchModel`.
    """

    input_shapes = param("input_shapes", "shape of each input", list)
    setInputShapes, getInputShapes = accessors("input_shapes")
    outputs = param("outputs", "type of the output", str)
    inputs = param("inputs", "dtype and shape of the inputs", list)

    def __init__(
        self,
        history: Sequence[Mapping[str, Any]] | None = None,
        model: Any = None,
        feature_columns: Sequence[str] | None = None,
        input_shapes: Sequence[Sequence[int]] | None = None,
        label_columns: Sequence[str] | None = None,
        run_id: str | None = None,
        label_type: str = "double",
        outputs: str = "array<double>",
        inputs: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(
            model,
            label_columns,
            history=history,
            feature_columns=feature_columns,
            input_shapes=input_shapes,
            run_id=run_id,
            label_type=label_type,
            outputs=outputs,
            inputs=inputs,
        )
        self._setDefault(history=[], input_shapes=None, inputs=None)
        self._names: list[str] = []

    def _stage(self, column: str) -> ml.TorchModel:
        shapes = self.getInputShapes()
        is_module = hasattr(self._model, "forward")  # A loaded program has the shapes already.
        names = names_of(self._model) if is_module else self._names
        return ml.TorchModel(
            with_shapes(self._model, shapes) if is_module else self._model,
            featuresCol=features_of(names, self.getFeatureColumns(), shapes),
            predictionCol=column,
            task="regression",
            outputs=self.getOrDefault("outputs"),
            inputs=self.getOrDefault("inputs"),
        )

    def _save(self, path: str, spark: Any) -> Mapping[str, Any]:
        names = names_of(self._model) if hasattr(self._model, "forward") else self._names
        self._stage("prediction")._save(path, spark)
        return {"names": names}

    @classmethod
    def _load(cls, extra: Mapping[str, Any], path: str, spark: Any) -> "TorchModel":
        loaded = cls(model=ml.TorchModel._load(extra, path, spark).torch_model)
        loaded._names = extra["names"]
        return loaded
