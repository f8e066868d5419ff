"""Training processes without Spark: how they start, end, and take everything with them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sparkdl.cluster.outcome import ProcessExit
from sparkdl.cluster.process.server_connection import Start
from sparkdl.cluster.process.server_folder import locked, private_folder
from sparkdl.cluster.process.training_process import TrainingProcess
from tests.helpers.processes import eventually

ALONE = Start(application="test", shared=False)


def payload(function: Any, folder: Path, **params: Any) -> dict[str, Any]:
    return {
        "function": cloudpickle.dumps(function),
        "modules": {},
        "path": sys.path,
        "cwd": str(folder),
        "environ": {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        "context": {"run": "r", "params": params, "seed": 1, "folder": str(folder)},
        "metrics": [None],
        "secrets": [],
    }


def run(function: Any, folder: Path, timeout_s: float | None = None, **params: Any) -> ProcessExit:
    with TrainingProcess(ALONE, payload(function, folder, **params), folder / "log.txt") as one:
        return one.wait(timeout_s)


def outputs_of(end: ProcessExit) -> Any:
    assert end.outcome is not None
    return end.outcome.outputs


def test_outcome_output_and_usage(tmp_path: Path) -> None:
    def train(x: int) -> int:
        print("to stdout")
        os.write(2, b"to stderr\n")
        sum(range(3_000_000))
        return x + 1

    end = run(train, tmp_path, x=1)
    assert end.code == 0
    assert outputs_of(end) == {"value": 2}
    assert (tmp_path / "log.txt").read_text() == "to stdout\nto stderr\n"
    assert end.cpu_s > 0.01
    assert end.peak_memory_mb > 5
    assert end.running_s > 0


def test_exit_functions_run_and_stdin_is_empty(tmp_path: Path) -> None:
    def train() -> int:
        import atexit

        atexit.register(print, "bye")
        return len(sys.stdin.read())

    assert outputs_of(run(train, tmp_path)) == {"value": 0}
    assert (tmp_path / "log.txt").read_text() == "bye\n"


def test_the_working_directory_of_a_next_attempt_stays(tmp_path: Path) -> None:
    """It has the name of the directory of the lost attempt, which ends by itself a moment later."""
    work, moved = tmp_path / "work", tmp_path / "moved"

    def train() -> None:
        work.rename(moved)
        work.mkdir()

    asked = {**payload(train, tmp_path), "cwd": str(work)}
    with TrainingProcess(ALONE, asked, tmp_path / "log.txt") as one:
        assert one.wait().code == 0
    assert work.exists() and not moved.exists()


def test_an_error_in_a_removed_working_directory_is_told(tmp_path: Path) -> None:
    work = tmp_path / "work"

    def train() -> None:
        work.rmdir()
        Path("model").mkdir()

    asked = {**payload(train, tmp_path), "cwd": str(work)}
    with TrainingProcess(ALONE, asked, tmp_path / "log.txt") as one:
        outcome = one.wait().outcome
    assert outcome is not None and outcome.error
    assert outcome.error.startswith("FileNotFoundError") and "model" in outcome.error


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_signals(number: signal.Signals, tmp_path: Path) -> None:
    end = run(lambda: os.kill(os.getpid(), number), tmp_path)
    assert (end.code, end.outcome) == (-number, None)


def test_folder_that_an_ending_server_removes_is_made_again() -> None:
    folder, is_over = private_folder(), threading.Event()

    def remove() -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                folder.rmdir()

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        for _ in range(2000):
            private_folder()
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("container", ["container_1_0001_01_000002", None])
def test_yarn_finds_the_fork_server_in_the_session_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, container: str | None
) -> None:
    """YARN counts the descendants of the processes that are in the session of a container."""

    def train() -> int:
        from sparkdl.host.os_processes import parent

        server = parent(os.getppid())
        assert server and os.getpgid(server) == server  # Ctrl-C at a terminal does not reach it.
        return os.getsid(server)

    if container:
        monkeypatch.setenv("CONTAINER_ID", container)
    session = outputs_of(run(train, tmp_path))["value"]
    assert (session == os.getsid(0)) is bool(container)


def test_timeout_kills_descendants_too(tmp_path: Path) -> None:
    def train() -> None:
        here = subprocess.Popen(["sleep", "300"])
        away = subprocess.Popen(["sleep", "300"], start_new_session=True)
        forked = os.fork()
        if forked == 0:
            os.setsid()
            signal.pause()
        (tmp_path / "pids").write_text(f"{here.pid} {away.pid} {forked}")
        signal.pause()

    file = tmp_path / "pids"
    with TrainingProcess(ALONE, payload(train, tmp_path), tmp_path / "log.txt") as process:
        assert eventually(lambda: file.exists() and file.read_text())
        assert process.wait(timeout_s=0.1).timed_out
    pids = [int(pid) for pid in file.read_text().split()]
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_grandchild_that_holds_everything_open_does_not_delay_the_end(tmp_path: Path) -> None:
    def train() -> int:
        if os.fork() == 0:
            os.setsid()
            signal.pause()
        return 1

    assert outputs_of(run(train, tmp_path)) == {"value": 1}


TASK = """
import os, sys, time
from pathlib import Path
from tests.cluster.process.test_training_process import ALONE, payload
from sparkdl.cluster.process.server_connection import Start
from sparkdl.cluster.process.training_process import TrainingProcess
folder = Path(sys.argv[1])
def train():
    import os, signal
    (folder / "pid").write_text(f"{os.getpid()} {os.getppid()}")
    signal.pause()
