"""A run directory is its owner's alone, unless the setting `permissions` says otherwise."""

import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdl import config
from sparkdl.cluster.program.packaging import pack
from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.runner.execute import description_of
from sparkdl.runner.prepare import prepare
from sparkdl.runs import foreign_folder
from sparkdl.runs.history import read_rows
from sparkdl.runs.opening import IfExists, continue_run, open_run
from tests.helpers.in_memory_cluster import InMemoryCluster
from tests.helpers.loops import request_of


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def opened_run(root: Path, run_id: str = "one", if_exists: IfExists = "error") -> Path:
    """Open a run as a verb does; return its directory."""
    request = replace(request_of(root=str(root), run_id=run_id), params=[{"x": 1}])
    prepared = prepare(request, pack(request.called), InMemoryCluster())
    opened = open_run(str(root), description_of(prepared), if_exists)
    opened.owner.release()
    return Path(opened.paths.folder)


def opened_mode(root: Path, run_id: str = "one") -> int:
    """Open a run as a verb does; return the permissions of its directory."""
    return stat.S_IMODE(opened_run(root, run_id).stat().st_mode)


@pytest.mark.parametrize(("setting", "mode"), [(None, 0o700), ("2770", 0o2770), ("755", 0o755)])
@pytest.mark.usefixtures("usual_umask")
def test_run_directory_has_the_permissions_of_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, mode: int
) -> None:
    if setting:
        monkeypatch.setenv("SPARKDL_PERMISSIONS", setting)
    assert opened_mode(tmp_path / "runs") == mode
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o755


def test_file_system_that_refuses_to_change_permissions_is_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setenv("SPARKDL_PERMISSIONS", "770")
    monkeypatch.setattr(Path, "chmod", refuse)
    assert opened_mode(tmp_path / "runs") == 0o700


@pytest.mark.parametrize("text", ["rwx", "077", "600", "17777", "9"])
def test_permissions_without_those_of_the_owner_are_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SPARKDL_PERMISSIONS", text)
    with pytest.raises(ConfigError, match=f"SPARKDL_PERMISSIONS is '{text}'; expected permissions"):
        config.resolve("permissions")


as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

OTHER, GROUP = 65534, 54321


@as_root
def test_folder_that_another_user_has_made_beforehand_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    os.chown(tmp_path / "one", OTHER, OTHER)
    with pytest.raises(RunExistsError, match="belongs to user nobody, not to root, so that") as e:
        opened_run(tmp_path)
    assert "Choose another run_id or root, or remove the folder" in str(e.value)
    assert os.listdir(tmp_path / "one") == []
    assert opened_run(tmp_path, if_exists="new") == tmp_path / "one-2"


@as_root
def test_link_of_another_user_to_a_folder_of_this_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "runs" / "one").symlink_to(tmp_path / "private")
    os.lchown(tmp_path / "runs" / "one", OTHER, OTHER)
    with pytest.raises(RunExistsError, match="belongs to user nobody"):
        opened_run(tmp_path / "runs")
    assert os.listdir(tmp_path / "private") == []


@as_root
def test_run_of_another_user_is_resumed_only_by_its_path(tmp_path: Path) -> None:
    folder = opened_run(tmp_path)
    os.chown(folder, OTHER, OTHER)
    with pytest.raises(RunExistsError, match=f"sparkdl resume {folder}"):
        opened_run(tmp_path, if_exists="resume")
    continue_run(str(folder)).owner.release()


@as_root
def test_run_of_a_colleague_is_resumed_if_the_group_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_PERMISSIONS", "2770")
    folder = opened_run(tmp_path)
    os.chown(folder, OTHER, GROUP)
    with pytest.raises(RunExistsError, match="belongs to user nobody"):
        opened_run(tmp_path, if_exists="resume")
    monkeypatch.setattr(os, "getgroups", lambda: [0, GROUP])
    assert opened_run(tmp_path, if_exists="resume") == folder


def test_folder_that_all_users_may_write_is_refused_unless_that_is_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one").chmod(0o777)
    with pytest.raises(RunExistsError, match="may be written by all users, so that"):
        opened_run(tmp_path)
    monkeypatch.setenv("SPARKDL_PERMISSIONS", "777")
    assert opened_run(tmp_path) == tmp_path / "one"


def test_mount_that_shows_all_folders_as_open_or_of_one_user_is_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_mount(path: Path) -> os.stat_result:
        seen = [*os.stat(path)]
        return os.stat_result([seen[0] | 0o777, *seen[1:4], OTHER, OTHER, *seen[6:]])

    monkeypatch.setattr(foreign_folder, "_new_folder_in", of_mount)
    (tmp_path / "one").mkdir()
    (tmp_path / "one").chmod(0o777)
    assert opened_run(tmp_path) == tmp_path / "one"
    if os.getuid() == 0:
        (tmp_path / "two").mkdir()
        os.chown(tmp_path / "two", OTHER, OTHER)
        assert opened_run(tmp_path, "two") == tmp_path / "two"


@as_root
@pytest.mark.usefixtures("usual_umask")
def test_runs_of_other_users_do_not_hide_those_that_may_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        opened_mode(root, "secret")
        monkeypatch.setenv("SPARKDL_PERMISSIONS", "755")
        opened_mode(root, "shared")
        root.chmod(0o755)
        read_rows(folder)  # Another user may not import what is imported late.
        os.seteuid(OTHER)
        try:
            rows, unreadable = read_rows(folder)
        finally:
            os.seteuid(0)
    assert [row["run"] for row in rows] == ["shared"]
    assert [Path(path).name for path in unreadable] == ["secret"]
