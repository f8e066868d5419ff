"""Files that the user passes as versioned_resources are copied, each under its own name."""

import uuid
from pathlib import Path

import pytest

from sparkdl import context
from sparkdl.errors import ConfigError
from sparkdl.files import resources, storage
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runs import Run
from tests.helpers.in_memory_cluster import InMemoryCluster, returned
from tests.helpers.loops import request_of

pytestmark = pytest.mark.usefixtures("quick_polls")


def run_with(root: str, *resources: str) -> Run:
    request = request_of(versioned_resources=resources, root=root)
    return execute(request, InMemoryCluster(lambda attempt: returned(1.0)))


def copies(run: Run) -> list[str]:
    folder = Path(run.path, "resources")
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a/config.yaml", "b/config.yaml", "project_a/a/config.yaml"):
        (tmp_path / "project" / name).parent.mkdir(parents=True)
        (tmp_path / "project" / name).write_text(name)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_resources_of_equal_names_are_kept_side_by_side(tmp_path: Path, project: Path) -> None:
    run = run_with(str(tmp_path / "runs"), "a/config.yaml", "b/config.yaml", "a/config.yaml")
    assert copies(run) == ["a/config.yaml", "b/config.yaml"]
    for name in copies(run):
        path = resources.fetch(run.path, name, tmp_path / "trial")
        assert Path(path).read_text() == name
        assert Path(path).is_relative_to(tmp_path / "trial")
    with pytest.raises(FileNotFoundError, match=r"several resources end with 'config.yaml': a/"):
        resources.fetch(run.path, "config.yaml", tmp_path / "trial")
    # A file of a folder, and another file of that name.
    names = ("a", "project_a/a/config.yaml", "b/config.yaml")
    run = run_with(str(tmp_path / "others"), *names, "a/", "b/../a")
    assert copies(run) == ["a/config.yaml", "b/config.yaml", "project_a/a/config.yaml"]


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_process_gets_copies_of_its_own(
    tmp_path: Path, project: Path, is_remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"memory://{tmp_path.name}-{uuid.uuid4().hex}" if is_remote else str(tmp_path / "runs")
    run = run_with(root, "a", "b/config.yaml")
    monkeypatch.delenv(context.VARIABLE, raising=False)
    me = context.Context(run=run.id, folder=str(tmp_path / "trial"), run_path=run.path)
    with context.acting_as(me):
        path = Path(context.resource("config.yaml"))
        assert path == tmp_path / "trial/resources/config.yaml"
        assert path.read_text() == "b/config.yaml"
        path.write_text("the trial writes into its copy")
        assert Path(context.resource("a"), "config.yaml").read_text() == "a/config.yaml"
        assert Path(context.resource("a/config.yaml")).read_text() == "a/config.yaml"
        with pytest.raises(FileNotFoundError, match=r"It has a, config.yaml. Did you mean 'conf"):
            context.resource("confg.yaml")
        kept = storage.join(run.path, "resources/a/config.yaml")
        assert storage.read(storage.join(run.path, "resources/config.yaml")) == b"b/config.yaml"
        storage.write(kept, "somebody writes into the copy of the run")
        (tmp_path / "trial/resources/a/config.yaml").unlink()
        with pytest.raises(ValueError, match=r"was changed after the run had started: its SHA-256"):
            context.resource("a")
    with pytest.raises(FileNotFoundError, match="'nowhere' does not exist in"):
        context.resource("nowhere")


def test_folders_are_copied_under_their_names(tmp_path: Path, project: Path) -> None:
    run = run_with(str(tmp_path / "runs"), ".", "a", "b/config.yaml")
    names = [f"project/{name}/config.yaml" for name in ("a", "b", "project_a/a")]
    assert copies(run) == ["a/config.yaml", "config.yaml", *names]
    (project / "link.yaml").symlink_to(project / "a" / "config.yaml")
    assert copies(run_with(str(tmp_path / "others"), "link.yaml", "a/..")) == [
        "link.yaml",
        *names[:2],
        "project/link.yaml",
        *names[2:],
    ]


def test_folders_that_are_too_much_are_refused(tmp_path: Path, project: Path) -> None:
    with pytest.raises(ConfigError, match="contains the runs themselves"):
        run_with(str(project / "runs"), ".")
    assert not (project / "runs").exists()
    for name, problem in ((".venv", "a virtual environment"), (".git", "a whole repository")):
        (project / name).mkdir()
        with pytest.raises(ConfigError, match=problem):
            run_with(str(tmp_path / "runs"), ".")
    with pytest.raises(ConfigError, match="the root of the file system"):
        run_with(str(tmp_path / "runs"), "/")
    assert not (tmp_path / "runs").exists()
