"""Runs on the driver. The parts that Horovod's estimators for Spark, and their models, share."""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.ml import Estimator, Model
from pyspark.ml.param import TypeConverters
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl import ml
from sparkdl.errors import ConfigError
from sparkdl.horovod.launch import warn_of_unused
from sparkdl.horovod.redirected_output import redirect
from sparkdl.horovod.spark.common.backend import Backend, SparkBackend
from sparkdl.horovod.spark.common.params import EstimatorParams
from sparkdl.horovod.spark.common.store import Store
from sparkdl.spark.ml import PersistentStage, accessors, param

# Arguments of a backend, and those of `redirect`.
_OF_STREAMS = {
    "stdout": "stdout",
    "stderr": "stderr",
    "prefix_output_with_timestamp": "with_time",
}
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NUMBERS = (*_WHOLE, "float", "double")


class SparkEstimator(
    Estimator,  # type: ignore[misc]
    EstimatorParams,
):
    """An estimator with the params of Horovod, over one of `sparkdl.ml`."""

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self.setParams(**params)

    def fit_on_parquet(self, params: Any = None, dataset_idx: Any = None) -> None:
        """Refuse to train: there are no files of rows.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("the store has no rows; call fit(spark.read.parquet(path)) in its place.")

    def _backend(self) -> SparkBackend:
        backend: Backend | None = self.getOrDefault("backend")
        num_proc = self.getOrDefault("num_proc")
        if backend is None:
            return SparkBackend(num_proc, verbose=self.getOrDefault("verbose"))
        if num_proc is not None:
            raise ConfigError(
                f"num_proc is {num_proc} beside backend=; expected one of them. Write "
                f"backend=SparkBackend(num_proc={num_proc})."
            )
        if not isinstance(backend, SparkBackend):
            raise ConfigError(
                f"backend is {backend!r}; expected a SparkBackend: the ranks run on Spark."
            )
        return backend

    def _columns(self) -> tuple[list[str], str]:
        features, labels = self.getOrDefault("feature_cols"), self.getOrDefault("label_cols")
        for name, value in (("feature_cols", features), ("label_cols", labels)):
            if not isinstance(value, list | tuple) or not value:
                raise ConfigError(f"{name} is {value!r}; expected a list of names of columns.")
        if len(labels) != 1:
            raise ConfigError(
                f"label_cols is {labels!r}; expected one column. Train a model with several "
                "outputs by experiment.allreduce(train, num_workers=..., data=df)."
            )
        return list(features), labels[0]

    def _validated(self, dataset: DataFrame) -> DataFrame:
        """Return the DataFrame with the column of the rows that validate as booleans."""
        validation = self.getOrDefault("validation")
        if not isinstance(validation, str):
            return dataset
        return dataset.withColumn(validation, dataset[f"`{validation}`"].cast("boolean"))

    def _stage_params(self, label: str, num_proc: int) -> dict[str, Any]:
        """Return the params as the estimators of `sparkdl.ml` have them."""
        validation = self.getOrDefault("validation")
        is_column = isinstance(validation, str)
        return {
            "labelCol": label,
            "weightCol": self.getOrDefault("sample_weight_col"),
            "numWorkers": num_proc,
            "batchSize": self.getOrDefault("batch_size") * num_proc,
            "epochs": self.getOrDefault("epochs"),
            "shuffle": self.getOrDefault("shuffle")
            and self.getOrDefault("shuffle_buffer_size") != 0,
            "seed": self.getOrDefault("random_seed"),
            "task": "regression",
            "validationFraction": 0.0 if is_column else validation or 0.0,
            "validationIndicatorCol": validation if is_column else None,
        }

    def _options(self, backend: SparkBackend) -> dict[str, Any]:
        kwargs = {"verbose": self.getOrDefault("verbose"), **backend.kwargs}
        verbose = kwargs.pop("verbose")
        unused = {name: value for name, value in kwargs.items() if name not in _OF_STREAMS}
        warn_of_unused("SparkBackend", unused)
        options: dict[str, Any] = {
            "env": {**backend.env, **self.getOrDefault("backend_env")},
            "progress": verbose > 0,
            "logs": "all" if verbose > 1 else None,
        }
        store: Store | None = self.getOrDefault("store")
        if store is not None:
            options["root"] = store.get_runs_path()
        if not self.getOrDefault("use_gpu"):
            options["num_gpus"] = 0
        return options


class OptionsOfBackend:
    """A part of an estimator of `sparkdl.ml` that trains as a backend says.

    Attributes:
        backend: the backend.
        options: the options of the run.
    """

    backend: SparkBackend
    options: dict[str, Any]

    def getRunOptions(self) -> dict[str, Any]:
        """Return the options of the run."""
        return self.options

    def _train(self, training: Callable[[], Any], *args: Any) -> Any:
        of_backend = self.backend.kwargs
        given: dict[str, Any] = {
            ours: of_backend[name] for name, ours in _OF_STREAMS.items() if name in of_backend
        }
        train: Callable[..., Any] = super()._train  # type: ignore[misc]
        return train(redirect(training, self.options, **given), *args)


def label_type(dataset: DataFrame, label: str) -> str:
    """Return the type of the predictions of a label: its own, if it is a number."""
    found = dict(dataset.dtypes).get(label)  # Without such a column, `fit` says so.
    return found if found in _NUMBERS else "double"


class SparkModel(
    PersistentStage,
    Model,  # type: ignore[misc]
):
    """A trained model with the params of Horovod, over one of `sparkdl.ml`."""

    outputCols = param("outputCols", "new column", TypeConverters.toListString)
    setOutputCols, getOutputCols = accessors("outputCols")
    history = param("history", "metrics of each epoch", lambda value: value)
    setHistory, getHistory = accessors("history")
    feature_columns = param("feature_columns", "feature columns", TypeConverters.toListString)
    setFeatureColumns, getFeatureColumns = accessors("feature_columns")
    label_columns = param("label_columns", "label column", TypeConverters.toListString)
    setLabelColoumns, getLabelColumns = accessors("label_columns")  # Spelled as in Horovod.
    run_id = param("run_id", "id of the run", TypeConverters.toString)
    setRunId, getRunId = accessors("run_id")
    label_type = param("label_type", "type of the label", TypeConverters.toString)

    def __init__(self, model: Any, label_columns: Sequence[str] | None, **params: Any) -> None:
        super().__init__()
        self._model = model
        self._setDefault(history={}, run_id=None, label_type="double")
        outputs = label_columns and [f"{name}__output" for name in label_columns]
        params |= {"label_columns": label_columns, "outputCols": outputs}
        self._set(**{name: value for name, value in params.items() if value is not None})

    def getModel(self) -> Any:
        """Return the model."""
        return self._model

    def setModel(self, value: Any) -> Any:
        """Set the model and return the stage."""
        self._model = value
        return self

    def _stage(self, column: str) -> ml.KerasModel | ml.TorchModel:
        """Return the stage of `sparkdl.ml` that adds a column of predictions."""
        raise NotImplementedError

    def _transform(self, dataset: DataFrame) -> DataFrame:
        (column,) = self.getOutputCols()
        df = self._stage(column).transform(dataset)
        kind = self.getOrDefault("label_type")
        if df.schema[column].dataType.typeName() != "double":
            return df
        value = F.round(df[f"`{column}`"]) if kind in _WHOLE else df[f"`{column}`"]
        return df.withColumn(column, value.cast(kind))
