"""Two drivers never run the same run; a dead owner does not block a run."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sparkdl.runs import owner as owners
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.owner import Owner, describe_owner, living_owner


def test_owner_is_living_until_it_releases_the_run(root: str) -> None:
    paths = RunPaths(root)
    assert living_owner(paths) is None
    owner = Owner(paths)
    owner.hold()
    living = living_owner(paths)
    assert living
    assert describe_owner(living) == f"process {os.getpid()} on host {socket.gethostname()}"
    owner.release()
    assert living_owner(paths) is None


def test_living_owner_of_a_killed_process_is_none(root: str) -> None:
    code = (
        "import sys, time\nfrom sparkdl.runs.layout import RunPaths\n"
        "from sparkdl.runs.owner import Owner\n"
        "Owner(RunPaths(sys.argv[1])).hold()\nprint('beating', flush=True)\ntime.sleep(60)"
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
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "started": 1, "beat": 1}
    mine["namespace"] = os.readlink("/proc/self/ns/pid")
    Path(root, "owner.json").write_text(json.dumps(mine))
    assert living_owner(RunPaths(root)) is None


@pytest.mark.parametrize("beats", [True, False])
def test_living_owner_on_another_host_is_decided_by_heartbeats(
    root: str, beats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "BEAT_S", 0.2)
    path = Path(root, "owner.json")
    other = {"host": "elsewhere", "pid": 1, "started": 1, "beat": 1}
    path.write_text(json.dumps(other))
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.1):
            other["beat"] = int(other["beat"]) + 1
            path.with_name("aside").write_text(json.dumps(other))
            path.with_name("aside").replace(path)

    thread = threading.Thread(target=beat)
    if beats:
        thread.start()
    living = living_owner(RunPaths(root))
    stop.set()
    if beats:
        thread.join()
    assert bool(living) is beats
