"""Two drivers never run the same run; a dead one does not stand in the way."""

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


def test_this_process_lives_until_it_lets_go(root: str) -> None:
    paths = RunPaths(root)
    assert living_owner(paths) is None
    owner = Owner(paths)
    owner.hold()
    found = living_owner(paths)
    assert found
    assert describe_owner(found) == f"process {os.getpid()} on host {socket.gethostname()}"
    owner.release()
    assert living_owner(paths) is None


def test_a_killed_process_is_dead(root: str) -> None:
    code = (
        "import sys, time\nfrom sparkdl.runs.layout import RunPaths\n"
        "from sparkdl.runs.owner import Owner\n"
        "Owner(RunPaths(sys.argv[1])).hold()\nprint('beating', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, root], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        found = living_owner(RunPaths(root))
        assert found
        assert found["pid"] == process.pid
        process.kill()
    assert living_owner(RunPaths(root)) is None


def test_a_reused_pid_is_another_process(root: str) -> None:
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "started": 1, "beat": 1}
    mine["namespace"] = os.readlink("/proc/self/ns/pid")
    Path(root, "owner.json").write_text(json.dumps(mine))
    assert living_owner(RunPaths(root)) is None


@pytest.mark.parametrize("beats", [True, False])
def test_on_another_host_beats_decide(
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
    found = living_owner(RunPaths(root))
    stop.set()
    if beats:
        thread.join()
    assert bool(found) is beats
