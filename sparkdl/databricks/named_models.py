"""Runs on the driver. Deep Learning Pipelines' stages for models of Keras Applications, by name."""

import importlib
from typing import Any

import numpy as np
from pyspark.ml import Transformer
from pyspark.ml.param import TypeConverters
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.databricks.image_columns import with_outputs
from sparkdl.databricks.image_sources import METHODS, PreparedImages
from sparkdl.databricks.params import ColumnParams, one_of, with_vectors
from sparkdl.files import storage
from sparkdl.host.optional_packages import require
from sparkdl.inference.model_file import local_copy
from sparkdl.inference.resolve import leave_gpus_to_tasks
from sparkdl.spark.ml import accessors, param

# The module of keras.applications that has each model, and the size of its images.
_MODELS = {
    "InceptionV3": ("inception_v3", (299, 299)),
    "Xception": ("xception", (299, 299)),
    "ResNet50": ("resnet50", (224, 224)),
    "VGG16": ("vgg16", (224, 224)),
    "VGG19": ("vgg19", (224, 224)),
}
_DECODED = "array<struct<class:string,description:string,probability:float>>"


class _NamedModelStage(
    DefaultParamsReadable,  # type: ignore[misc]
    DefaultParamsWritable,  # type: ignore[misc]
    Transformer,  # type: ignore[misc]
    ColumnParams,
):
    modelName = param(
        "modelName", "name of a model of keras.applications", one_of("modelName", *_MODELS)
    )
    setModelName, getModelName = accessors("modelName")
    scaleHint = param("scaleHint", "the way to resize images", one_of("scaleHint", *METHODS))
    setScaleHint, getScaleHint = accessors("scaleHint")
    weights = param(
        "weights",
        "imagenet, which Keras downloads to the driver, or the path of a file of weights",
        TypeConverters.toString,
    )
    setWeights, getWeights = accessors("weights")

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(scaleHint="SCALE_AREA_AVERAGING", weights="imagenet")

    def _arrays(self, dataset: DataFrame, name: str, with_top: bool) -> DataFrame:
        module, size = _MODELS[self.getModelName()]
        source = PreparedImages(module, size, self.getScaleHint())
        return with_outputs(dataset, self.getInputCol(), name, source, self._model(with_top))

    def _model(self, with_top: bool) -> Any:
        require("keras", type(self).__name__)
        leave_gpus_to_tasks()
        name = self.getModelName()
        module, size = _MODELS[name]
        build = getattr(importlib.import_module(f"keras.applications.{module}"), name)
        # ResNet50 of the Keras that this class came with ended with its average pooling.
        pooling = "avg" if name == "ResNet50" and not with_top else None
        options = {"include_top": with_top, "input_shape": (*size, 3), "pooling": pooling}
        if self.getWeights() == "imagenet":
            return build(weights="imagenet", **options)
        with local_copy(storage.absolute(self.getWeights())) as path:
            return build(weights=str(path), **options)


class DeepImageFeaturizer(_NamedModelStage):
    """Adds the features of images: the output of a model before its last layers, as a vector.

    Args:
        inputCol: name of the column of images, as `spark.read.format("image")` has it.
        outputCol: name of the new column.
        modelName: `InceptionV3`, `Xception`, `ResNet50`, `VGG16` or `VGG19`.
        scaleHint: the way to resize images to the size of the model, by the names of Java:
            `SCALE_AREA_AVERAGING`, `SCALE_DEFAULT`, `SCALE_FAST`, `SCALE_REPLICATE`,
            `SCALE_SMOOTH`.
        weights: `imagenet`, which Keras downloads to the driver, or the path or URL of a file of
            weights, without those of the last layers.

    Example:
        >>> stage = DeepImageFeaturizer(inputCol="image", outputCol="x", modelName="ResNet50")
        >>> stage.getModelName(), stage.getWeights()
        ('ResNet50', 'imagenet')
    """

    def __init__(
        self,
        *,
        inputCol: str | None = None,
        outputCol: str | None = None,
        modelName: str | None = None,
        scaleHint: str | None = None,
        weights: str | None = None,
    ) -> None:
        super().__init__()
        self.setParams(
            inputCol=inputCol,
            outputCol=outputCol,
            modelName=modelName,
            scaleHint=scaleHint,
            weights=weights,
        )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        name = self.getOutputCol()
        return with_vectors(self._arrays(dataset, name, with_top=False), name)


class DeepImagePredictor(_NamedModelStage):
    """Adds the predictions of a model for images: a vector of probabilities, or the best classes.

    Args:
        inputCol, outputCol, modelName, scaleHint: see `DeepImageFeaturizer`.
        decodePredictions: return arrays of class, description and probability of ImageNet's
            classes, whose names Keras downloads to the driver.
        topK: the number of classes to return with `decodePredictions`.
        weights: `imagenet`, or the path or URL of a file of weights of the whole model.

    Example:
        >>> stage = DeepImagePredictor(inputCol="image", modelName="VGG16", topK=3)
        >>> stage.getOrDefault("topK")
        3
    """

    decodePredictions = param(
        "decodePredictions", "return classes with their names", TypeConverters.toBoolean
    )
    topK = param("topK", "number of classes to return", TypeConverters.toInt)

    def __init__(
        self,
        *,
        inputCol: str | None = None,
        outputCol: str | None = None,
        modelName: str | None = None,
        decodePredictions: bool = False,
        topK: int = 5,
        scaleHint: str | None = None,
        weights: str | None = None,
    ) -> None:
        super().__init__()
        self.setParams(
            inputCol=inputCol,
            outputCol=outputCol,
            modelName=modelName,
            decodePredictions=decodePredictions,
            topK=topK,
            scaleHint=scaleHint,
            weights=weights,
        )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        name = self.getOutputCol()
        df = self._arrays(dataset, name, with_top=True)
        if not self.getOrDefault("decodePredictions"):
            return with_vectors(df, name)
        decode = F.udf(_best_classes(self.getOrDefault("topK")), _DECODED, useArrow=False)
        return df.withColumn(name, decode(df[f"`{name}`"]))


def _best_classes(count: int) -> Any:
    """Return a function from probabilities to the best classes, with the names of ImageNet."""
    from keras.applications.imagenet_utils import decode_predictions

    names = [found[0][:2] for found in decode_predictions(np.eye(1000), top=1)]

    def best(probabilities: list[float] | None) -> list[tuple[str, str, float]] | None:
        if probabilities is None:
            return None
        order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[:count]
        return [(*names[i], probabilities[i]) for i in order]

    return best
