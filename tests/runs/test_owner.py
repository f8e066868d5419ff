"""Two drivers never run the same run; a dead owner does not block a run."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runs import owner as owners
from sparkdl.runs.owner import Owner, OwnerWatch, describe_owner, living_owner, newest_claim
from tests.helpers.processes import eventually


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "BEAT_S", 0.2)


@pytest.fixture(params=["local", "store", pytest.param("s3", marks=pytest.mark.slow)])
def paths(request: pytest.FixtureRequest, root: str) -> RunPaths:
    if request.param == "s3":
        return RunPaths(f"{request.getfixturevalue('s3')}/{uuid4().hex}")
    return RunPaths(root if request.param == "local" else f"memory://{uuid4().hex}/run")


def claimed(paths: RunPaths, number: int = 1) -> Owner:
    owner = Owner(paths)
    owner.claim(number)
    return owner


def test_owner_is_living_until_it_releases_the_run(paths: RunPaths) -> None:
    assert living_owner(paths) is None
    owner = claimed(paths)
    living = living_owner(paths)
    assert living
    assert describe_owner(living) == f"process {os.getpid()} on host {socket.gethostname()}"
    owner.release()
    assert living_owner(paths) is None
    assert newest_claim(paths).number == 1


def test_only_one_driver_can_claim_a_number(paths: RunPaths) -> None:
    barrier, won = threading.Barrier(4), []

    def claim() -> None:
        owner = Owner(paths)
        barrier.wait()
        try:
            owner.claim(1)
        except FileExistsError:
            return
        won.append(owner)

    if paths.folder.startswith("memory://"):
        pytest.skip("the store in memory is not made for threads")
    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    won[0].release()
    with pytest.raises(FileExistsError):
        claimed(paths, 1)
    claimed(paths, 2).release()


@pytest.mark.usefixtures("quick")
def test_owner_notices_that_another_driver_has_taken_over(paths: RunPaths) -> None:
    old, calls = claimed(paths), []
    old.when_taken_over(lambda: calls.append(1))
    assert not old.is_taken_over
    new = claimed(paths, 2)
    assert eventually(lambda: calls == [1])
    assert old.is_taken_over
    assert not new.is_taken_over
    old.when_taken_over(lambda: calls.append(2))
    assert calls == [1, 2]
    new.release()


def test_living_owner_of_a_killed_process_is_none(root: str) -> None:
    code = (
        "import sys, time\nfrom sparkdl.files.layout import RunPaths\n"
        "from sparkdl.runs.owner import Owner\n"
        "Owner(RunPaths(sys.argv[1])).claim(1)\nprint('beating', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, root], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        living = living_owner(RunPaths(root))
        assert living
        assert living["pid"] == process.pid
        process.kill()
    assert living_owner(RunPaths(root)) is None


def test_living_owner_of_a_reused_pid_is_none(root: str) -> None:
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "started": 1}
    mine["namespace"] = os.readlink("/proc/self/ns/pid")
    storage.write(f"{RunPaths(root).owners}/1.json", json.dumps(mine))
    storage.write(f"{RunPaths(root).owners}/1.beat", "{}")
    assert living_owner(RunPaths(root)) is None


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("beats", [True, False])
@pytest.mark.parametrize("content", ['{"host": "elsewhere", "pid": 1, "started": 1}', ""])
def test_living_owner_on_another_host_is_decided_by_heartbeats(
    root: str, beats: bool, content: str
) -> None:
    folder = Path(RunPaths(root).owners)
    storage.write(f"{folder}/1.json", content)  # Some stores show a file before its content.
    storage.write(f"{folder}/1.beat", '{"beat": 0, "time": 1}')
    stop = threading.Event()

    def beat() -> None:
        number = 0
        while not stop.wait(0.05):
            number += 1
            storage.write(f"{folder}/1.beat", json.dumps({"beat": number, "time": 1}))

    thread = threading.Thread(target=beat)
    if beats:
        thread.start()
    living = living_owner(RunPaths(root))
    stop.set()
    if beats:
        thread.join()
    assert bool(living) is beats


@pytest.mark.usefixtures("quick")
def test_watch_tells_from_look_to_look_whether_a_driver_elsewhere_lives(
    root: str, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, beat = RunPaths(root), Path(root, "owner", "1.beat")
    watch = OwnerWatch(paths)
    assert not watch.sees_driver()
    owner = claimed(paths)
    assert watch.sees_driver()  # It is in the process table.
    monkeypatch.setattr(owners, "is_here", lambda process: False)
    assert watch.sees_driver()
    owner._release.set()  # It is silent from now on.
    assert eventually(lambda: not watch.sees_driver())
    beat.write_text('{"beat": 99, "time": 0}')  # It was only slow, and has a wrong clock.
    assert watch.sees_driver()
    assert not OwnerWatch(paths).sees_driver()  # At the first look, the time is all there is.
    owner._write_end()
    assert not watch.sees_driver()


@pytest.mark.usefixtures("quick")
def test_heartbeats_go_on_after_a_store_failed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = claimed(RunPaths(root))
    beat = Path(RunPaths(root).owners, "1.beat")
    assert eventually(beat.exists)
    write = storage.write

    has_failed = threading.Event()

    def fails(url: str, data: bytes | str) -> None:
        has_failed.set()
        raise OSError("the store is busy")

    monkeypatch.setattr(storage, "write", fails)
    assert has_failed.wait(120)  # The last heartbeat is written.
    before = beat.read_bytes()
    assert not eventually(lambda: beat.read_bytes() != before, 0.3)
    owner.release()  # Is tried again as soon as the store works.
    monkeypatch.setattr(storage, "write", write)
    assert eventually(lambda: living_owner(RunPaths(root)) is None)


def test_run_is_released_where_the_disk_is_full(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = claimed(RunPaths(root))
    write = storage.write

    def fails(url: str, data: bytes | str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "write", fails)
    owner.release()
    assert living_owner(RunPaths(root)) is None
    monkeypatch.setattr(storage, "write", write)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == "sparkdl-release":
            thread.join(120.0)
