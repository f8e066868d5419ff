"""Runs on the driver. Deep Learning Pipelines' estimator of a Keras model for files of images."""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import TypeConverters
from pyspark.sql import DataFrame

from sparkdl import experiment
from sparkdl.databricks.image_columns import with_outputs
from sparkdl.databricks.image_sources import LoadedFiles
from sparkdl.databricks.keras_stages import KerasImageFileTransformer, model_of
from sparkdl.databricks.params import (
    FIT_PARAMS,
    ColumnParams,
    ImageLoaderParams,
    ModelFileParams,
)
from sparkdl.errors import ConfigError
from sparkdl.inference.resolve import trial_of
from sparkdl.ml import KerasEstimator
from sparkdl.spark.ml import accessors, param

_IMAGES = "sparkdl_image"


class KerasImageFileEstimator(Estimator, ColumnParams, ModelFileParams, ImageLoaderParams):  # type: ignore[misc]
    """Trains a Keras model on files of images. `fit` returns a `KerasImageFileTransformer`.

    Each `fit` is a run of `sparkdl.ml.KerasEstimator` with one worker; that class takes more
    workers, weights and callbacks, and columns of any kind.

    Args:
        inputCol: name of the column of paths or URLs.
        outputCol: name of the column that the transformer adds.
        outputMode: `vector`.
        labelCol: name of the column of labels, as vectors with one place for each class.
        modelFile: path or URL of the model, which only the driver reads.
        imageLoader: the function that reads an image, as an array of shape (1, height, width,
            channels). Rows whose image it cannot read are left out.
        kerasOptimizer: name of an optimizer of Keras, or the optimizer.
        kerasLoss: name of a loss of Keras.
        kerasFitParams: `epochs`, `batch_size`, `shuffle` and `validation_split` of `fit`.
    """

    labelCol = param("labelCol", "name of the column of labels", TypeConverters.toString)
    setLabelCol, getLabelCol = accessors("labelCol")
    kerasOptimizer = param("kerasOptimizer", "optimizer of Keras", lambda value: value)
    setKerasOptimizer, getKerasOptimizer = accessors("kerasOptimizer")
    kerasLoss = param("kerasLoss", "loss of Keras", lambda value: value)
    setKerasLoss, getKerasLoss = accessors("kerasLoss")

    def __init__(
        self,
        *,
        inputCol: str | None = None,
        outputCol: str | None = None,
        outputMode: str = "vector",
        labelCol: str | None = None,
        modelFile: str | None = None,
        imageLoader: Callable[[str], Any] | None = None,
        kerasOptimizer: Any = None,
        kerasLoss: Any = None,
        kerasFitParams: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._setDefault(kerasOptimizer="adam")
        self.setParams(
            inputCol=inputCol,
            outputCol=outputCol,
            outputMode=outputMode,
            labelCol=labelCol,
            modelFile=modelFile,
            imageLoader=imageLoader,
            kerasOptimizer=kerasOptimizer,
            kerasLoss=kerasLoss,
            kerasFitParams=kerasFitParams,
        )

    def _fit(self, dataset: DataFrame) -> KerasImageFileTransformer:
        for name in ("inputCol", "labelCol", "modelFile", "imageLoader", "kerasLoss"):
            if not self.isDefined(name):
                raise ConfigError(f"the param {name} has no value. Pass {name}=... to the stage.")
        model = model_of(self.getModelFile())
        model.compile(self.getKerasOptimizer(), self.getKerasLoss())
        chosen = self.getKerasFitParams().items()
        params = {FIT_PARAMS[name]: value for name, value in chosen if name in FIT_PARAMS}
        source = LoadedFiles(self.getImageLoader())
        rows = with_outputs(dataset, self.getInputCol(), _IMAGES, source)
        # The task says what columns `KerasModel` adds, which is not used here.
        trainer = KerasEstimator(
            model, featuresCol=_IMAGES, labelCol=self.getLabelCol(), task="regression", **params
        )
        fitted = trainer.fit(rows.dropna(subset=[_IMAGES]))
        transformer = self._copyValues(KerasImageFileTransformer())
        path = trial_of(experiment.load(fitted.getRunPath())).model_path
        return transformer.setModelFile(path)  # type: ignore[no-any-return]
