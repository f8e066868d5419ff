"""Runs in a Spark task. Turn a column of paths, or of image structs, into arrays of pixels."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.databricks.image_io import imageTypeByOrdinal

Array = Any  # np.ndarray

# What tf.image.resize has for each hint of Java's java.awt.Image.
METHODS = {
    "SCALE_AREA_AVERAGING": "area",
    "SCALE_DEFAULT": "bilinear",
    "SCALE_FAST": "nearest",
    "SCALE_REPLICATE": "nearest",
    "SCALE_SMOOTH": "area",
}


def as_rgb(pixels: Array) -> Array:
    """Return the pixels of an image struct as red, green and blue, without alpha.

    Args:
        pixels: an array of shape (height, width, channels): gray, or blue, green, red and alpha.
    """
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    return pixels[:, :, 2::-1].astype(np.float32)


@dataclass(frozen=True)
class LoadedFiles:
    """The images that the user's function reads, from paths.

    Attributes:
        load: the function from a path to an array of shape (1, height, width, channels).
    """

    load: Callable[[str], Array]

    def __call__(self, paths: pa.Array) -> list[Array | None]:
        """Return each image as (height, width, channels), and None for what cannot be read."""
        return [self._read(path) for path in paths.to_pylist()]

    def _read(self, path: str | None) -> Array | None:
        if path is None:
            return None
        try:
            image = np.asarray(self.load(path), np.float32)
        except (OSError, ValueError):
            return None
        return image[0] if image.ndim == 4 else image


@dataclass(frozen=True)
class PreparedImages:
    """The images of a column of structs, as `spark.read.format("image")` has it, for one model.

    Attributes:
        module: the module of `keras.applications`, whose `preprocess_input` is called.
        size: height and width to which images are resized.
        scale_hint: the way to resize, a key of `METHODS`.
    """

    module: str
    size: tuple[int, int]
    scale_hint: str

    def __call__(self, structs: pa.Array) -> list[Array | None]:
        """Return each image as (height, width, 3), and None for null and for undefined images."""
        return [self._prepare(image) for image in structs.to_pylist()]

    def _prepare(self, image: dict[str, Any] | None) -> Array | None:
        import tensorflow as tf

        if image is None or not image["data"]:
            return None
        shape = image["height"], image["width"], image["nChannels"]
        dtype = imageTypeByOrdinal(image["mode"]).dtype
        pixels = np.frombuffer(image["data"], dtype).reshape(shape)
        rgb = as_rgb(pixels)
        if shape[:2] != self.size:
            rgb = tf.image.resize(rgb, self.size, METHODS[self.scale_hint]).numpy()
        application = importlib.import_module(f"keras.applications.{self.module}")
        return np.asarray(application.preprocess_input(rgb), np.float32)
