"""Runs on the driver. Horovod's estimator for Keras, over that of `sparkdl.ml`."""

import functools
from typing import Any

from pyspark.sql import DataFrame

from sparkdl import experiment, ml
from sparkdl.errors import ConfigError, named_type
from sparkdl.files.model_formats import library_of_object
from sparkdl.horovod.spark.keras.labels import with_single_precision
from sparkdl.horovod.spark.keras.model import KerasModel, features_of
from sparkdl.horovod.spark.stages import OptionsOfBackend, SparkEstimator, label_type

__all__ = ["KerasEstimator", "KerasModel"]

_OF_COMPILE = ("optimizer", "loss", "loss_weights", "metrics")


class KerasEstimator(SparkEstimator):
    """An estimator that trains a Keras model on a DataFrame. `fit(df)` returns a `KerasModel`.

    Each `fit` is a run, see `sparkdl.ml.KerasEstimator`, which also has what this one does not:
    params for a `ParamGridBuilder`, classification for Spark's evaluators, and `save`.

    Args:
        num_proc: the number of ranks; by default the number of slots.
        model: a model of Keras 3.
        backend: a `SparkBackend`, in place of `num_proc`.
        store: a `Store`: the folder of the runs. By default the usual one.
        custom_objects: classes and functions of the model, by name.
        optimizer, loss, loss_weights, metrics: arguments of `compile`. Without an optimizer or a
            loss, a compiled model keeps its own.
        feature_cols: the columns of the features, one for each input of the model.
        label_cols: a list with the column of the label.
        sample_weight_col: the column of the weights of the rows.
        validation: the part of the rows that validates each epoch; or the column that is true, or
            1, for those rows.
        callbacks: callbacks of Keras; all ranks have copies of them.
        checkpoint_callback: a callback with `save_best_only`, such as Horovod's
            `BestModelCheckpoint`: the trained model is that of the best epoch.
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
        >>> estimator = KerasEstimator(num_proc=2, feature_cols=["x"], label_cols=["y"], epochs=3)
        >>> estimator.setBatchSize(16).getBatchSize(), estimator.getEpochs()
        (16, 3)
    """

    def _fit(self, dataset: DataFrame) -> KerasModel:
        self._check()
        backend = self._backend()
        num_proc = backend.num_processes()
        features, label = self._columns()
        model = self._compiled()
        dataset = self._validated(dataset)
        stage = _Stage(
            model,
            callbacks=functools.partial(list, self._callbacks()),
            featuresCol=features_of(model, features),
            **self._stage_params(label, num_proc),
        )
        stage.backend, stage.options = backend, self._options(backend)
        with self._known_objects():
            fitted = stage.fit(with_single_precision(dataset, label))
        run = experiment.load(fitted.getRunPath())
        return KerasModel(
            history={str(name): list(values) for name, values in run.trials[0].history.items()},
            model=fitted.keras_model,
            feature_columns=features,
            label_columns=[label],
            custom_objects=self.getOrDefault("custom_objects"),
            run_id=run.id,
            label_type=label_type(dataset, label),
        )

    def _compiled(self) -> Any:
        """Return the model, compiled with the params."""
        model = self.getOrDefault("model")
        if library_of_object(model) != "keras":
            raise ConfigError(
                f"model is {named_type(model)} of {type(model).__module__}; expected a model "
                "of Keras 3. Build the model with keras, without TF_USE_LEGACY_KERAS, or train it "
                "in a function by experiment.horovod(train, num_workers=..., data=df)."
            )
        arguments = {name: self.getOrDefault(name) for name in _OF_COMPILE}
        arguments = {name: value for name, value in arguments.items() if value}
        if not arguments:
            return model
        compiled = {"optimizer": model.optimizer, "loss": model.loss} if model.compiled else {}
        if missing := {"optimizer", "loss"} - {*compiled, *arguments}:
            raise ConfigError(
                f"the model is not compiled, and there is no {' and no '.join(sorted(missing))}. "
                "Pass optimizer= and loss=, or compile the model."
            )
        with self._known_objects():
            model.compile(**{**compiled, **arguments})
        return model

    def _known_objects(self) -> Any:
        """Return a scope in which Keras knows the custom objects by their names."""
        import keras

        return keras.saving.custom_object_scope(self.getOrDefault("custom_objects"))

    def _callbacks(self) -> list[Any]:
        callbacks = list(self.getOrDefault("callbacks"))
        best = self.getOrDefault("checkpoint_callback")
        if best is None:
            return callbacks
        if not getattr(best, "save_best_only", False):
            raise ConfigError(
                f"checkpoint_callback is {best!r}; expected one with save_best_only=True. Each "
                "epoch has a checkpoint in the run without it; other callbacks go into callbacks=."
            )
        import keras

        return [*callbacks, _best_of(best, keras, self.getOrDefault("epochs"))]


def _best_of(callback: Any, keras: Any, epochs: int) -> Any:
    """Return a callback that ends the training with the weights of the best epoch."""
    return keras.callbacks.EarlyStopping(
        monitor=callback.monitor,
        mode=getattr(callback, "mode", "auto"),
        patience=epochs,
        restore_best_weights=True,
    )


class _Stage(OptionsOfBackend, ml.KerasEstimator):
    """The estimator with options of a run that no saved stage may have, such as `env`."""
