"""Runs in the training process. Read image files as batches, with TensorFlow."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from sparkdl.data.agreed_pieces import Call, Pieces, agree
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.lanes import Pass
from sparkdl.data.readers.base import TensorSource
from sparkdl.data.readers.paths import Files, Paths, describe, find, find_again, urls_of
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.host.optional_packages import require

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
BLOCK_FILES = 32
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
    """Return this rank's share of image files as a `tf.data.Dataset`, with equal steps per rank.

    The columns are `image` (float32, 0 to 255), `label` and `path`. By default elements are
    `(image, label)`. Images are decoded, and resized with bilinear interpolation, exactly as
    `keras.utils.image_dataset_from_directory` does.

    Args:
        path: without `labels`, a folder with a subfolder for each class: labels are the numbers of
            the classes, sorted by name. With `labels`, a list of files. Local paths, or URLs that
            fsspec supports. The formats are JPEG, PNG, BMP, and GIF (its first frame).
        size: height and width of the images in pixels.
        labels: the label of each file: numbers, strings, or arrays of one shape.
        channels: 1 for grey, which BMP and GIF do not support; 3 for red, green and blue; 4 for
            red, green, blue and transparency, for PNG.
        **batches: see `Batches`.

    Returns:
        The dataset, with an attribute `class_names`: the name of the class of each label; None
        with `labels`.

    Raises:
        FileNotFoundError: if there is no image.
        ConfigError: if an argument is invalid.
        tensorflow.errors.InvalidArgumentError: during iteration, if a file is not an image; the
            message names the file.

    Example:
        >>> import tensorflow as tf
        >>> for name, shade in {"cat": 10, "dog": 200}.items():
        ...     os.makedirs(f"animals/{name}")
        ...     png = tf.io.encode_png(tf.fill([4, 4, 3], tf.constant(shade, tf.uint8)))
        ...     tf.io.write_file(f"animals/{name}/1.png", png)
        >>> dataset = images("animals", size=(2, 2), batch_size_per_worker=64)
        >>> dataset.class_names
        ['cat', 'dog']
        >>> for image, label in dataset:
        ...     print(image.shape, image.numpy().max(axis=(1, 2, 3)), label.numpy())
        (2, 2, 2, 3) [ 10. 200.] [0 1]
    """
    require("tensorflow", "data.images")
    parsed = Batches.parse({"feature_cols": "image", "label_cols": "label", **batches})
    arguments = {"path": path, "size": size, "channels": channels, **parsed.division}
    if labels is None:
        pieces = agree(Call("data.images", arguments), lambda: list_classes(path))
    else:
        call = Call("data.images", {**arguments, "labels": np.asarray(labels)})
        pieces = agree(call, dict)  # All ranks have the same list of files.
    source = ImageSource(path, labels, size, channels, pieces)
    dataset: Any = make_dataset(source, parsed)
    dataset.class_names = source.class_names
    return dataset


class ImageSource(TensorSource):
    """Image files with labels; a piece is a file.

    Args:
        path, labels, size, channels: see `images`.
        pieces: the result of `list_classes` on the first rank; by default this process lists them.

    Attributes:
        class_names: the name of the class of each label; None if labels were passed.
    """

    columns = ("image", "label", "path")

    def __init__(
        self,
        path: Paths,
        labels: Sequence[Any] | None,
        size: tuple[int, int],
        channels: int,
        pieces: Pieces | None = None,
    ) -> None:
        _check(size, channels)
        self.name = describe(path)
        self._size = tuple(size)
        self._channels = channels
        self._places: dict[str, tuple[Files, int]] = {}
        self.class_names: list[str] | None = None
        if labels is None:
            pieces = list_classes(path) if pieces is None else pieces
            matches = find_again(path, pieces["files"])
            self._urls = urls_of(matches)
            self._places = {
                files.url(path): (files, number)
                for files in matches
                for number, path in enumerate(files.paths)
            }
            self._labels = np.array(pieces["labels"], np.int32)  # Keras's dtype.
            self.class_names = pieces["names"]
        else:
            self._urls, self._labels = _check_labels(path, labels)
        self.sizes = [1] * len(self._urls)

    def _check_content(self, url: str, content: bytes) -> None:
        """Refuse a file that was replaced; one of a store, by its size: it is read at once."""
        if url in self._places:
            files, number = self._places[url]
            if files.is_local or len(content) != files.sizes[number]:
                files.check(number)

    def columns_of(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        """Implement `TensorSource.columns_of`; files are decoded in parallel, in order."""
        import tensorflow as tf

        def file_blocks() -> Iterator[dict[str, Any]]:
            pieces = [part.piece for part in next_pass().ranges_in_turn()]
            for begin in range(0, len(pieces), BLOCK_FILES):
                block = pieces[begin : begin + BLOCK_FILES]
                paths = np.array([self._urls[piece] for piece in block], object)
                yield {"path": paths, "label": self._labels[block]}

        kind = tf.string if self._labels.dtype == object else self._labels.dtype
        signature = {
            "path": tf.TensorSpec([None], tf.string),
            "label": tf.TensorSpec([None, *self._labels.shape[1:]], kind),
        }
        decoder = _Decoder(self._size, self._channels, self._check_content)

        def selected(block: dict[str, Any]) -> dict[str, Any]:
            if "image" in names:
                block = {**block, "image": decoder(block["path"])}
            return {name: block[name] for name in names}

        dataset = tf.data.Dataset.from_generator(file_blocks, output_signature=signature)
        return dataset.map(selected, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


class _Decoder:
    """Read, decode and resize a block of files; an error names the file that is not an image.

    Args:
        size, channels: see `images`.
        check: called with the URL of a file and its content.
    """

    def __init__(
        self, size: tuple[int, ...], channels: int, check: Callable[[str, bytes], None]
    ) -> None:
        import tensorflow as tf

        self._check = check
        self._spec = tf.TensorSpec([*size, channels])
        # Used for remote stores, whose requests take long; local files are read one by one.
        self._pool = ThreadPoolExecutor(BLOCK_FILES)

        def decode(content: Any) -> Any:
            image = tf.io.decode_image(content, channels=channels, expand_animations=False)
            image.set_shape([None, None, channels])
            return tf.ensure_shape(tf.image.resize(image, size), self._spec.shape)

        self._decode = tf.function(
            lambda contents: tf.map_fn(decode, contents, fn_output_signature=self._spec),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )

    def __call__(self, paths: Any) -> Any:
        """Return the images (rows, height, width, channels) of paths (rows,), in a graph."""
        import tensorflow as tf

        # A Python function per block is as fast as a pure graph, whose errors would not name the
        # file.
        images = tf.py_function(self._read, [paths], self._spec.dtype)
        return tf.ensure_shape(images, [None, *self._spec.shape])

    def _read(self, paths: Any) -> Any:
        import tensorflow as tf

        urls = [path.decode() for path in paths.numpy()]
        contents = self._contents(urls)
        for url, content in zip(urls, contents, strict=True):
            self._check(url, content)
        try:
            return self._decode(tf.constant(contents, tf.string))
        except tf.errors.InvalidArgumentError:
            for url, content in zip(urls, contents, strict=True):
                self._refuse_if_invalid(url, content)
            raise

    def _contents(self, urls: Sequence[str]) -> list[bytes]:
        """Return the contents of files; remote ones of one store are asked for at once."""
        if all(map(storage.is_local, urls)):
            return list(map(storage.read, urls))
        stores = {url.partition("://")[0] for url in urls}
        contents = storage.read_new(dict.fromkeys(urls, 0)) if len(stores) == 1 else {}
        # A second look at a file that is empty, or cannot be read, tells the reason.
        missing = [url for url in urls if url not in contents]
        contents |= dict(zip(missing, self._pool.map(storage.read, missing), strict=True))
        return [contents[url] for url in urls]

    def _refuse_if_invalid(self, url: str, content: bytes) -> None:
        import tensorflow as tf

        try:
            self._decode(tf.constant([content], tf.string))
        except tf.errors.InvalidArgumentError as exc:
            # Remove the name of the graph's node.
            problem = exc.message.splitlines()[0].rpartition("}} ")[2]
            raise ValueError(
                f"{url}, of {len(content)} bytes, cannot be decoded as an image of "
                f"{self._spec.shape[-1]} channels; expected JPEG, PNG, BMP or GIF. TensorFlow "
                f"reports: {problem}"
            ) from exc


def _check(size: Any, channels: Any) -> None:
    is_valid = isinstance(size, list | tuple) and all(isinstance(n, int) and n > 0 for n in size)
    if not is_valid or len(size) != 2:
        raise ConfigError(f"size is {size!r}; expected (height, width) in pixels.")
    if channels not in CHANNELS:
        raise ConfigError(f"channels is {channels!r}; expected one of {CHANNELS}.")


def list_classes(path: Paths) -> Pieces:
    """Return the images in a folder of classes, their labels and class names, in JSON form.

    Args:
        path: see `images`.

    Raises:
        FileNotFoundError: if there is no image.
        ConfigError: if `path` is not a single folder.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError("path is a list; expected labels= with it, or a folder of classes.")
    files, *others = find(path)
    if others:
        raise ConfigError(f"path is {os.fspath(path)!r}, several folders; expected one of classes.")
    entries = files.filesystem.ls(files.folder, detail=True)
    folders = [entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory"]
    names = sorted(folder.rpartition("/")[2] for folder in folders)
    names = [name for name in names if not name.startswith((".", "_"))]
    label_of = {name: label for label, name in enumerate(names)}
    numbers, labels = [], []
    for number, file in enumerate(files.paths):
        name, _, inner = file[len(files.folder) + 1 :].partition("/")
        if inner and name in label_of and file.lower().endswith(ENDINGS):
            numbers.append(number)
            labels.append(label_of[name])
    if not numbers:
        raise FileNotFoundError(
            f"{os.fspath(path)!r} has no image in a folder for its class; expected files such as "
            f"<class>/<name>.jpg, ending in {', '.join(ENDINGS)}. A list of files needs labels=."
        )
    return {"files": [files.subset(numbers).to_dict()], "labels": labels, "names": names}


def _check_labels(path: Paths, labels: Sequence[Any]) -> tuple[list[str], Any]:
    """Return the URLs of a list of files, and their labels as an array.

    Raises:
        ConfigError: if the numbers of files and labels differ, or the labels have another type.
    """
    if isinstance(path, str | os.PathLike):
        raise ConfigError("labels go with a list of files; expected path=[...] of the same length.")
    if len(path) != len(labels):
        raise ConfigError(
            f"there are {len(path)} files and {len(labels)} labels; expected equal numbers."
        )
    array = np.asarray(labels)
    if array.dtype.kind in "US":
        array = array.astype(object)
    elif array.dtype.kind not in "biuf":
        raise ConfigError(f"labels are {array.dtype}; expected numbers, strings or arrays.")
    return [storage.absolute(file) for file in path], array
