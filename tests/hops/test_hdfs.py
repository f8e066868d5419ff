"""Files of the project, on a local disk and on a store with a URL."""

import getpass
import importlib
import json
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from sparkdl import context, experiment
from sparkdl.context import Context
from sparkdl.errors import ConfigError
from sparkdl.hops import hdfs, tensorboard


@pytest.fixture(params=["local", "memory"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The project on each kind of store; the working directory is an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    is_local = request.param == "local"
    url = str(tmp_path / "projects" / "demo") if is_local else f"memory://{tmp_path.name}/demo"
    monkeypatch.setenv("SPARKDL_ROOT", url)
    return url


def test_names_of_the_project(project: str) -> None:
    assert hdfs.project_path() == f"{project}/"
    assert hdfs.project_path("labs") == f"{project.removesuffix('demo')}labs/"
    assert hdfs.project_name() == "demo"
    assert hdfs.project_user().startswith("demo__")
    hdfs.dump("1", "Logs/a.txt")
    full = f"{project}/Logs/a.txt"
    assert hdfs.abs_path("Logs/a.txt") == hdfs.abs_path("/Logs/a.txt") == full
    assert hdfs.abs_path(hdfs.project_path() + "/Logs/a.txt") == full
    assert hdfs.abs_path("/Projects/demo/Logs/a.txt") == hdfs.abs_path(full) == full
    with pytest.raises(FileNotFoundError, match="SPARKDL_ROOT"):
        hdfs.abs_path("Logs/b.txt")


def test_files_come_and_go(project: str) -> None:
    Path("data.csv").write_text("1,2")
    hdfs.copy_to_hdfs("data.csv", "Resources")
    assert hdfs.load("Resources/data.csv") == b"1,2"
    with pytest.raises(FileExistsError, match="overwrite=True"):
        hdfs.copy_to_hdfs("data.csv", "Resources")
    Path("data.csv").write_text("3,4,5")
    hdfs.copy_to_hdfs("data.csv", hdfs.project_path() + "Resources", overwrite=True)
    Path("data.csv").unlink()
    copy = hdfs.copy_to_local("Resources/data.csv")
    assert (copy, Path(copy).read_text()) == (str(Path("data.csv").absolute()), "3,4,5")
    Path(copy).write_text("9,9,9")  # Of the same size: taken for the same file.
    assert Path(hdfs.copy_to_local("Resources/data.csv")).read_text() == "9,9,9"
    assert Path(hdfs.copy_to_local("Resources/data.csv", overwrite=True)).read_text() == "3,4,5"


def test_folders_come_and_go(project: str) -> None:
    Path("set", "train").mkdir(parents=True)
    Path("set", "train", "0.bin").write_bytes(b"0")
    hdfs.copy_to_hdfs("set", "Data/mnist")
    hdfs.copy_to_hdfs("set", "Data/again/", overwrite=False)
    assert hdfs.load("Data/mnist/train/0.bin") == b"0"
    assert hdfs.isdir("Data/again/set")
    assert hdfs.isfile("Data/again/set/train/0.bin")
    here = Path(hdfs.copy_to_local("Data/mnist"))
    assert (here / "train" / "0.bin").read_bytes() == b"0"
    relative = [path.removeprefix(f"{project}/") for path in hdfs.ls("Data/mnist", recursive=True)]
    assert relative == ["Data/mnist/train", "Data/mnist/train/0.bin"]
    with pytest.raises(OSError, match="recursive=True"):
        hdfs.delete("Data/mnist")
    hdfs.delete("Data/mnist", recursive=True)
    assert not hdfs.exists("Data/mnist")


def test_files_move_within_the_project(project: str) -> None:
    hdfs.dump(b"old", "Logs/a.txt")
    hdfs.cp("Logs/a.txt", "Resources/")
    hdfs.move("Logs/a.txt", "Logs/b.txt")
    hdfs.rename("Logs/b.txt", "Logs/c.txt")
    assert [path.rpartition("/")[2] for path in hdfs.ls("Logs")] == ["c.txt"]
    assert hdfs.glob("Resources/*.txt") == [f"{project}/Resources/a.txt"]
    with pytest.raises(FileExistsError):
        hdfs.cp("Logs/c.txt", "Resources/a.txt")
    hdfs.cp("Logs/c.txt", "Resources/a.txt", overwrite=True)
    hdfs.rmr("Logs")
    hdfs.mkdir("Logs/new")
    with hdfs.open_file("Logs/new/text", flags="wt") as file:
        file.write("some text")
    with hdfs.open_file("Logs/new/text") as file:
        assert file.read() == b"some text"


def test_a_trial_knows_its_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(context.VARIABLE, "{}")
    folder = tmp_path / "runs" / "a-run" / "trials" / "3"
    context.activate(Context(folder=str(folder), url="s3://bucket/project/a-run/trials/3"))
    assert hdfs.project_path() == "s3://bucket/project/"
    # A path that was made of the folder for events is local, as that folder is.
    assert tensorboard.logdir() == f"{folder}/tensorboard/"
    hdfs.dump("1", tensorboard.logdir() + "note.txt")
    assert (folder / "tensorboard" / "note.txt").read_text() == "1"


def test_a_file_that_is_copied_to_its_own_place_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path))
    hdfs.dump("1,2", "Resources/data.csv")
    hdfs.dump("0", "Resources/sub/Resources/0.bin")
    data = tmp_path / "Resources" / "data.csv"
    (tmp_path / "link").symlink_to(data.parent)
    hdfs.copy_to_hdfs(str(data), "Resources", overwrite=True)
    hdfs.cp("Resources/data.csv", "Resources/", overwrite=True)
    for folder in (data.parent, tmp_path / "link"):
        copy = hdfs.copy_to_local("Resources/data.csv", str(folder), overwrite=True)
        assert Path(copy).read_text() == "1,2"
    inner = tmp_path / "Resources" / "sub" / "Resources"
    with pytest.raises(OSError, match="the folder that contains it"):
        hdfs.copy_to_hdfs(str(inner), "", overwrite=True)
    with pytest.raises(OSError, match="the folder that contains it"):
        hdfs.copy_to_local("Resources/sub/Resources", str(tmp_path), overwrite=True)
    assert data.read_text() == "1,2"
    assert (inner / "0.bin").exists()


