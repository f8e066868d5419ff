"""Runs on the driver. The parts that the estimators, and their models, have in common."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyspark.ml import Estimator, Model
from pyspark.ml.param import TypeConverters
from pyspark.sql import DataFrame

from sparkdl import experiment
from sparkdl.errors import ConfigError
from sparkdl.inference.prediction import check_new_columns
from sparkdl.inference.prepared_model import PreparedModel
from sparkdl.ml.hyperparameters import values_of
from sparkdl.ml.params import CLASSIFICATION, REGRESSION, PredictionParams, TrainingParams
from sparkdl.ml.prediction_columns import classification_columns, regression_column
from sparkdl.runs import Run
from sparkdl.spark.ml import PersistentStage, accessors, param

# The column of the model's outputs, which transform replaces.
OUTPUT = "sparkdl_output"


class TrainingStage(
    PersistentStage,
    Estimator,  # type: ignore[misc]
    TrainingParams,
):
    """An estimator whose fit is a run.

    Attributes:
        model: a model, or a function that returns one.
    """

    model: Any
    _hyperparameters: tuple[str, ...]

    def _builder(self) -> "partial[Any]":
        """Return the function of the model with the values of its parameters."""
        return partial(self.model, **values_of(self, self._hyperparameters))

    def _training_options(self, prepared: PreparedModel, has_validation: bool) -> dict[str, Any]:
        """Return the attributes of a `Training`."""
        return {
            "features": self.getFeaturesCol(),
            "label": self.getLabelCol(),
            "weight": self.getWeightCol(),
            "inputs": prepared.features.inputs,
            "epochs": self.getEpochs(),
            "batch_size": self.getBatchSize(),
            "shuffle": self.getShuffle(),
            "checkpoint_interval": self.getCheckpointInterval(),
            "has_validation": has_validation,
        }

    def _train(
        self,
        train: Callable[[], Mapping[str, Any]],
        frames: Mapping[str, DataFrame],
        framework: str,
        name: str,
    ) -> Run:
        """Train in a run of `experiment.allreduce`, which is named after the stage."""
        options = {"name": name, "description": self._description()}
        return experiment.allreduce(
            train,
            num_workers=self.getNumWorkers(),
            data=frames,
            seed=self.getSeed(),
            framework=framework,
            spark=frames["train"].sparkSession,
            **{**options, **self.getRunOptions()},
        )

    def _description(self) -> str:
        """Return the params that were set and the parameters of the function, in one line."""
        params = {each.name: value for each, value in self._paramMap.items()}
        params |= {name: self.getOrDefault(name) for name in self._hyperparameters}
        return f"{self.uid}: {', '.join(f'{n}={v!r}' for n, v in sorted(params.items()))}"

    def _fitted(self, model: Any, **decided: Any) -> Any:
        """Return the stage of a trained model with the params of this one."""
        fitted = self._copyValues(model)
        fitted._resetUid(self.uid)
        return fitted.setParams(**decided)


class PredictingStage(
    PersistentStage,
    Model,  # type: ignore[misc]
    PredictionParams,
):
    """A model that adds columns of predictions."""

    runPath = param("runPath", "path of the run that trained the model", TypeConverters.toString)
    setRunPath, getRunPath = accessors("runPath")

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(fromLogits=False, runPath=None)

    def _with_output(self, dataset: DataFrame) -> DataFrame:
        """Return the DataFrame with the column `OUTPUT`: numbers, or arrays of numbers."""
        raise NotImplementedError

    def _transform(self, dataset: DataFrame) -> DataFrame:
        names = self._new_columns()
        check_new_columns([name for name in names if name], dataset.columns)
        df = self._with_output(dataset)
        is_array = df.schema[OUTPUT].dataType.typeName() == "array"
        new_columns: tuple[Any, ...] = (regression_column(df[OUTPUT], is_array),)
        if self.getTask() == CLASSIFICATION:
            new_columns = classification_columns(df, OUTPUT, is_array, self.getFromLogits())
        columns = dict(zip(names, new_columns, strict=True))
        return df.withColumns({n: c for n, c in columns.items() if n}).drop(OUTPUT)

    def _new_columns(self) -> list[str]:
        if not (self.isDefined("task") and self.getTask()):
            raise ConfigError(
                f"the param task is not set; set it to {CLASSIFICATION!r} or {REGRESSION!r}."
            )
        if self.getTask() == REGRESSION:
            return [self.getPredictionCol()]
        return [self.getRawPredictionCol(), self.getProbabilityCol(), self.getPredictionCol()]
