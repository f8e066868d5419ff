"""Runs anywhere. Deep Learning Pipelines' `imageIO`: images as structs, arrays and PIL images.

A struct is a value of the column `image` of `spark.read.format("image")`. Its bytes are rows of
pixels with blue, green, red and alpha, as in OpenCV.
"""

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from sparkdl.host.optional_packages import require
from sparkdl.spark.python import use_driver_python

__all__ = [
    "PIL_decode",
    "PIL_decode_and_resize",
    "PIL_to_imageStruct",
    "createResizeImageUDF",
    "filesToDF",
    "fixColorChannelOrdering",
    "imageArrayToStruct",
    "imageStructToArray",
    "imageStructToPIL",
    "imageTypeByName",
    "imageTypeByOrdinal",
    "readImagesWithCustomFn",
]

Array = Any  # np.ndarray

IMAGE_TYPE = "struct<origin:string,height:int,width:int,nChannels:int,mode:int,data:binary>"


class ImageType(NamedTuple):
    """A type of images of OpenCV, with its name, number, channels and dtype."""

    name: str
    ord: int
    nChannels: int
    dtype: str


# The number of OpenCV is its number of the dtype, and 8 for each channel after the first.
_TYPES = [
    ImageType(f"CV_{bits}C{channels}", depth + 8 * (channels - 1), channels, dtype)
    for bits, depth, dtype in (("8U", 0, "uint8"), ("32F", 5, "float32"))
    for channels in (1, 3, 4)
]


def imageTypeByOrdinal(ordinal: int) -> ImageType:
    """Return the type of images with a number of OpenCV.

    Raises:
        KeyError: if the number is of no supported type.

    Example:
        >>> imageTypeByOrdinal(16)
        ImageType(name='CV_8UC3', ord=16, nChannels=3, dtype='uint8')
    """
    return _type_of({each.ord: each for each in _TYPES}, ordinal)


def imageTypeByName(name: str) -> ImageType:
    """Return the type of images with a name of OpenCV.

    Raises:
        KeyError: if the name is of no supported type.

    Example:
        >>> imageTypeByName("CV_32FC1").dtype
        'float32'
    """
    return _type_of({each.name: each for each in _TYPES}, name)


def _type_of(types: dict[Any, ImageType], key: Any) -> ImageType:
    if key not in types:
        raise KeyError(f"{key!r} is no type of images; expected one of {sorted(types)}")
    return types[key]


def imageArrayToStruct(imgArray: Array, origin: str = "") -> Row:
    """Return the struct of an image.

    Args:
        imgArray: an array of uint8 or float32 of shape (height, width, channels), or (1, height,
            width, channels), with blue first.
        origin: the path of the image.

    Raises:
        ValueError: if the array has another shape or dtype.

    Example:
        >>> imageArrayToStruct(np.zeros((2, 4, 3), "uint8")).mode
        16
    """
    array = np.asarray(imgArray)
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    names = [each.name for each in _TYPES if each[2:] == (*array.shape[2:], str(array.dtype))]
    if array.ndim != 3 or not names:
        raise ValueError(
            f"the image has the shape {np.shape(imgArray)} and the dtype {array.dtype}; expected "
            "(height, width, channels) with 1, 3 or 4 channels of uint8 or float32."
        )
    kind = imageTypeByName(names[0])
    height, width, channels = array.shape
    data = bytearray(array.tobytes())
    return Row(
        origin=origin, height=height, width=width, nChannels=channels, mode=kind.ord, data=data
    )


def imageStructToArray(imageRow: Any) -> Array:
    """Return the array of an image struct, of shape (height, width, channels), with blue first."""
    shape = imageRow.height, imageRow.width, imageRow.nChannels
    dtype = imageTypeByOrdinal(imageRow.mode).dtype
    return np.frombuffer(imageRow.data, dtype).reshape(shape)


def imageStructToPIL(imageRow: Any) -> Any:
    """Return the PIL image of an image struct of uint8.

    Raises:
        ValueError: if the image has another dtype.
    """
    kind = imageTypeByOrdinal(imageRow.mode)
    if kind.dtype != "uint8":
        raise ValueError(f"the image is {kind.name}, and PIL has images of uint8 only.")
    array = imageStructToArray(imageRow)
    if kind.nChannels == 1:
        return _pil().fromarray(array[:, :, 0])
    return _pil().fromarray(np.ascontiguousarray(_swapped(array)))


