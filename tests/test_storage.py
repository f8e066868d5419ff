"""One contract for every kind of storage: local disk, memory, S3."""

import os
from pathlib import Path

import pytest

from sparkdl import storage
from sparkdl.cluster.process.trial_folder import Mirror


@pytest.fixture(params=["local", "file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, root: str, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{tmp_path.name} ü'"
    return {"local": root, "file": f"file://{root}", "memory": f"memory://{tmp_path}"}[
        request.param
    ]


def test_storage_contract(place: str, tmp_path: Path) -> None:
    url = storage.join(place, "a folder", "ü.txt")
    assert not storage.exists(url)
    assert storage.list_names(place) == []
    with pytest.raises(FileNotFoundError):
        storage.read(url)
    storage.write(url, "héllo")
    storage.write(url, "héllo again")
    assert storage.read(url).decode() == "héllo again"
    assert storage.read(url, 1, 3) == "héllo".encode()[1:4]
    assert storage.read(url, 1000) == b""
    storage.append(url, b"!")
    storage.append(storage.join(place, "a folder", "new"), b"line\n")
    assert storage.read(url).decode() == "héllo again!"
    assert storage.list_names(storage.join(place, "a folder")) == ["new", "ü.txt"]
    storage.rename(url, storage.join(place, "moved", "x"))
    storage.rename(storage.join(place, "absent"), storage.join(place, "y"))
    assert storage.read(storage.join(place, "moved", "x")).decode() == "héllo again!"
    assert not storage.exists(url)
    storage.remove(storage.join(place, "moved"))
    assert not storage.exists(storage.join(place, "moved", "x"))
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "leaf").write_text("leaf")
    storage.copy(tmp_path / "tree", storage.join(place, "copy"))
    assert storage.read(storage.join(place, "copy", "sub", "leaf")) == b"leaf"


def test_mirror_uploads_changed_files(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    (folder / "sub").mkdir(parents=True)
    (folder / "log.txt").write_text("one")
    mirror = Mirror(folder, place)
    if storage.is_local(place):
        pytest.skip("a local place is written to directly")
    mirror.sync()
    assert storage.read(storage.join(place, "log.txt")) == b"one"
    (folder / "log.txt").write_text("one two")
    (folder / "sub" / "x").write_text("x")
    mirror.close()
    assert storage.read(storage.join(place, "log.txt")) == b"one two"
    assert storage.read(storage.join(place, "sub", "x")) == b"x"
    assert not folder.exists()


def test_write_that_fails_leaves_the_old_file(root: str) -> None:
    url = storage.join(root, "f")
    storage.write(url, "old")
    with pytest.raises(TypeError):
        storage.write(url, 5)  # type: ignore[arg-type]
    assert storage.read(url) == b"old"
    assert os.listdir(root) == ["f"]


def test_absolute_and_is_local() -> None:
    assert storage.absolute("runs") == f"{os.getcwd()}/runs"
    assert storage.absolute("s3://b/x/") == "s3://b/x"
    assert storage.absolute("file:///data/x") == "/data/x"
    assert storage.is_local("/a b/c:d") and not storage.is_local("hdfs://n/x")


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_run_on_s3(s3: str, tmp_path: Path) -> None:
    """The driver and three trials share nothing but a bucket."""
    from sparkdl import experiment, tensorboard

    def train(x: int) -> dict[str, object]:
        print("hello", x)
        Path(tensorboard.logdir(), "events").write_text("e")
        (tmp_path / f"{x}").mkdir()
        model = tmp_path / f"{x}" / "model.txt"
        model.write_text(f"weights {x}")
        return {"score": x, "model": model}

    options = {"root": f"{s3}/runs", "progress": False}
    run = experiment.launch(train, {"x": [1, 2, 3]}, metric="score", **options)
    again = experiment.load(run.path)
    assert again.best.value == 3
    assert storage.read(f"{again.best.path}/log.txt") == b"hello 3\n"
    assert storage.read(f"{again.best.path}/tensorboard/events") == b"e"
    assert storage.read(f"{again.best.path}/{again.best.outputs['model']}") == b"weights 3"
    assert experiment.history(f"{s3}/runs")["state"].tolist() == ["COMPLETE"]
