"""Runs anywhere. The names of Databricks' package that have no counterpart, and what to use."""

from sparkdl._version import DISTRIBUTION

_PREDICT = "experiment.predict(model, df, feature_cols=..., prediction_col=...)"
_GRAPH = (
    "TensorFlow 2 has no graphs and sessions of TensorFlow 1: save the model with "
    "model.save('m.keras') or model.export(folder), and apply it with " + _PREDICT
)
_IMAGES = "spark.read.format('image').load(path)"
_PARAMS = "pyspark.ml.param.shared has HasInputCol and the like, and pyspark has keyword_only"

# What to use in place of a name of `sparkdl`, or of a module.
REFUSED = {
    "TFImageTransformer": _GRAPH,
    "TFInputGraph": _GRAPH,
    "TFTransformer": _GRAPH,
    "imageInputPlaceholder": _GRAPH,
    "imageSchema": f"the column 'image' of {_IMAGES} has this schema",
    "imageType": "sparkdl.image.imageIO.imageTypeByOrdinal(row.image.mode) returns it",
    "readImages": f"{_IMAGES} returns them",
    "sparkdl.estimators.horovod_estimator": (
        "train a Keras model on a DataFrame with sparkdl.ml.KerasEstimator(model, numWorkers=2, "
        "featuresCol=..., labelCol=...), or call a model_fn of tf.estimator, with TensorFlow 2.15, "
        "in a function for experiment.horovod(train, num_workers=2, data=df)"
    ),
    "sparkdl.graph": _GRAPH,
    "sparkdl.param": _PARAMS,
    "sparkdl.transformers.tf_image": _GRAPH,
    "sparkdl.transformers.tf_tensor": _GRAPH,
    "sparkdl.transformers.utils": _GRAPH,
    "sparkdl.utils": "it had helpers of Deep Learning Pipelines for their JVM code, which is gone",
    "sparkdl.xgboost": (
        "XGBoost has these classes itself: from xgboost.spark import SparkXGBClassifier, "
        "SparkXGBRegressor, with features_col=, label_col=, num_workers= and device="
    ),
}


def what_to_use(name: str) -> str:
    """Return the message for a name that has no counterpart.

    Args:
        name: a name of the front module, or the path of a module.

    Example:
        >>> what_to_use("sparkdl.param")[:64]
        "sparkdl.param of Databricks' package sparkdl is not in this pack"
    """
    full = name if name.startswith("sparkdl.") else f"sparkdl.{name}"
    return (
        f"{full} of Databricks' package sparkdl is not in this package, {DISTRIBUTION}. Instead: "
        f"{REFUSED[name]}. The page docs/databricks.md has all names."
    )
