"""Deep Learning Pipelines: images, and Keras models for them. Keras's own functions are the oracle.

Models are small, or have random weights of a file: nothing is downloaded.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import (
    DeepImageFeaturizer,
    DeepImagePredictor,
    KerasImageFileEstimator,
    KerasImageFileTransformer,
    KerasTransformer,
)
from sparkdl.databricks.image_columns import _ROWS
from sparkdl.databricks.image_sources import PreparedImages
from sparkdl.errors import ConfigError

pytest.importorskip("PIL")
from PIL import Image
from sparkdl.image import imageIO  # type: ignore[import-not-found]
from sparkdl.udf.keras_image_model import (  # type: ignore[import-not-found]
    registerKerasImageUDF,
)

pytestmark = pytest.mark.slow

NUM_IMAGES = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images: colors, of different sizes, one gray; and a file that is none."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        shape = (40 + number, 30) if number == 4 else (40 + number, 30, 3)
        Image.fromarray(rng.integers(0, 256, shape, "uint8")).save(folder / f"{number}.png")
    (folder / "note.txt").write_text("no image")
    return folder


@pytest.fixture
def paths(spark: SparkSession, folder: Path) -> DataFrame:
    rows = [(number, str(folder / f"{number}.png")) for number in range(NUM_IMAGES)]
    rows += [(5, str(folder / "note.txt")), (6, None)]
    return spark.createDataFrame(rows, "id int, uri string")


def load(path: str) -> Any:
    """Return an image of 8 times 6, as the functions of public notebooks do."""
    image = Image.open(path).convert("RGB").resize((6, 8))
    return np.asarray(image, np.float32)[np.newaxis] / 255


def small_model(num_outputs: int = 3) -> Any:
    import keras

    return keras.Sequential(
        [
            keras.layers.Input((8, 6, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(num_outputs, "softmax"),
        ]
    )


def values(df: DataFrame, column: str) -> list[Any]:
    rows = df.orderBy("id").collect()
    return [None if row[column] is None else np.asarray(row[column]) for row in rows]


@pytest.mark.parametrize("shape", [(10,), (2, 3)])
def test_keras_transformer(spark: SparkSession, tmp_path: Path, shape: tuple[int, ...]) -> None:
    import keras

    layer = keras.layers.Dense(1, "sigmoid") if len(shape) == 1 else keras.layers.Reshape(shape)
    model = keras.Sequential([keras.layers.Input(shape), layer])
    model.save(tmp_path / "model.h5")
    x = np.random.default_rng(1).normal(size=(20, *shape)).astype("f4")
    kind = "array<float>" if len(shape) == 1 else "array<array<float>>"
    df = spark.createDataFrame(list(enumerate(x.tolist())), f"id int, x {kind}")
    stage = KerasTransformer(inputCol="x", outputCol="y", modelFile=str(tmp_path / "model.h5"))
    stage.save(str(tmp_path / "stage"))
    found = KerasTransformer.load(str(tmp_path / "stage")).transform(df)
    assert found.columns == ["id", "x", "y"]
    np.testing.assert_allclose(values(found, "y"), model.predict(x, verbose=0), rtol=1e-5)


def test_a_model_of_image_files(paths: DataFrame, folder: Path, tmp_path: Path) -> None:
    model = small_model()
    model.save(tmp_path / "model.keras")
    stage = KerasImageFileTransformer(
        inputCol="uri",
        outputCol="predictions",
        modelFile=str(tmp_path / "model.keras"),
        imageLoader=load,
    )
    df = stage.transform(paths)
    (tmp_path / "model.keras").unlink()  # Only the driver reads it.
    found = values(df, "predictions")
    files = [str(folder / f"{number}.png") for number in range(NUM_IMAGES)]
    expected = model.predict(np.concatenate([load(file) for file in files]), verbose=0)
    np.testing.assert_allclose(found[:NUM_IMAGES], expected, rtol=1e-5)
    assert found[NUM_IMAGES:] == [None, None]
    assert df.schema["predictions"].dataType.typeName() == "vectorudt"


def test_few_images_are_in_memory_at_once(spark: SparkSession, tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.layers.Input((1, 1, 1)), keras.layers.Flatten()])
    model.save(tmp_path / "model.keras")
    stage = KerasImageFileTransformer(
        inputCol="uri",
        outputCol="y",
        modelFile=str(tmp_path / "model.keras"),
        imageLoader=lambda text: np.full((1, 1, 1, 1), float(text)),
    )
    count = 2 * _ROWS + 3
    df = spark.range(count).select("id", F.col("id").cast("string").alias("uri")).coalesce(1)
    assert [float(y[0]) for y in values(stage.transform(df), "y")] == list(range(count))


def test_training_on_image_files(
    paths: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path / "runs"))
    import keras
    from pyspark.ml.feature import OneHotEncoder
    from pyspark.ml.tuning import ParamGridBuilder

    model = small_model(2)
    model.save(tmp_path / "model.keras")
    labelled = paths.withColumn("index", (F.col("id") % 2).cast("double"))
    encoder = OneHotEncoder(inputCol="index", outputCol="label", dropLast=False)
    labelled = encoder.fit(labelled).transform(labelled)
    estimator = KerasImageFileEstimator(
        inputCol="uri",
        outputCol="prediction",
        labelCol="label",
        modelFile=str(tmp_path / "model.keras"),
        imageLoader=load,
        kerasOptimizer=keras.optimizers.Adam(0.03),
        kerasLoss="categorical_crossentropy",
        kerasFitParams={"epochs": 1, "batch_size": 5, "verbose": 0},
    )
    grid = ParamGridBuilder().addGrid(
        estimator.kerasFitParams, [{"epochs": 60, "batch_size": 5, "shuffle": False}]
    )
    [fitted] = estimator.fit(labelled, grid.build())
    found = values(fitted.transform(paths), "prediction")
    assert [int(p.argmax()) for p in found[:NUM_IMAGES]] == [0, 1, 0, 1, 0]
    assert (fitted.getOutputCol(), fitted.getKerasFitParams()["epochs"]) == ("prediction", 60)
    with pytest.raises(ConfigError, match="has 'class_weight'; expected some of 'batch_size'"):
        estimator.setKerasFitParams({"class_weight": {0: 2.0}})


@pytest.mark.thorough
def test_models_by_name(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """The images have the size of the model, or are resized as TensorFlow does."""
    import keras
    import tensorflow as tf

    application = keras.applications.vgg16
    options = {"weights": None, "include_top": False, "input_shape": (224, 224, 3)}
    model = application.VGG16(**options)
    model.save_weights(tmp_path / "vgg.weights.h5")
    df = spark.read.format("image").option("dropInvalid", "true").load(str(folder))
    df = df.withColumn("id", F.regexp_extract("image.origin", r"(\d)\.png", 1).cast("int"))
    stage = DeepImageFeaturizer(
        inputCol="image",
        outputCol="features",
        modelName="VGG16",
        weights=str(tmp_path / "vgg.weights.h5"),
    )
    found = values(stage.transform(df.filter("id in (0, 4)")), "features")
    for number, features in zip((0, 4), found, strict=True):
        rgb = np.asarray(Image.open(folder / f"{number}.png").convert("RGB"), "f4")
        resized = tf.image.resize(rgb[None], (224, 224), "area").numpy()
        expected = model.predict(application.preprocess_input(resized), verbose=0).ravel()
        np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-5)
    with pytest.raises(ConfigError, match="modelName is 'VGG'; expected 'InceptionV3' or"):
        DeepImagePredictor(modelName="VGG")


def test_the_best_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    from keras.src.applications import imagenet_utils

    from sparkdl.databricks.named_models import _best_classes

    names = {str(number): (f"n{number}", f"class {number}") for number in range(1000)}
    monkeypatch.setattr(imagenet_utils, "CLASS_INDEX", names)
    probabilities = np.random.default_rng(3).random(1000).tolist()
    [expected] = imagenet_utils.decode_predictions(np.array([probabilities]), top=3)
    assert _best_classes(3)(probabilities) == expected
    assert _best_classes(3)(None) is None


def test_a_model_as_a_function_of_sql(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    model = small_model()
    model.save(tmp_path / "model.keras")
    df = imageIO.readImagesWithCustomFn(str(folder), imageIO.PIL_decode_and_resize((6, 8)))
    df.createOrReplaceTempView("images")
    registerKerasImageUDF("classes", model)
    rows = spark.sql("select image.origin, image, classes(image) as y from images").collect()
    known = [row for row in rows if row.image]
    assert sorted(row.image.nChannels for row in known) == [1, 3, 3, 3, 3]
    images = [imageIO.imageStructToPIL(row.image).convert("RGB") for row in known]
    pixels = [np.asarray(image, "f4") for image in images]
    expected = model.predict(np.stack(pixels), verbose=0)
    np.testing.assert_allclose([row.y for row in known], expected, rtol=1e-5)
    assert [row.y for row in rows if row.image is None] == [None]
    registerKerasImageUDF("loaded", str(tmp_path / "model.keras"), lambda path: load(path)[0])
    images = spark.read.format("image").load(str(folder / "1.png"))
    [row] = images.selectExpr("loaded(image) as y").collect()
    expected = model.predict(load(str(folder / "1.png")), verbose=0)
    np.testing.assert_allclose(row.y, expected[0], rtol=1e-5)


@pytest.mark.parametrize(("dtype", "channels"), [("uint8", 1), ("uint8", 4), ("float32", 3)])
def test_arrays_and_structs(dtype: str, channels: int) -> None:
    array = np.arange(2 * 3 * channels).reshape(2, 3, channels).astype(dtype)
    struct = imageIO.imageArrayToStruct(array[None], "here")
    assert (struct.origin, struct.height, struct.width, struct.nChannels) == (
        *("here", 2, 3),
        channels,
    )
    np.testing.assert_array_equal(imageIO.imageStructToArray(struct), array)
    kind = imageIO.imageTypeByOrdinal(struct.mode)
    assert imageIO.imageTypeByName(kind.name) == kind
    if dtype == "uint8":
        np.testing.assert_array_equal(
            imageIO.PIL_to_imageStruct(imageIO.imageStructToPIL(struct)), array
        )


@pytest.mark.parametrize(
    ("mode", "form", "bgr"),
    [
        ("P", "PNG", [0, 0, 255]),
        ("CMYK", "JPEG", [0, 0, 255]),
        ("LA", "PNG", [76, 76, 76, 255]),
    ],
)
def test_colors_of_other_modes(mode: str, form: str, bgr: list[int]) -> None:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (255, 0, 0)).convert(mode).save(file, form)
    for decode in (imageIO.PIL_decode, imageIO.PIL_decode_and_resize((2, 2))):
        array = decode(file.getvalue())
        np.testing.assert_array_equal(array, np.full_like(array, bgr))


def test_an_image_of_floats_is_prepared_as_one_of_bytes() -> None:
    pixels = np.arange(27).reshape(3, 3, 3)
    prepare = PreparedImages("resnet50", (3, 3), "SCALE_FAST")
    structs = [imageIO.imageArrayToStruct(pixels.astype(dtype)).asDict() for dtype in ("f4", "u1")]
    floats, whole = prepare(pa.array(structs))
    np.testing.assert_array_equal(floats, whole)


def test_spark_decodes_images_as_pil_does(spark: SparkSession, folder: Path) -> None:
    """The structs of Spark's JVM are the oracle."""
    options = {"dropInvalid": "true"}
    theirs = spark.read.format("image").options(**options).load(str(folder)).collect()
    ours = imageIO.readImagesWithCustomFn(str(folder), imageIO.PIL_decode).collect()
    by_name = {row.image.origin.rsplit("/")[-1]: row.image for row in ours if row.image}
    assert len(theirs) == len(by_name) == NUM_IMAGES
    for row in theirs:
        image = by_name[row.image.origin.rsplit("/")[-1]]
        assert (image.height, image.width, image.mode) == (
            *(row.image.height, row.image.width),
            row.image.mode,
        )
        assert bytes(image.data) == bytes(row.image.data)


def test_resizing(spark: SparkSession, folder: Path) -> None:
    images = spark.read.format("image").load(str(folder / "0.png"))
    resized = images.select(imageIO.createResizeImageUDF((8, 6))("image").alias("image"))
    [row] = resized.collect()
    expected = np.asarray(Image.open(folder / "0.png").resize((6, 8)))
    np.testing.assert_array_equal(imageIO.imageStructToArray(row.image)[:, :, ::-1], expected)
    assert row.image.origin.endswith("0.png")
