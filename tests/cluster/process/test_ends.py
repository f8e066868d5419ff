"""The ends of training processes, and of the processes that start and watch them."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.outcome import classify_failure
from sparkdl.cluster.process import (
    fork_server,
    memory_kills,
    server_connection,
    server_folder,
    time_limits,
)
from sparkdl.cluster.process import training_process as module
from sparkdl.cluster.process.memory_kills import MemoryKills
from sparkdl.cluster.process.server_connection import Start, connect
from sparkdl.cluster.process.server_folder import locked, private_folder, sweep
from sparkdl.cluster.process.training_process import StartTimeoutError, TrainingProcess
from sparkdl.errors import InvalidTrial, TrialPruned
from sparkdl.host.os_processes import kill_marked, parent, process_state
from sparkdl.runs.states import Failure
from tests.cluster.process.test_training_process import ALONE, outputs_of, payload, run
from tests.helpers.processes import eventually, is_alive

SHARED = Start(application="ends")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files of this process and of its fork servers."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    for log in folder.glob("sparkdl-*/*/log.txt"):
        print(log.read_text())


def start(function: Any, folder: Path, how: Start = ALONE, **fields: Any) -> TrainingProcess:
    return TrainingProcess(how, payload(function, folder), folder / "log.txt", **fields)


def starts_a_program(folder: Path) -> Callable[[], None]:
    """A function that starts a program in a session of its own, and waits."""

    def train() -> None:
        program = subprocess.Popen(["sleep", "300"], start_new_session=True)
        pids = f"{os.getpid()} {program.pid} {os.getppid()}"
        (folder / "pids.part").write_text(pids)
        (folder / "pids.part").rename(folder / "pids")
        signal.pause()

    return train


def pids_in(folder: Path) -> list[int]:
    file = folder / "pids"
    assert eventually(file.exists)
    return [int(pid) for pid in file.read_text().split()]


# ---- the end after the function has returned


def test_threads_that_are_no_daemons_finish_before_exit_functions(tmp_path: Path) -> None:
    def train() -> int:
        import atexit
        from concurrent.futures import ThreadPoolExecutor
        from threading import Thread

        def write(name: str) -> None:
            time.sleep(0.3)
            print(f"{name}\n", end="")  # At once, as the other one prints at the same time.

        atexit.register(print, "exit function")
        Thread(target=write, args=("thread",)).start()
        ThreadPoolExecutor(1).submit(write, "future")
        return 1

    assert outputs_of(run(train, tmp_path)) == {"value": 1}
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert set(lines[:2]) == {"thread", "future"}
    assert lines[2:] == ["exit function"]


@pytest.mark.parametrize("fails", [False, True])
def test_an_outcome_is_kept_though_the_disk_of_the_log_is_full(tmp_path: Path, fails: bool) -> None:
    def train() -> int:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, 1)
        os.dup2(full, 2)
        sys.stdout.write("a line without an end")
        if fails:
            raise ValueError("wrong")
        return 1

    end = run(train, tmp_path)
    assert end.outcome is not None
    assert (end.outcome.error or "").startswith("ValueError: wrong" if fails else "")
    assert end.outcome.outputs == ({} if fails else {"value": 1})
    assert end.code == 0


def test_an_exit_function_that_hangs_does_not_hold_the_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> int:
        import atexit

        atexit.register(time.sleep, 1e6)
        return 1

    monkeypatch.setattr(time_limits, "EXIT_S", 0.5)
    end = run(train, tmp_path)
    assert (outputs_of(end), end.timed_out, end.is_failure) == ({"value": 1}, False, False)
    assert "did not end within 0.5 s" in (tmp_path / "log.txt").read_text()


# ---- processes that do not start, or do not end


def test_a_function_that_is_never_called_is_told_as_such(tmp_path: Path) -> None:
    class Slow:
        def __reduce__(self) -> Any:
            return time.sleep, (1e6,)

    slow = Slow()
    with start(lambda: slow, tmp_path) as process:
        end = process.wait(timeout_s=0.1, start_s=1.0)
    assert end.late and end.stopped and "not called within 1 s" in end.stopped
    assert classify_failure(end) is Failure.DEADLINE


def test_a_process_that_cannot_be_ended_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped monitor does not report the end of its process, as if that were in state D."""
    monkeypatch.setattr(module, "UNKILLABLE_S", 0.5)
    with start(starts_a_program(tmp_path), tmp_path) as process:
        _, program, monitor = pids_in(tmp_path)
        os.kill(monitor, signal.SIGSTOP)
        try:
            end = process.wait(timeout_s=0.1)
        finally:
            os.kill(monitor, signal.SIGCONT)
    assert end.timed_out and end.unkillable
    assert "could not be ended within 0.5 s" in end.unkillable
    assert "could not be ended" in (tmp_path / "log.txt").read_text()
    assert eventually(lambda: not is_alive(program))


