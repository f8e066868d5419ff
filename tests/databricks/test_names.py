"""Import lines of programs for Databricks' package of the same name."""

import importlib
import subprocess
import sys

import pytest

# Import lines of public programs, and a word of the way out.
REFUSED = [
    ("from sparkdl import TFImageTransformer", "experiment.predict"),
    ("from sparkdl import TFTransformer", "experiment.predict"),
    ("from sparkdl import readImages", "spark.read.format"),
    ("import sparkdl.graph.utils as tfx", "model.export"),
    ("from sparkdl.graph.builder import GraphFunction", "experiment.predict"),
    ("from sparkdl.graph.input import TFInputGraph", "experiment.predict"),
    ("from sparkdl.transformers import utils", "experiment.predict"),
    ("from sparkdl.transformers.tf_image import TFImageTransformer", "experiment.predict"),
    ("from sparkdl.param import keyword_only", "pyspark"),
    ("from sparkdl.utils import jvmapi", "JVM"),
    ("from sparkdl.xgboost import XgboostClassifier", "SparkXGBClassifier"),
    (
        "from sparkdl.estimators.horovod_estimator.estimator import HorovodEstimator",
        "sparkdl.ml.KerasEstimator",
    ),
]
WORKING = [
    "from sparkdl import HorovodRunner, KerasTransformer, KerasImageFileTransformer",
    "from sparkdl import DeepImageFeaturizer, DeepImagePredictor, KerasImageFileEstimator",
    "from sparkdl.horovod.runner_base import HorovodRunner",
    "from sparkdl.horovod import log_to_driver",
    "from sparkdl.image import imageIO",
    "from sparkdl.image.imageIO import PIL_decode, createResizeImageUDF, imageArrayToStruct",
    "from sparkdl.udf.keras_image_model import registerKerasImageUDF",
    "from sparkdl.transformers.keras_image import KerasImageFileTransformer",
    "from sparkdl.transformers.keras_tensor import KerasTransformer",
    "from sparkdl.transformers.named_image import DeepImageFeaturizer, DeepImagePredictor",
    "from sparkdl.estimators.keras_image_file_estimator import KerasImageFileEstimator",
]


@pytest.mark.parametrize(("line", "word"), REFUSED)
def test_a_refused_name_says_what_to_use(line: str, word: str) -> None:
    with pytest.raises(ImportError, match="is not in this package, sparkdl-platform") as caught:
        exec(line, {})  # noqa: S102 The lines are above.
    assert word in str(caught.value)
    assert "docs/databricks.md" in str(caught.value)


def test_working_names_load_no_framework_and_no_session() -> None:
    code = (
        "import sys; sys.modules.update(tensorflow=None, keras=None, torch=None)\n"
        + "\n".join(WORKING)
        + "\nprint(HorovodRunner.__module__, HorovodRunner is __import__('sparkdl').HorovodRunner)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["sparkdl.databricks.horovod_runner", "True"], done.stderr


def test_an_unknown_name_is_told_as_before() -> None:
    front = importlib.import_module("sparkdl")
    with pytest.raises(AttributeError, match="has no attribute 'HorovodRuner'"):
        _ = front.HorovodRuner
    with pytest.raises(ImportError, match="has no attribute 'HorovodRuner'"):
        exec("from sparkdl import HorovodRuner", {})  # noqa: S102 As a program does.
    assert not hasattr(front, "TFTransformer")
