"""Image files: the same tensors as Keras has, in every format, and which file is none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl.data.readers.images import images
from sparkdl.errors import ConfigError
from sparkdl.files import storage

pytestmark = pytest.mark.slow

SHAPES = [(9, 7), (20, 30), (5, 5), (64, 48)]


def image(number: int, channels: int = 3) -> Any:
    """An image with a pattern of its own."""
    height, width = SHAPES[number % len(SHAPES)]
    values = np.random.default_rng(number).integers(0, 256, (height, width, channels))
    return values.astype(np.uint8)


def encoded(number: int, ending: str) -> bytes:
    import tensorflow as tf

    if ending in (".bmp", ".gif"):
        from io import BytesIO

        from PIL import Image

        target = BytesIO()
        frames = [Image.fromarray(image(number + i)) for i in range(2)]
        frames[1] = frames[1].resize(frames[0].size)
        more = {"save_all": True, "append_images": frames[1:]} if ending == ".gif" else {}
        frames[0].save(target, ending[1:], **more)
        return target.getvalue()
    encode = tf.io.encode_png if ending == ".png" else tf.io.encode_jpeg
    data: bytes = encode(image(number)).numpy()
    return data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes, one without images, and files that are none."""
    root = tmp_path / "pets [ü]"
    for number, name in enumerate(
        ["dog/1.jpg", "dog/2.JPEG", "cat/a.png", "cat/more/b.bmp", "cat/c.gif", "dog/3.png"]
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number, path.suffix.lower()))
    (root / "emu").mkdir()
    for name in ("cat/notes.txt", "top.png", ".hidden"):
        (root / name).write_text("no image")
    return root


def assert_equal(ours: Any, theirs: Any) -> None:
    for (x, y), (other_x, other_y) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(x, other_x)
        np.testing.assert_array_equal(y, other_y)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_folders_are_classes_and_all_is_as_keras_has_it(folder: Path, channels: int) -> None:
    import keras

    mode = {1: "grayscale", 3: "rgb", 4: "rgba"}[channels]
    kept = {1: (".jpg", ".jpeg", ".png"), 3: (), 4: (".png",)}[channels]
    for path in folder.rglob("*.*"):
        if kept and path.suffix.lower() not in kept:
            path.unlink()  # TensorFlow does not convert it.
    theirs = keras.utils.image_dataset_from_directory(
        folder, image_size=(16, 12), color_mode=mode, shuffle=False, batch_size=4, verbose=False
    )
    ours = images(folder, size=(16, 12), channels=channels, global_batch_size=4)
    assert ours.class_names == theirs.class_names == ["cat", "dog", "emu"]
    assert ours.element_spec == theirs.element_spec
    assert_equal(ours, theirs)


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [([3, 1, 2], "int64"), (["a", "b", "c"], "string"), ([[0.5, 1], [1, 0], [0, 1]], "float64")],
)
def test_a_list_of_files_with_labels(folder: Path, labels: list[Any], dtype: str) -> None:
    files = [folder / name for name in ("dog/3.png", "cat/a.png", "dog/1.jpg")]
    dataset = images(files, labels=labels, size=(8, 8), global_batch_size=2)
    assert dataset.class_names is None
    found = [row for _, y in dataset for row in y.numpy()]
    expected = [s.encode() if isinstance(s, str) else s for s in labels]
    assert [y.tolist() if dtype == "float64" else y for y in found] == expected
    assert dataset.element_spec[1].dtype == dtype


def test_other_columns(folder: Path) -> None:
    columns = {"feature_cols": {"x": "image", "from": "path"}, "label_cols": None}
    (batch,) = images(folder, size=(4, 4), global_batch_size=8, **columns)
    assert batch["x"].shape == (6, 4, 4, 3)
    names = [Path(path.decode()).relative_to(folder).as_posix() for path in batch["from"].numpy()]
    assert names == [
        "cat/a.png",
        "cat/c.gif",
        "cat/more/b.bmp",
        "dog/1.jpg",
        "dog/2.JPEG",
        "dog/3.png",
    ]