def test_one_trial_in_this_process_has_the_project_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path / "demo"))
    assert experiment.try_one(lambda: hdfs.project_path()) == f"{tmp_path}/demo/"
    # As `trial.debug()` calls the function of a run in another folder.
    me = Context(folder=str(tmp_path / "debug"), run_path="s3://bucket/project/a-run")
    with context.acting_as(me):
        assert hdfs.project_path() == "s3://bucket/project/"


def test_a_file_with_brackets_is_not_taken_for_its_neighbors(project: str) -> None:
    for name in ("data1.csv", "data[1].csv"):
        hdfs.dump(name, f"Resources/{name}")
    hdfs.move("Resources/data[1].csv", "Resources/moved.csv")
    assert hdfs.load("Resources/moved.csv") == b"data[1].csv"
    hdfs.dump("again", "Resources/data[1].csv")
    hdfs.rmr("Resources/data[1].csv")
    names = [path.rpartition("/")[2] for path in hdfs.ls("Resources")]
    assert names == ["data1.csv", "moved.csv"]


def test_status_tells_size_time_owner_and_permissions(project: str) -> None:
    before = time.time() - 2
    hdfs.dump("1,2,3", "Logs/a.csv")
    status = hdfs.stat("Logs/a.csv")
    assert (status.kind, status.st_size, status.path) == ("file", 5, f"{project}/Logs/a.csv")
    assert before < status.st_mtime <= time.time() + 1
    assert (stat.S_ISREG(status.st_mode), hdfs.stat("Logs").kind) == (True, "directory")
    if "://" not in project:
        assert status.st_uid == getpass.getuser()

    hdfs.dump("1", "Logs/more/b.csv")
    entries = hdfs.lsl("Logs")
    assert [(entry["name"], entry["kind"]) for entry in entries] == [
        (f"{project}/Logs/a.csv", "file"),
        (f"{project}/Logs/more", "directory"),
    ]
    assert [entry["size"] for entry in hdfs.lsl("Logs", recursive=True)][-1] == 1
    assert [entry["name"] for entry in hdfs.lsl("Logs/a.csv")] == [f"{project}/Logs/a.csv"]
    with pytest.raises(FileNotFoundError):
        hdfs.stat("Logs/none.csv")


def test_permissions_change_where_the_store_has_them(project: str) -> None:
    hdfs.dump("1", "Logs/a.csv")
    assert hdfs.access("Logs/a.csv", os.R_OK | os.W_OK)
    if "://" in project:
        with pytest.raises(ConfigError, match="tools of the store"):
            hdfs.chmod("Logs/a.csv", 0o600)
        with pytest.raises(ConfigError, match="tools of the store"):
            hdfs.chown("Logs/a.csv", "someone", "some")
        return
    hdfs.chmod("Logs/a.csv", 0o640)
    assert stat.S_IMODE(hdfs.stat("Logs/a.csv").st_mode) == 0o640
    assert hdfs.lsl("Logs/a.csv")[0]["permissions"] == 0o640
    assert not hdfs.access("Logs/a.csv", os.X_OK)
    status = hdfs.stat("Logs/a.csv")
    hdfs.chown("Logs/a.csv", str(status.st_uid), str(status.st_gid))
    assert hdfs.stat("Logs/a.csv") == status


def test_modules_of_the_project_are_imported(project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    notebook = {"cells": [{"cell_type": "code", "source": ["%matplotlib inline\n", "two = 2\n"]}]}
    hdfs.dump("one = 1", "Resources/hops_one.py")
    hdfs.dump(json.dumps(notebook), "Resources/hops_two.ipynb")
    assert Path(hdfs.add_module("Resources/hops_one.py")).read_text() == "one = 1"
    hdfs.add_module("Resources/hops_two.ipynb")
    assert importlib.import_module("hops_one").one == 1
    assert importlib.import_module("hops_two").two == 2
    hdfs.dump("one = 'changed'", "Resources/hops_one.py")
    hdfs.add_module("Resources/hops_one.py")
    assert importlib.import_module("hops_one").one == "changed"
    hdfs.dump("1", "Resources/data.csv")
    with pytest.raises(ConfigError, match=r"expected a \.py"):
        hdfs.add_module("Resources/data.csv")
    for name in ("hops_one", "hops_two"):
        monkeypatch.delitem(sys.modules, name)
