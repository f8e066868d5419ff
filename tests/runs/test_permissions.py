"""A run directory is its owner's alone, unless the setting `permissions` says otherwise."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdl import config
from sparkdl.cluster.program.packaging import pack
from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.runner.pipeline.execute import description_of, execute
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runner.pipeline.preview import previewing
from sparkdl.runner.request import Request
from sparkdl.runs import foreign_folder, opening
from sparkdl.runs.history import read_rows
from sparkdl.runs.opening import IfExists, continue_run, open_run
from tests.helpers.in_memory_cluster import InMemoryCluster, returned
from tests.helpers.loops import request_of, run_trials


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def opened_run(root: Path, run_id: str = "one", if_exists: IfExists = "error") -> Path:
    """Open a run as a verb does; return its directory."""
    request = replace(request_of(root=str(root), run_id=run_id), params=[{"x": 1}])
    prepared = prepare(request, pack(request.target), InMemoryCluster())
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


def give_away(folder: Path) -> None:
    """Let a folder with all its files belong to another user."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER, OTHER)


def previewed(request: Request) -> int:
    """Return the number of runs that `sparkdl plan` would show."""
    with previewing() as previews:
        execute(request, InMemoryCluster())
    return len(previews)


@as_root
def test_folder_that_another_user_has_made_beforehand_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    os.chown(tmp_path / "one", OTHER, OTHER)
    with pytest.raises(RunExistsError, match="belongs to user nobody, not to root, so that") as e:
        opened_run(tmp_path)
    assert "Choose another run_id or root, or remove the folder" in str(e.value)
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "one")) == (["one"], [])
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
    with pytest.raises(RunExistsError, match=f"sparkdl resume {folder}") as e:
        opened_run(tmp_path, if_exists="resume")
    assert f"made yours by chown -R 0 {folder}." in str(e.value)
    continue_run(str(folder)).owner.release()


@as_root
def test_run_of_another_user_that_has_ended_is_read(root: str) -> None:
    ended = run_trials(root, InMemoryCluster(lambda attempt: returned(1.0)))
    give_away(Path(ended.path))
    again = request_of(root=root, if_exists="resume")
    assert execute(again, InMemoryCluster()).best.value == 1.0
    retried = request_of(root=root, if_exists="resume", retry=[0])
    for run in (lambda: execute(retried, InMemoryCluster()), lambda: previewed(retried)):
        with pytest.raises(RunExistsError, match="belongs to user nobody"):
            run()


@as_root
def test_run_that_is_closed_to_this_user_is_refused_with_a_sentence() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o777)
        os.chown(opened_run(root), GROUP, GROUP)
        resumed = request_of(root=folder, run_id="one", if_exists="resume")
        with suppress(RunExistsError):  # Another user may not import what is imported late.
            execute(replace(resumed, params=[{"x": 2}]), InMemoryCluster())
        os.seteuid(OTHER)
        try:
            refused: list[IfExists] = ["error", "resume"]
            for if_exists in refused:
                with pytest.raises(RunExistsError, match="belongs to user 54321, not to n") as e:
                    opened_run(root, if_exists=if_exists)
                assert "chown" not in str(e.value)
            with pytest.raises(RunExistsError, match="belongs to user 54321, not to nobody"):
                execute(resumed, InMemoryCluster())
            assert opened_run(root, if_exists="new").name == "one-2"
        finally:
            os.seteuid(0)


@as_root
@pytest.mark.timeout(240)
def test_pipe_of_another_user_in_place_of_a_run_is_refused_without_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPEN_S", 0.1)
    (tmp_path / "one").mkdir()
    os.mkfifo(tmp_path / "one" / "run.json")
    give_away(tmp_path / "one")
    with pytest.raises(OSError, match="a pipe or a device"):
        opened_run(tmp_path, if_exists="resume")


@as_root
def test_folder_of_another_user_is_foreseen_by_a_preview(root: str) -> None:
    folder = Path(root, "run")
    folder.mkdir()
    give_away(folder)
    with pytest.raises(RunExistsError, match="belongs to user nobody"):
        previewed(request_of(root=root))
    assert previewed(request_of(root=root, if_exists="new")) == 1
    assert os.listdir(root) == ["run"]


@as_root
def test_run_of_a_colleague_is_resumed_if_the_group_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_PERMISSIONS", "2770")
    os.chown(tmp_path, 0, GROUP)
    tmp_path.chmod(0o2775)  # New folders have the group of the root, whoever makes them.
    folder = opened_run(tmp_path)
    os.chown(folder, OTHER, GROUP)
    with pytest.raises(RunExistsError, match="belongs to user nobody"):
        opened_run(tmp_path, if_exists="resume")
    monkeypatch.setattr(os, "getgrouplist", lambda name, group: [group, GROUP])
    assert opened_run(tmp_path, if_exists="resume") == folder
    tmp_path.chmod(0o775)  # Now new folders do not have that group.
    with pytest.raises(RunExistsError, match="belongs to user nobody"):
        opened_run(tmp_path, if_exists="resume")


def test_folder_that_all_users_may_write_is_refused_unless_that_is_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one").chmod(0o777)
    with pytest.raises(RunExistsError, match="may be written by all users, so that") as e:
        opened_run(tmp_path)
    assert f"closed to them by chmod o-w {tmp_path / 'one'}." in str(e.value)
    monkeypatch.setenv("SPARKDL_PERMISSIONS", "777")
    assert opened_run(tmp_path) == tmp_path / "one"


def test_mount_that_shows_all_folders_as_open_or_of_one_user_is_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_mount(path: Path) -> os.stat_result:
        seen = [*os.stat(path)]
        return os.stat_result([seen[0] | 0o777, *seen[1:4], OTHER, OTHER, *seen[6:]])

    monkeypatch.setattr(foreign_folder, "_new_folder_beside", of_mount)
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