def test_a_preload_that_hangs_ends_the_start_and_the_fork_server(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs_at_import.py").write_text("import time; time.sleep(1e6)")
    monkeypatch.syspath_prepend(str(tmp_path))
    hanging = Start(application="hangs", preload=("hangs_at_import",), shared=False)
    with pytest.raises(StartTimeoutError, match="timed out after 1 s while the fork server"):
        start(lambda: 1, tmp_path, hanging, timeout_s=1.0)
    (folder,) = private_folder().iterdir()
    assert eventually(lambda: not is_served(folder))


def is_served(folder: Path) -> bool:
    try:
        server_folder.dial(folder).close()
    except ConnectionRefusedError:
        return False
    return True


# ---- processes that the function has forked


def forks(end: Callable[[], Any]) -> Callable[[Path, Any], Any]:
    """A training function whose forked process leaves it by calling `end`."""

    def train(end: Callable[[], Any] = end) -> dict[str, int]:
        import atexit

        atexit.register(print, "bye")
        print("begin")
        pid = os.fork()
        if pid == 0:
            print("forked")
            return end()  # type: ignore[no-any-return]
        _, status = os.waitpid(pid, 0)
        return {"score": 1, "code": os.waitstatus_to_exitcode(status)}

    return train


def raises(exc: BaseException) -> Any:
    raise exc


@pytest.mark.parametrize("how", [ALONE, SHARED], ids=["alone", "shared"])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda: {"score": 2, "model": "weights.txt"}, 0),
        (lambda: object(), 0),
        (lambda: raises(ValueError("of the fork")), 1),
        (lambda: raises(TrialPruned("of the fork")), 1),
        (lambda: raises(InvalidTrial("of the fork")), 1),
        (lambda: sys.exit(3), 3),
        (lambda: sys.exit(), 0),
        (lambda: sys.exit("of the fork"), 1),
        (lambda: os._exit(4), 4),
    ],
    ids=["file", "object", "raises", "pruned", "invalid", "exit 3", "exit", "exit text", "_exit"],
)
def test_a_forked_process_does_not_report(
    end: Callable[[], Any], code: int, how: Start, tmp_path: Path
) -> None:
    (tmp_path / "weights.txt").touch()
    with start(forks(end), tmp_path, how) as process:
        ended = process.wait()
    assert ended.code == 0
    assert outputs_of(ended) == {"score": 1, "code": code}
    assert not (tmp_path / "artifacts").exists()
    log = (tmp_path / "log.txt").read_text()
    assert [log.count(f"{text}\n") for text in ("begin", "forked", "bye")] == [1, 1, 1]
    assert log.count("is not the result of the trial") == (code != 4)
    assert ("ValueError: of the fork" in log) == ("raises" in log and "ValueError" in log)


def test_a_forked_process_that_ends_after_the_function_does_not_report(tmp_path: Path) -> None:
    def train() -> int:
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)  # Until the first process closes its end.
            return 2
        return 1

    assert outputs_of(run(train, tmp_path)) == {"value": 1}


def test_processes_of_multiprocessing_return_their_own_values(tmp_path: Path) -> None:
    def train() -> list[int]:
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, [-1, -2])

    assert outputs_of(run(train, tmp_path)) == {"value": [1, 2]}


# ---- orphans, temporary files, descriptors