def test_labels_alone_read_no_image(folder: Path) -> None:
    (folder / "dog/3.png").write_bytes(b"broken")
    dataset = images(
        folder, size=(4, 4), feature_cols="label", label_cols=None, global_batch_size=8
    )
    assert [batch.numpy().tolist() for batch in dataset] == [[0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize("content", [b"", b"some text", "cut.png", "cut.jpg"])
def test_a_file_that_is_no_image_is_named(folder: Path, content: Any) -> None:
    import tensorflow as tf

    if isinstance(content, str):
        content = encoded(3, Path(content).suffix)
        content = content[: len(content) // 2]
    (folder / "dog/3.png").write_bytes(content)
    dataset = images(folder, size=(4, 4), global_batch_size=8)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"dog/3\.png, of .* cannot be decoded"
    ):
        list(dataset)


def test_a_file_that_is_gone_is_named(folder: Path) -> None:
    import tensorflow as tf

    dataset = images(folder, size=(4, 4), global_batch_size=8)
    (folder / "dog/3.png").unlink()
    with pytest.raises(tf.errors.OpError, match=r"dog/3\.png"):
        list(dataset)


def test_images_stand_in_order_however_long_each_takes(tmp_path: Path) -> None:
    import tensorflow as tf

    files = []
    for number in range(150):
        side = 600 if number % 40 == 0 else 2
        files.append(tmp_path / f"{number}.png")
        shade = tf.fill([side, side, 3], tf.constant(number, tf.uint8))
        files[-1].write_bytes(tf.io.encode_png(shade).numpy())
    dataset = images(files, labels=range(150), size=(1, 1), global_batch_size=7)
    for x, y in dataset:
        assert x.numpy()[:, 0, 0, 0].tolist() == y.numpy().tolist()


def test_hidden_folders_are_no_classes(folder: Path) -> None:
    for hidden in ("_old", "_old=1", ".old"):
        (folder / hidden).mkdir()
        (folder / hidden / "1.png").write_bytes(encoded(1, ".png"))
    dataset = images(folder, size=(8, 8), global_batch_size=10)
    assert dataset.class_names == ["cat", "dog", "emu"]
    assert [len(y) for _, y in dataset] == [6]


@pytest.mark.parametrize("store", ["memory", "s3"])
def test_stores(store: str, request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> None:
    root = "memory://" if store == "memory" else request.getfixturevalue("s3")
    url = f"{root}/{tmp_path.name}"
    storage.copy(folder, url)
    (folder / "emu").rmdir()
    remote, local = (images(p, size=(8, 8), global_batch_size=4) for p in (url, folder))
    assert remote.class_names == local.class_names
    assert_equal(remote, local)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 8}, r"size is 8; expected \(height, width\)"),
        ({"size": (0, 8)}, r"size is \(0, 8\)"),
        ({"size": (8, 8, 3)}, "size is"),
        ({"channels": 2}, "channels is 2; expected one of"),
        ({"labels": [1]}, "labels go with a list of files"),
        ({"path": ["a.png"]}, "path is a list; expected labels="),
        ({"path": ["a.png"], "labels": [1, 2]}, "there are 1 files and 2 labels"),
        ({"path": ["a.png"], "labels": [None]}, "labels are object; expected numbers"),
        ({"batchsize": 3}, "unknown argument 'batchsize'"),
    ],
)
def test_arguments_that_are_wrong(folder: Path, options: dict[str, Any], message: str) -> None:
    given = {"path": folder, "size": (8, 8), "global_batch_size": 8, **options}
    with pytest.raises(ConfigError, match=message):
        images(**given)


def test_a_folder_without_classes(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(FileNotFoundError, match="no image in a folder for its class"):
        images(tmp_path, size=(8, 8), global_batch_size=8)
