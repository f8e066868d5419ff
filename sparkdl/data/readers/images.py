"""Runs in the training process. Image files as batches, decoded and resized by TensorFlow."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from sparkdl import storage
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.readers.base import Pass, Source
from sparkdl.data.readers.paths import Paths, find, shown
from sparkdl.errors import ConfigError

__all__ = ["ImageSource", "images"]

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
BLOCK = 32
CHANNELS = (1, 3, 4)


@takes_batches
def images(
    path: Paths,
    *,
    size: tuple[int, int],
    labels: Sequence[Any] | None = None,
    channels: int = 3,
    **batches: Any,
) -> Any:
    """This rank's share of image files as a `tf.data.Dataset`, with equal steps on every rank.

    The columns are `image` (float32, 0 to 255), `label` and `path`. By default elements are
    `(image, label)`. Images are decoded, and resized with bilinear interpolation, exactly as
    `keras.utils.image_dataset_from_directory` does.

    Args:
        path: without `labels`, a folder that has one for each class: labels are the numbers of
            the classes, sorted by name. With `labels`, a list of files. Local, or URLs that fsspec
            understands; JPEG, PNG, BMP, or GIF, of which the first frame is taken.
        size: height and width of the images in the batch.
        labels: of each file: numbers, strings, or arrays of one shape.
        channels: 1 for grey, which BMP and GIF cannot be read as; 3 for red, green and blue; 4 with
            transparency, for PNG.
        **batches: see `Batches`.

    Returns:
        The dataset, with an attribute `class_names`: the classes by label; None with `labels`.

    Raises:
        FileNotFoundError: there is no image.
        ConfigError: an argument is wrong.
        tensorflow.errors.InvalidArgumentError: while it is read, a file is no image; names it.

    Example:
        >>> import tensorflow as tf
        >>> for name, shade in {"cat": 10, "dog": 200}.items():
        ...     os.makedirs(f"animals/{name}")
        ...     png = tf.io.encode_png(tf.fill([4, 4, 3], tf.constant(shade, tf.uint8)))
        ...     tf.io.write_file(f"animals/{name}/1.png", png)
        >>> dataset = images("animals", size=(2, 2), batch_size_per_worker=64)
        sparkdl: animals: 2 rows; batches of 64...
        >>> dataset.class_names
        ['cat', 'dog']
        >>> for image, label in dataset:
        ...     print(image.shape, image.numpy().max(axis=(1, 2, 3)), label.numpy())
        (2, 2, 2, 3) [ 10. 200.] [0 1]
    """
    parsed = Batches.parse({"feature_cols": "image", "label_cols": "label", **batches})
    source = ImageSource(path, labels, size, channels)
    dataset = make_dataset(source, parsed)
    dataset.class_names = source.class_names
    return dataset


class ImageSource(Source):
    """Image files with labels; a piece is a file.

    Args:
        path, labels, size, channels: see `images`.

    Attributes:
        class_names: the names of the classes, by label; None where labels were given.
    """

    columns = ("image", "label", "path")

    def __init__(
        self, path: Paths, labels: Sequence[Any] | None, size: tuple[int, int], channels: int
    ) -> None:
        _check(size, channels)
        self.name, self._size, self._channels = shown(path), tuple(size), channels
        self.class_names: list[str] | None = None
        if labels is None:
            self._urls, self._labels, self.class_names = _classes(path)
        else:
            self._urls, self._labels = _labelled(path, labels)
        self.sizes = [1] * len(self._urls)

    def blocks(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        """See `Source.blocks`. Files are decoded in parallel, and come in order."""
        import tensorflow as tf

        def parts() -> Iterator[dict[str, Any]]:
            pieces = [wanted.piece for wanted in next_pass().ranges]
            for begin in range(0, len(pieces), BLOCK):
                some = pieces[begin : begin + BLOCK]
                paths = np.array([self._urls[piece] for piece in some], object)
                yield {"path": paths, "label": self._labels[some]}

        kind = tf.string if self._labels.dtype == object else self._labels.dtype
        signature = {
            "path": tf.TensorSpec([None], tf.string),
            "label": tf.TensorSpec([None, *self._labels.shape[1:]], kind),
        }
        decoder = _Decoder(self._size, self._channels)

        def chosen(part: dict[str, Any]) -> dict[str, Any]:
            if "image" in names:
                part = {**part, "image": decoder(part["path"])}
            return {name: part[name] for name in names}

        dataset = tf.data.Dataset.from_generator(parts, output_signature=signature)
        return dataset.map(chosen, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


class _Decoder:
    """Reads, decodes and resizes some files at once; says which one is no image."""

    def __init__(self, size: tuple[int, ...], channels: int) -> None:
        import tensorflow as tf

        self._spec = tf.TensorSpec([*size, channels])
        self._pool = ThreadPoolExecutor(BLOCK)  # A store takes long to answer, local disks do not.

        def decode(content: Any) -> Any:
            image = tf.io.decode_image(content, channels=channels, expand_animations=False)
            image.set_shape([None, None, channels])
            return tf.ensure_shape(tf.image.resize(image, size), self._spec.shape)

        self._decode = tf.function(
            lambda contents: tf.map_fn(decode, contents, fn_output_signature=self._spec),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )

    def __call__(self, paths: Any) -> Any:
        """Paths (rows,) as images (rows, height, width, channels), in a graph."""
        import tensorflow as tf

        # A function of Python for some files costs what the graph alone does; an error of the
        # graph alone would not name its file.
        images = tf.py_function(self._read, [paths], self._spec.dtype)
        return tf.ensure_shape(images, [None, *self._spec.shape])

    def _read(self, paths: Any) -> Any:
        import tensorflow as tf

        urls = [path.decode() for path in paths.numpy()]
        remote = not all(map(storage.is_local, urls))
        contents = list((self._pool.map if remote else map)(storage.read, urls))
        try:
            return self._decode(tf.constant(contents, tf.string))
        except tf.errors.InvalidArgumentError:
            for url, content in zip(urls, contents, strict=True):
                self._refuse(url, content)
            raise

    def _refuse(self, url: str, content: bytes) -> None:
        import tensorflow as tf

        try:
            self._decode(tf.constant([content], tf.string))
        except tf.errors.InvalidArgumentError as exc:
            said = exc.message.splitlines()[0].rpartition("}} ")[2]  # Without the graph's node.
            raise ValueError(
                f"{url}, of {len(content)} bytes, cannot be decoded as an image of "
                f"{self._spec.shape[-1]} channels; expected JPEG, PNG, BMP or GIF. TensorFlow "
                f"says: {said}"
            ) from exc


def _check(size: Any, channels: Any) -> None:
    whole = isinstance(size, list | tuple) and all(isinstance(n, int) and n > 0 for n in size)
    if not whole or len(size) != 2:
        raise ConfigError(f"size is {size!r}; expected (height, width) in pixels.")
    if channels not in CHANNELS:
        raise ConfigError(f"channels is {channels!r}; expected one of {CHANNELS}.")


def _classes(path: Paths) -> tuple[list[str], Any, list[str]]:
    """The images of a folder for each class: their paths, their labels, the classes."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError("path is a list; expected labels= with it, or a folder of classes.")
    (files,) = find(path)
    below = files.filesystem.ls(files.folder, detail=True)
    folders = [entry["name"].rstrip("/") for entry in below if entry["type"] == "directory"]
    found, names = [], sorted(folder.rpartition("/")[2] for folder in folders)
    names = [name for name in names if not name.startswith((".", "_"))]
    number = {name: label for label, name in enumerate(names)}
    for file in files.paths:
        name, _, inner = file[len(files.folder) + 1 :].partition("/")
        if inner and name in number and file.lower().endswith(ENDINGS):
            found.append((name, file))
    if not found:
        raise FileNotFoundError(
            f"{os.fspath(path)!r} has no image in a folder for its class; expected files such as "
            f"<class>/<name>.jpg, with one of {', '.join(ENDINGS)}. A list of files needs labels=."
        )
    labels = np.array([number[name] for name, _ in found], np.int32)  # As Keras has them.
    return [files.url(file) for _, file in found], labels, names


def _labelled(path: Paths, labels: Sequence[Any]) -> tuple[list[str], Any]:
    """Files and their labels."""
    if isinstance(path, str | os.PathLike):
        raise ConfigError("labels go with a list of files; expected path=[...] of the same length.")
    if len(path) != len(labels):
        raise ConfigError(f"there are {len(path)} files and {len(labels)} labels; expected equal.")
    array = np.asarray(labels)
    if array.dtype.kind in "US":
        array = array.astype(object)
    elif array.dtype.kind not in "biuf":
        raise ConfigError(f"labels are {array.dtype}; expected numbers, strings or arrays.")
    return [storage.absolute(file) for file in path], array
