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
from sparkdl.errors import ConfigError
from sparkdl.runner.execute import description_of
from sparkdl.runner.prepare import prepare
from sparkdl.runs.history import read_rows
from sparkdl.runs.opening import open_run
from tests.helpers.in_memory_cluster import InMemoryCluster
from tests.helpers.loops import request_of


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def opened_mode(root: Path, run_id: str = "one") -> int:
    """Open a run as a verb does; return the permissions of its directory."""
    request = replace(request_of(root=str(root), run_id=run_id), params=[{"x": 1}])
    prepared = prepare(request, pack(request.called), InMemoryCluster())
    open_run(str(root), description_of(prepared), "error").owner.release()
    return stat.S_IMODE((root / run_id).stat().st_mode)


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


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
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
        os.seteuid(65534)
        try:
            rows, unreadable = read_rows(folder)
        finally:
            os.seteuid(0)
    assert [row["run"] for row in rows] == ["shared"]
    assert [Path(path).name for path in unreadable] == ["secret"]
