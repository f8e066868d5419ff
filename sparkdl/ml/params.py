"""Runs on the driver. Define the params of the estimators and of their models.

Where Spark ML has a param of the same meaning, the name is Spark's. Values are checked when they
are set.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl.errors import ConfigError, suggest
from sparkdl.options import Options, check_count, plain_number
from sparkdl.spark.ml import accessors, check_json, param

CLASSIFICATION = "classification"
REGRESSION = "regression"

# Options of a run that are no part of a saved stage, with the reason.
_OTHER_OPTIONS = {
    **dict.fromkeys(("env", "secrets"), "a saved stage would hold its values"),
    **dict.fromkeys(("callbacks", "spark"), "a saved stage cannot hold objects"),
    **dict.fromkeys(("wait", "if_exists", "retry", "run_id"), "each fit is a run of its own"),
    **dict.fromkeys(("framework",), "the stage has one"),
    **dict.fromkeys(("seed",), "the param seed is for it"),
    # A saved stage of somebody else could upload any file of the driver.
    **dict.fromkeys(("versioned_resources",), "a saved stage would name files of the driver"),
}


def _count(name: str, least: int = 1) -> Callable[[Any], int]:
    return lambda value: check_count(name, plain_number(value), least)


def _features(value: Any) -> Any:
    """Return the choice of feature columns with lists, which JSON keeps, in place of tuples."""
    if isinstance(value, Mapping):
        return {str(name): _features(part) for name, part in value.items()}
    if isinstance(value, str):
        return value
    names = list(value) if isinstance(value, list | tuple) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"featuresCol is {value!r}; expected the name of a column, a list of names, or a dict "
            "of these by name of the model's input."
        )
    return names


def _fraction(value: Any) -> float:
    number = plain_number(value)
    if not isinstance(number, int | float) or not 0 <= number < 1:
        raise ConfigError(
            f"validationFraction is {value!r}; expected a number of at least 0 and below 1."
        )
    return float(number)


def _task(value: Any) -> str:
    if value not in (CLASSIFICATION, REGRESSION):
        raise ConfigError(f"task is {value!r}; expected {CLASSIFICATION!r} or {REGRESSION!r}.")
    return str(value)


def _checkpoint_interval(value: Any) -> int:
    return -1 if plain_number(value) == -1 else check_count("checkpointInterval", value)


def _run_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"runOptions is {value!r}; expected a dict of options and values.")
    for name in value:
        if name in _OTHER_OPTIONS:
            raise ConfigError(
                f"runOptions contains {name!r}, which is not possible: {_OTHER_OPTIONS[name]}."
            )
    check_json("runOptions", dict(value))
    Options.parse(value)
    return dict(value)


class _Base(Params):  # type: ignore[misc]
    """A stage whose params are keyword arguments of its constructor."""

    def setParams(self, **params: Any) -> Any:
        """Set params by name and return the stage.

        Raises:
            ConfigError: if there is no such param, or a value is invalid.
        """
        names = [each.name for each in self.params]
        for name in params:
            if name not in names:
                raise ConfigError(
                    f"{type(self).__name__} has no param {name!r}.{suggest(name, names)} Params "
                    f"are {', '.join(names)}."
                )
        return self._set(**params)

    def _set(self, **params: Any) -> Any:
        """Set params; None takes back a value of those that need not have one."""
        for name, value in list(params.items()):
            own = getattr(type(self), name, None)
            if value is not None or not isinstance(own, Param):
                continue
            default = self._defaultParamMap.get(self.getParam(name))
            if default is not None:
                raise ConfigError(
                    f"{name} is None; expected a value. Leave it out for the default, {default!r}."
                )
            self.clear(self.getParam(name))
            del params[name]
        return super()._set(**params)


class PredictionParams(_Base):
    """The params that an estimator and its model share."""

    featuresCol = param(
        "featuresCol",
        "column of vectors, arrays or numbers; a list of columns, side by side; or a dict of "
        "these by name of the model's input",
        _features,
    )
    setFeaturesCol, getFeaturesCol = accessors("featuresCol")
    predictionCol = param("predictionCol", "new column: the prediction", TypeConverters.toString)
    setPredictionCol, getPredictionCol = accessors("predictionCol")
    probabilityCol = param(
        "probabilityCol",
        "new column of a classification: vectors of the probabilities of the classes; '' for none",
        TypeConverters.toString,
    )
    setProbabilityCol, getProbabilityCol = accessors("probabilityCol")
    rawPredictionCol = param(
        "rawPredictionCol",
        "new column of a classification: vectors of the outputs of the model, one for each class; "
        "'' for none",
        TypeConverters.toString,
    )
    setRawPredictionCol, getRawPredictionCol = accessors("rawPredictionCol")
    task = param(
        "task", "classification or regression; by default the loss of the model decides", _task
    )
    setTask, getTask = accessors("task")
    fromLogits = param(
        "fromLogits",
        "the outputs of a classification are logits, not probabilities; by default the loss of "
        "the model decides",
        TypeConverters.toBoolean,
    )
    setFromLogits, getFromLogits = accessors("fromLogits")
    predictBatchSize = param(
        "predictBatchSize", "rows per call of the model in transform", _count("predictBatchSize")
    )
    setPredictBatchSize, getPredictBatchSize = accessors("predictBatchSize")

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            featuresCol="features",
            predictionCol="prediction",
            probabilityCol="probability",
            rawPredictionCol="rawPrediction",
            predictBatchSize=1024,
        )


class TrainingParams(PredictionParams):
    """The params of an estimator."""

    labelCol = param("labelCol", "column of the labels", TypeConverters.toString)
    setLabelCol, getLabelCol = accessors("labelCol")
    weightCol = param(
        "weightCol", "column of the weights of the rows; by default 1", TypeConverters.toString
    )
    setWeightCol, getWeightCol = accessors("weightCol")
    validationFraction = param(
        "validationFraction", "part of the rows that validates each epoch", _fraction
    )
    setValidationFraction, getValidationFraction = accessors("validationFraction")
    validationIndicatorCol = param(
        "validationIndicatorCol",
        "column of booleans: true for a row that validates each epoch",
        TypeConverters.toString,
    )
    setValidationIndicatorCol, getValidationIndicatorCol = accessors("validationIndicatorCol")
    numWorkers = param("numWorkers", "processes that train, each in a slot", _count("numWorkers"))
    setNumWorkers, getNumWorkers = accessors("numWorkers")
    epochs = param("epochs", "passes over the rows", _count("epochs"))
    setEpochs, getEpochs = accessors("epochs")
    batchSize = param(
        "batchSize",
        "rows in a step of all workers together; a multiple of numWorkers",
        _count("batchSize"),
    )
    setBatchSize, getBatchSize = accessors("batchSize")
    shuffle = param("shuffle", "shuffle the rows in each epoch", TypeConverters.toBoolean)
    setShuffle, getShuffle = accessors("shuffle")
    checkpointInterval = param(
        "checkpointInterval",
        "epochs from one checkpoint to the next; -1 for no checkpoints",
        _checkpoint_interval,
    )
    setCheckpointInterval, getCheckpointInterval = accessors("checkpointInterval")
    seed = param("seed", "seed of weights, shuffling and validationFraction", _count("seed", 0))
    setSeed, getSeed = accessors("seed")
    runOptions = param(
        "runOptions",
        "options of experiment.allreduce, such as {'num_gpus': 1, 'root': '/runs'}",
        _run_options,
    )
    setRunOptions, getRunOptions = accessors("runOptions")

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            task=None,
            fromLogits=None,
            labelCol="label",
            weightCol=None,
            validationFraction=0.0,
            validationIndicatorCol=None,
            numWorkers=1,
            epochs=1,
            batchSize=32,
            shuffle=True,
            checkpointInterval=1,
            seed=None,
            runOptions={},
        )