def test_orphans_of_a_training_process_are_reaped(tmp_path: Path) -> None:
    def train() -> int:
        orphans = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                orphan = os.fork()
                if orphan == 0:
                    os._exit(0)
                Path(tmp_path, str(orphan)).touch()
                os._exit(0)
            os.waitpid(pid, 0)
        orphans = [int(path.name) for path in tmp_path.glob("[0-9]*")]
        deadline = time.monotonic() + 120
        while any(process_state(pid) for pid in orphans) and time.monotonic() < deadline:
            time.sleep(0.05)
        return sum(bool(process_state(pid)) for pid in orphans)

    assert outputs_of(run(train, tmp_path)) == {"value": 0}


@pytest.mark.parametrize("how", ["returns", "killed", "task gone"])
def test_temporary_files_go_with_the_process(how: str, tmp_path: Path, temporary: Path) -> None:
    def train() -> int:
        import tempfile

        folder = tempfile.mkdtemp()
        Path(folder, "model").write_text("weights")
        (tmp_path / "where").write_text(tempfile.gettempdir())
        if how != "returns":
            time.sleep(1e6)
        return 1

    with start(train, tmp_path) as process:
        where = tmp_path / "where"
        assert eventually(lambda: where.exists() and where.read_text())
        if how != "task gone":
            process.wait(timeout_s=0.1 if how == "killed" else None)
    assert Path(where.read_text()).parent == temporary
    assert eventually(lambda: not list(temporary.iterdir()))


def test_temporary_files_are_on_sparks_disk_under_a_short_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, trial = tmp_path / ("disk" * 30), tmp_path / "trial"
    disk.mkdir()
    trial.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(disk))
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def train() -> dict[str, str]:
        import multiprocessing.connection
        import tempfile

        # A long path would be refused as the address of a Unix socket.
        multiprocessing.connection.Listener(family="AF_UNIX").close()
        Path(tempfile.gettempdir(), "file").touch()
        return {"real": os.path.realpath(tempfile.gettempdir())}

    outputs = outputs_of(run(train, trial))
    assert Path(outputs["real"]).parent == disk
    assert eventually(lambda: not [*disk.iterdir(), *temporary.iterdir()])
    temporary.rmdir()


