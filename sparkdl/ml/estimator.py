"""Runs on the driver. Train a Keras model as an estimator of Spark ML."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from sparkdl.errors import ConfigError, named_type
from sparkdl.files.model_formats import library_of_object, load_keras
from sparkdl.host.optional_packages import require
from sparkdl.inference import custom_objects
from sparkdl.inference.model_file import local_copy
from sparkdl.inference.prepared_model import PreparedModel, prepare_model
from sparkdl.inference.resolve import leave_gpus_to_tasks, trial_of
from sparkdl.ml.hyperparameters import add_hyperparameters
from sparkdl.ml.keras_training import KerasTraining, model_from_bytes
from sparkdl.ml.model import KerasModel
from sparkdl.ml.params import CLASSIFICATION
from sparkdl.ml.registered_functions import load_function, reference_to
from sparkdl.ml.stage_files import read_model, write_model
from sparkdl.ml.stages import TrainingStage
from sparkdl.ml.tasks import check_outputs, is_from_logits, name_of, only_loss, task_of
from sparkdl.ml.training_rows import training_rows
from sparkdl.runs import Run


class KerasEstimator(TrainingStage):
    """An estimator that trains a Keras model on a DataFrame. `fit(df)` returns a `KerasModel`.

    `fit` is a run of `experiment.allreduce`: `numWorkers` processes train at the same time, each
    on an equal share of the rows. The run directory has the log, the metrics, the checkpoints and
    the compiled model; `getRunPath()` of the `KerasModel` is its path.

    The model is either a compiled model of Keras 3, whose weights are the first ones, or a function
    that returns a compiled model. Each parameter of the function becomes a param of the stage, so
    that a `ParamGridBuilder` can vary it.

    Args:
        model: a compiled Keras model, or a function that returns one. To save the stage, the
            function must be decorated with `@keras.saving.register_keras_serializable()`.
        callbacks: a function without parameters that returns a list of callbacks of Keras; every
            worker calls it. Checkpoints and reports need no callback.
        **params: params by name, see `explainParams()`, and parameters of the function.

    Attributes:
        model, callbacks: the arguments.

    Raises:
        ConfigError: if an argument is invalid, or there is no such param.

    Example:
        >>> def build(units=4, learning_rate=0.1):
        ...     import keras
        ...     layers = [keras.layers.Dense(units, "relu"), keras.layers.Dense(1)]
        ...     model = keras.Sequential([keras.layers.Input((2,)), *layers])
        ...     model.compile(keras.optimizers.SGD(learning_rate), "mse")
        ...     return model
        >>> estimator = KerasEstimator(build, units=8, featuresCol=["a", "b"], epochs=3)
        >>> estimator.getOrDefault("learning_rate"), estimator.setBatchSize(64).getBatchSize()
        (0.1, 64)
        >>> from pyspark.ml.tuning import ParamGridBuilder
        >>> len(ParamGridBuilder().addGrid(estimator.units, [8, 16]).build())
        2
    """

    def __init__(
        self,
        model: Any,
        *,
        callbacks: Callable[[], Sequence[Any]] | None = None,
        **params: Any,
    ) -> None:
        require("tensorflow", "KerasEstimator")
        super().__init__()
        self.model = model
        self.callbacks = callbacks
        if callbacks is not None and not callable(callbacks):
            raise ConfigError(
                f"callbacks is {callbacks!r}; expected a function that returns a list of "
                "callbacks, such as lambda: [EarlyStopping()], which every worker calls."
            )
        expected = "a compiled model of Keras 3, or a function that returns one"
        self._hyperparameters = (
            () if self._has_model else add_hyperparameters(self, model, expected)
        )
        self.setParams(**params)

    @property
    def _has_model(self) -> bool:
        """True if `model` is a model rather than a function."""
        return library_of_object(self.model) == "keras"

    def _fit(self, dataset: DataFrame) -> KerasModel:
        frames = training_rows(dataset, self)
        leave_gpus_to_tasks()
        # A model of a function is built here too, to find errors before Spark starts a job.
        model = self.model if self._has_model else self._builder()()
        _check_compiled(model)
        loss = only_loss(model.loss)
        task = self.getTask() or task_of(loss)
        from_logits = self.getFromLogits()
        if from_logits is None:
            from_logits = task == CLASSIFICATION and is_from_logits(loss)
        features = self.getFeaturesCol()
        prepared = prepare_model(dataset, model, features, signature="serving_default")
        check_outputs(prepared.outputs, task, name_of(loss))
        training = self._training(model, prepared, has_validation="validation" in frames)
        run = self._train(training, frames, "tensorflow", "keras-estimator")
        return self._model_of(run, model, {"task": task, "fromLogits": from_logits})

    def _training(self, model: Any, prepared: PreparedModel, has_validation: bool) -> KerasTraining:
        make_model: Callable[[], Any]
        if self._has_model:
            custom = custom_objects.pickle_objects(_objects_of(model, for_training=True))
            make_model = partial(model_from_bytes, prepared.model.data or b"", custom)
        else:
            make_model = self._builder()
        return KerasTraining(
            make_model=make_model,
            make_callbacks=self.callbacks,
            has_one_value=prepared.outputs[0].shape == (1,),
            **self._training_options(prepared, has_validation),
        )

    def _model_of(self, run: Run, model: Any, decided: Mapping[str, Any]) -> KerasModel:
        """Return the model that a run has trained, without its loss and its optimizer."""
        with local_copy(trial_of(run).model_path) as path:
            # The user's own model may contain code: it is loaded here for the first time.
            trained = load_keras(path, "keras", _objects_of(model), trusted=True)
        model_stage: KerasModel = self._fitted(KerasModel(trained, runPath=run.path), **decided)
        return model_stage

    def _save(self, path: str, spark: Any) -> Mapping[str, Any]:
        extra = {"callbacks": reference_to(self.callbacks, "callbacks")}
        if self._has_model:
            write_model(self.model, path, spark)
            return extra
        return {**extra, "function": reference_to(self.model, "model")}

    @classmethod
    def _load(cls, extra: Mapping[str, Any], path: str, spark: Any) -> "KerasEstimator":
        if "function" in extra:
            model = load_function(extra["function"])
        else:
            leave_gpus_to_tasks()
            model = read_model(path, spark, is_compiled=True)
        return cls(model, callbacks=load_function(extra["callbacks"]))


def _check_compiled(model: Any) -> None:
    if library_of_object(model) != "keras":
        raise ConfigError(
            f"the function of the model returned {named_type(model)}; expected a compiled "
            "model of Keras 3."
        )
    if not model.compiled or model.loss is None:
        raise ConfigError(
            f"the model {model.name!r} has no loss: it is not compiled. Call "
            "model.compile(optimizer, loss, metrics=[...]) before."
        )


def _objects_of(model: Any, for_training: bool = False) -> dict[str, Any]:
    try:
        return custom_objects.custom_objects(model, "keras", for_training)
    except ValueError as exc:
        raise ConfigError(f"{model.name!r}: {exc}") from exc