def PIL_to_imageStruct(img: Any) -> Array:
    """Return the array of a PIL image, with blue first.

    Modes that image structs do not have, such as palettes and CMYK, become RGB, or RGBA if a part
    of the image is transparent.
    """
    return _swapped(np.asarray(_in_known_mode(img)))


def _in_known_mode(image: Any) -> Any:
    if image.mode in ("L", "RGB", "RGBA", "F"):
        return image
    is_transparent = image.mode in ("LA", "PA") or "transparency" in image.info
    return image.convert("RGBA" if is_transparent else "RGB")


def fixColorChannelOrdering(currentOrder: str, imgAry: Array) -> Array:
    """Return an array with blue first.

    Args:
        currentOrder: `RGB`, `BGR`, or `L` for one channel.
        imgAry: the array.

    Raises:
        ValueError: if the order is another one, or does not fit the array.
    """
    if currentOrder not in ("RGB", "BGR", "L"):
        raise ValueError(f"currentOrder is {currentOrder!r}; expected 'RGB', 'BGR' or 'L'.")
    if currentOrder == "L" and np.ndim(imgAry) == 3 and np.shape(imgAry)[2] != 1:
        raise ValueError(f"currentOrder is 'L', but the image has the shape {np.shape(imgAry)}.")
    return _swapped(imgAry) if currentOrder == "RGB" else imgAry


def _swapped(array: Array) -> Array:
    """Swap red and blue of an array that has them; alpha stays last."""
    if array.ndim != 3 or array.shape[2] < 3:
        return array if array.ndim == 3 else array[..., None]
    return array[:, :, [2, 1, 0, *range(3, array.shape[2])]]


def _pil() -> Any:
    require("PIL", "sparkdl.image")
    from PIL import Image

    return Image


def PIL_decode(raw_bytes: bytes) -> Array:
    """Return the array of an encoded image, such as the bytes of a JPEG file, with blue first."""
    return PIL_to_imageStruct(_pil().open(io.BytesIO(raw_bytes)))


def PIL_decode_and_resize(size: tuple[int, int]) -> Callable[[bytes], Array]:
    """Return a function like `PIL_decode` that resizes images.

    Args:
        size: width and height, as in PIL.
    """

    def decode(raw_bytes: bytes) -> Array:
        # Colours of a palette cannot be mixed before they are known.
        return PIL_to_imageStruct(_in_known_mode(_pil().open(io.BytesIO(raw_bytes))).resize(size))

    return decode


def createResizeImageUDF(size: tuple[int, int]) -> Any:
    """Return a function of Spark that resizes a column of image structs.

    Args:
        size: height and width.

    Raises:
        ValueError: if `size` has not two numbers.
    """
    if len(size) != 2:
        raise ValueError(f"size is {size!r}; expected (height, width).")
    height, width = size

    def resized(image: Any) -> Any:
        if image is None or (image.height, image.width) == (height, width):
            return image
        array = PIL_to_imageStruct(imageStructToPIL(image).resize((width, height)))
        return imageArrayToStruct(array, image.origin)

    return F.udf(resized, IMAGE_TYPE, useArrow=False)


def filesToDF(sc: Any, path: str, numPartitions: int | None = None) -> DataFrame:
    """Return the files of a folder, as columns `filePath` and `fileData`.

    Args:
        sc: has no effect: the session is the active one, or a new one.
        path: the folder, a file, or a pattern.
        numPartitions: the number of partitions.
    """
    spark = SparkSession.builder.getOrCreate()
    use_driver_python(spark)
    files = spark.read.format("binaryFile").load(path)
    files = files.select(F.col("path").alias("filePath"), F.col("content").alias("fileData"))
    return files.repartition(numPartitions) if numPartitions else files


def readImagesWithCustomFn(
    path: str, decode_f: Callable[[bytes], Array], numPartition: int | None = None
) -> DataFrame:
    """Return the images of a folder, decoded by a function, as image structs in a column `image`.

    `spark.read.format("image").load(path)` needs no function.

    Args:
        path: the folder, a file, or a pattern.
        decode_f: a function from the bytes of a file to an array, such as `PIL_decode`. What it
            cannot decode, because of any exception, gets null.
        numPartition: the number of partitions.
    """

    def decode(origin: str, data: bytes) -> Any:
        try:
            return imageArrayToStruct(decode_f(data), origin)
        except Exception:  # noqa: BLE001 The files of a folder may be anything.
            return None

    files = filesToDF(None, path, numPartition)
    return files.select(
        F.udf(decode, IMAGE_TYPE, useArrow=False)("filePath", "fileData").alias("image")
    )