def test_a_start_that_fails_leaves_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(start: Start) -> socket.socket:
        raise ConnectionError("no server")

    monkeypatch.setattr(module, "connect", refuse)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(ConnectionError, match="no server"):
            start(lambda: 1, tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_locks_are_held_until_the_process_has_ended(tmp_path: Path) -> None:
    import fcntl

    lock = os.open(tmp_path / "gpu.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with start(starts_a_program(tmp_path), tmp_path, held=[lock]):
        _, _, monitor = pids_in(tmp_path)
        os.close(lock)  # The task is over, and its process is not.
        os.kill(monitor, signal.SIGSTOP)
    try:
        other = os.open(tmp_path / "gpu.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(monitor, signal.SIGCONT)
    fcntl.flock(other, fcntl.LOCK_EX)
    os.close(other)


# ---- the deaths of the fork server and of the monitor


def test_training_goes_on_when_the_fork_server_is_killed(tmp_path: Path, temporary: Path) -> None:
    def train() -> int:
        (tmp_path / "pids.part").write_text(f"{os.getpid()} {os.getpid()} {os.getppid()}")
        (tmp_path / "pids.part").rename(tmp_path / "pids")
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return 7

    with start(train, tmp_path, SHARED) as process:
        _, _, monitor = pids_in(tmp_path)
        server = parent(monitor)
        assert server and server != os.getpid()
        os.kill(server, signal.SIGKILL)
        assert eventually(lambda: not is_alive(server))
        (tmp_path / "go").touch()
        assert outputs_of(process.wait()) == {"value": 7}
    # The next server removes what the killed one has left.
    (stale,) = private_folder().iterdir()
    other = Start(application="another")
    connect(other).close()
    assert eventually(lambda: not stale.exists())


def test_everything_ends_with_a_killed_monitor(tmp_path: Path, temporary: Path) -> None:
    with start(starts_a_program(tmp_path), tmp_path) as process:
        pids = pids_in(tmp_path)
        os.kill(pids[2], signal.SIGKILL)
        with pytest.raises(ConnectionError, match="was killed on host"):
            process.wait()
    assert eventually(lambda: not any(is_alive(pid) for pid in pids))
    assert eventually(lambda: not list(temporary.iterdir()))


def test_programs_without_a_living_ancestor_are_found_by_their_mark(tmp_path: Path) -> None:
    mark = f"SPARKDL_PROCESS={tmp_path}"
    programs = [
        subprocess.Popen(
            ["sleep", "300"],
            env={"PATH": os.environ["PATH"], **dict([variable.split("=")])},
            start_new_session=True,
        )
        for variable in (mark, "SPARKDL_PROCESS=other")
    ]
    try:
        # The variable is there when the program has replaced its parent's image.
        environ = Path(f"/proc/{programs[0].pid}/environ")
        assert eventually(lambda: mark.encode() in environ.read_bytes())
        kill_marked(mark, session=-1)
        assert programs[0].wait(120) == -signal.SIGKILL
        assert programs[1].poll() is None
    finally:
        for program in programs:
            program.kill()
            program.wait()


def test_training_processes_are_killed_for_memory_before_others(tmp_path: Path) -> None:
    def train() -> dict[str, int]:
        scores = (Path(f"/proc/{pid}/oom_score_adj") for pid in (os.getpid(), os.getppid()))
        mine, monitors = (int(score.read_text()) for score in scores)
        return {"mine": mine, "monitors": monitors}

    outputs = outputs_of(run(train, tmp_path))
    assert outputs["mine"] > outputs["monitors"]


def test_a_kill_for_memory_counts_only_in_the_own_group_and_if_it_is_recent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = tmp_path / "vmstat"
    host.write_text("oom_kill 5\n")
    groups = tmp_path / "groups"
    groups.write_text("0::/pod/one\n")
    own = tmp_path / "cgroup" / "pod" / "one" / "memory.events"
    own.parent.mkdir(parents=True)
    own.write_text("oom 0\noom_kill 2\n")
    monkeypatch.setattr(memory_kills, "HOST", host)
    monkeypatch.setattr(memory_kills, "OWN_CGROUPS", groups)
    monkeypatch.setattr(memory_kills, "CGROUPS", tmp_path / "cgroup")
    kills = MemoryKills()
    host.write_text("oom_kill 6\n")  # Another pod's process.
    assert not kills.rose()
    own.write_text("oom 0\noom_kill 3\n")
    assert kills.rose()
    monkeypatch.setattr(memory_kills, "RECENT_S", 0.1)
    time.sleep(0.2)
    kills.sample()
    time.sleep(0.2)
    assert not kills.rose()
    # Without a count of the group, the host's decides, in the same way.
    groups.write_text("")
    kills = MemoryKills()
    host.write_text("oom_kill 7\n")
    assert kills.rose()


# ---- the fork server


def serve(folder: Path, idle_s: float) -> socket.socket:
    """Start a fork server with another idle time; return a connection, which keeps it alive."""
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from sparkdl.cluster.process import fork_server\n"
        f"fork_server.IDLE_S = {idle_s}\n"
        f"fork_server.main({str(folder)!r})\n"
    )
    with locked(folder.parent):
        folder.mkdir(mode=0o700)
        subprocess.run([sys.executable, "-c", program], check=True, stdin=subprocess.DEVNULL)
        return server_folder.dial(folder)


def test_an_idle_fork_server_ends_though_its_executor_lives(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "_server_key", lambda start: "0" * 16)
    folder = private_folder() / ("0" * 16)
    with serve(folder, idle_s=3.0):
        server_connection.warm(SHARED)  # The lease is that of this process's parent, which goes on.
    assert outputs_of(end_of(lambda: 5, tmp_path, SHARED)) == {"value": 5}
    ended = time.monotonic()
    time.sleep(1.5)
    assert folder.exists() or time.monotonic() - ended > 2.5
    assert eventually(lambda: not list(temporary.iterdir()))


def end_of(function: Any, folder: Path, how: Start) -> Any:
    with start(function, folder, how) as process:
        return process.wait()


def test_a_fork_server_leaves_the_folder_of_its_successor_alone(
    tmp_path: Path, temporary: Path
) -> None:
    """Another program has tidied up the folder, and a second server has started there."""
    folder = private_folder() / ("1" * 16)
    first = serve(folder, idle_s=600.0)
    folder.rename(tmp_path / "moved")
    with serve(folder, idle_s=600.0):
        first.close()  # A server without connections and leases ends.
        assert eventually(lambda: not is_served(tmp_path / "moved"))
        time.sleep(0.1)
        assert (folder / "socket").exists()
    assert eventually(lambda: not list(temporary.iterdir()))


def test_only_folders_of_dead_fork_servers_are_swept(tmp_path: Path) -> None:
    for name in ("0" * 16, "1" * 16, "node-0", "2" * 16):
        (tmp_path / name).mkdir()
    listeners = []
    for name in ("0" * 16, "1" * 16, "node-0"):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptor = os.open(tmp_path / name, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{descriptor}/socket")
        os.close(descriptor)
        listeners.append(listener)
    listeners[1].listen()
    for dead in (listeners[0], listeners[2]):
        dead.close()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1" * 16, "node-0"]
    listeners[1].close()


def test_links_to_folders_that_are_gone_are_swept(tmp_path: Path) -> None:
    """The processes that remove such a link were all killed, and Spark has removed the folder."""
    base = tmp_path / "sparkdl-0"
    base.mkdir()
    (tmp_path / "sparkdl-0123456789ab").symlink_to(tmp_path / "gone")
    (tmp_path / "sparkdl-ab0123456789").symlink_to(base)
    (tmp_path / "sparkdl-mine").symlink_to(tmp_path / "gone")
    sweep(base)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["sparkdl-0", "sparkdl-ab0123456789", "sparkdl-mine"]


def test_the_lock_of_a_stopped_worker_is_not_waited_for_without_limit(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(TimeoutError, match="release the lock of"):
        locked(tmp_path, timeout_s=0.2).__enter__()


def test_a_worker_whose_daemon_has_died_starts_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with pytest.raises(ConnectionError, match="daemon"):
        server_connection.packet(SHARED)


def test_a_server_without_free_descriptors_waits(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that cannot be accepted must not turn the loop into a busy one."""
    monkeypatch.setattr(fork_server, "PAUSE_S", 1e6)
    folder = private_folder() / ("3" * 16)
    folder.mkdir()
    accepted = []

    class Full:
        def __init__(self, listener: socket.socket) -> None:
            self._listener = listener

        def fileno(self) -> int:
            return self._listener.fileno()

        def accept(self) -> Any:
            accepted.append(time.monotonic())
            raise OSError(24, "Too many open files")

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        descriptor = os.open(folder, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{descriptor}/socket")
        os.close(descriptor)
        listener.listen()
        client = server_folder.dial(folder)
        previous = signal.getsignal(signal.SIGCHLD)
        server = fork_server._Server(folder, None, Full(listener))  # type: ignore[arg-type]
        try:
            for _ in range(20):
                for key, _ in server._selector.select(timeout=0.01):
                    if key.fileobj is server._listener:
                        server._accept()
                server._tend()
        finally:
            server._wakeup.close()
            signal.signal(signal.SIGCHLD, previous)
            client.close()
    assert len(accepted) == 1


def test_a_training_process_has_no_descriptors_of_others(tmp_path: Path) -> None:
    def train() -> dict[str, str]:
        return {
            name: os.readlink(f"/proc/self/fd/{name}")
            for name in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{name}") or os.path.islink(f"/proc/self/fd/{name}")
        }

    with start(starts_a_program(tmp_path), tmp_path, SHARED):
        pids_in(tmp_path)
        outputs = outputs_of(end_of(train, tmp_path, SHARED))
    places = [place for name, place in outputs.items() if int(name) > 2]
    assert len([place for place in places if place.startswith("socket:")]) == 1, outputs
    assert len(places) <= 3, outputs
