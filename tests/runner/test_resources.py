"""Files that the user passes as versioned_resources are copied, each under its own name."""

from pathlib import Path

import pytest

from sparkdl.errors import ConfigError
from sparkdl.runner.execute import execute
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
    for name in ("a/config.yaml", "b/config.yaml"):
        (tmp_path / "project" / name).parent.mkdir(parents=True)
        (tmp_path / "project" / name).write_text(name)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.mark.parametrize(
    "paths", [("a/config.yaml", "b/config.yaml"), ("a", "a/"), ("a", "b/../a")]
)
def test_resources_of_equal_names_are_refused(
    tmp_path: Path, project: Path, paths: tuple[str, str]
) -> None:
    with pytest.raises(ConfigError, match="would have the same name"):
        run_with(str(tmp_path / "runs"), *paths)
    assert not (tmp_path / "runs").exists()


def test_folders_are_copied_under_their_names(tmp_path: Path, project: Path) -> None:
    run = run_with(str(tmp_path / "runs"), ".", "a", "b/config.yaml")
    files = ["a/config.yaml", "config.yaml", "project/a/config.yaml", "project/b/config.yaml"]
    assert copies(run) == files
    (project / "link.yaml").symlink_to(project / "a" / "config.yaml")
    assert copies(run_with(str(tmp_path / "others"), "link.yaml", "a/..")) == [
        "link.yaml",
        "project/a/config.yaml",
        "project/b/config.yaml",
        "project/link.yaml",
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