start = Start(application="app", shared=sys.argv[2] == "shared")
scratch = folder / "scratch"
scratch.mkdir()
with TrainingProcess(start, payload(train, folder), folder / "log.txt", scratch) as process:
    process.wait()
"""


@pytest.mark.parametrize("how", ["shared", "alone"])
def test_it_dies_with_its_task(how: str, tmp_path: Path) -> None:
    """Also when the task is killed: process, fork server, socket and scratch folder go."""
    # Two generations, as in Spark: the fork server lives as long as the parent of the task.
    parent = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    command = [sys.executable, "-c", parent, sys.executable, "-c", TASK, str(tmp_path), how]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        command,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
    )
    pid_file = tmp_path / "pid"
    assert eventually(lambda: pid_file.exists() and pid_file.read_text())
    pids = [int(pid) for pid in pid_file.read_text().split()]
    assert len(list(temporary.glob("sparkdl-*/*/socket"))) == 1
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert eventually(lambda: not (tmp_path / "scratch").exists())
    assert eventually(lambda: not list(temporary.iterdir()))


def test_a_stranger_cannot_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="expected user"):
        private_folder()


def test_locks(tmp_path: Path) -> None:
    with locked(tmp_path) as first, locked(tmp_path, wait=False) as second:
        assert (first, second) == (True, False)
    with locked(tmp_path / "absent") as held:
        assert not held
    order: list[str] = []
    with locked(tmp_path):

        def other() -> None:
            with locked(tmp_path):
                order.append("second")

        thread = threading.Thread(target=other)
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


KEY = """
from sparkdl.cluster.process.server_connection import Start, _server_key
print(_server_key(Start(application="app")))
"""


def test_hosts_that_share_a_disk_have_fork_servers_of_their_own() -> None:
    here = [sys.executable, "-c", KEY]
    alone = ["unshare", "--user", "--map-root-user", "--net", *here]
    if subprocess.run([*alone[:4], "true"], capture_output=True).returncode:
        pytest.skip("network namespaces cannot be made here")
    keys = [subprocess.check_output(command) for command in (here, here, alone)]
    assert keys[0] == keys[1] != keys[2]


def test_a_stale_socket_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server that was killed leaves its socket; the next task starts another."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(
        "sparkdl.cluster.process.server_connection._server_key", lambda start: "0" * 16
    )
    folder = private_folder() / ("0" * 16)
    folder.mkdir()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead,
        monkeypatch.context() as patch,
    ):
        patch.chdir(folder)  # The path of a socket is short.
        dead.bind("socket")
    assert outputs_of(run(lambda: 5, tmp_path)) == {"value": 5}
    assert eventually(lambda: not (tmp_path / f"sparkdl-{os.getuid()}").exists())
