"""The task of a trial without Spark: what it does when something around the function fails."""

import contextlib
import ctypes
import json
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl import context
from sparkdl.cluster import task_outcome, trial_task
from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.process import training_process, trial_folder
from sparkdl.cluster.process.server_connection import Start
from sparkdl.cluster.program.packaging import pack
from sparkdl.cluster.trial_spec import RunRef, TrialSpec
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.files import attempts, polling, storage
from sparkdl.host.os_processes import process_state
from sparkdl.runs.states import Failure
from tests.helpers.processes import eventually, is_alive


@pytest.fixture(params=["local", "memory"])
def run_path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = str(tmp_path / "run")
    return path if request.param == "local" else f"memory://{path}"


@pytest.fixture
def local_run(tmp_path: Path) -> str:
    return str(tmp_path / "run")


def task_of(function: Callable[..., Any], run_path: str, **fields: Any) -> TrialTask:
    storage.write(storage.join(run_path, "run.json"), json.dumps({"id": "run"}))
    storage.make_directory(storage.join(run_path, "trials", 0))
    plan = Plan(kind="launch", roles=(Role(name="worker", count=1),), **fields)
    return TrialTask(
        plan=plan,
        program=pack(function),
        run=RunRef(id="run", path=run_path, application="app", versions={}),
        trial=TrialSpec(number=0, params={}, seed=1),
        start=Start(application="app", shared=False),
        cores=1,
    )


def outcome_of(task: TrialTask) -> Outcome:
    (batch,) = task([])
    return Outcome.from_json(batch.column(0)[0].as_py())


def test_relative_names_are_those_of_the_trial(run_path: str) -> None:
    def train() -> dict[str, str]:
        Path("model.keras").write_text("mine")
        return {"model": "model.keras", "cwd": os.getcwd(), "original": context.original_cwd}

    task = task_of(train, run_path)
    before = sorted(os.listdir())
    outcome = outcome_of(task)
    assert outcome.outputs["model"] == "work/model.keras"
    assert outcome.outputs["original"] == os.getcwd()
    assert storage.read(storage.join(task.paths.folder, "work", "model.keras")) == b"mine"
    assert sorted(os.listdir()) == before


def test_an_empty_working_directory_is_removed(local_run: str) -> None:
    task = task_of(lambda: 1, local_run)
    assert outcome_of(task).outputs == {"value": 1}
    assert "work" not in os.listdir(task.paths.folder)


def test_a_relative_input_file_is_told_where_it_is(
    local_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wine.csv").write_text("1")
    monkeypatch.chdir(tmp_path)

    def train() -> None:
        Path("wine.csv").read_text()

    outcome = outcome_of(task_of(train, local_run))
    first = (outcome.error or "").splitlines()[0]
    assert "wine.csv is in" in first and "os.path.join(context.original_cwd, 'wine.csv')" in first


def test_a_finished_training_is_kept_though_its_files_are_not(
    run_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> float:
        context.report({"loss": 0.5})
        return 0.25

    for module in (trial_folder, task_outcome):
        monkeypatch.setattr(module, "WRITE_S", 0.1)
    write, put = storage.write, storage.put

    def full(url: str, data: Any) -> None:
        if url.endswith("outputs.json"):
            raise OSError(28, "No space left on device")
        write(url, data)

    def down(folder: Path, name: str, url: str) -> None:
        if "memory" in url:
            raise OSError("the store is down")
        put(folder, name, url)

    monkeypatch.setattr(storage, "write", full)
    monkeypatch.setattr(storage, "put", down)
    outcome = outcome_of(task_of(train, run_path))
    assert (outcome.status, outcome.outputs) == (Status.RETURNED, {"value": 0.25})
    assert outcome.reported == {"loss": 0.5}
    assert outcome.note and "outputs.json could not be written" in outcome.note
    assert ("the store is down" in outcome.note) == ("memory" in run_path)


def test_a_fault_of_the_host_is_told_as_it_was(
    local_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device: '/tmp/sparkdl-0'")

    task = task_of(lambda: 1, local_run)
    monkeypatch.setattr(trial_task, "TrainingProcess", refuse)
    outcome = outcome_of(task)
    assert outcome.failure is Failure.LOST  # Another attempt may succeed.
    assert (outcome.error or "").startswith("OSError: [Errno 28] No space left on device")


def test_a_fault_of_the_task_is_no_fault_of_a_gpu(
    local_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("sys.path of the executors has 9000 entries")

    task = task_of(lambda: 1, local_run)
    monkeypatch.setattr(trial_task, "TrainingProcess", refuse)
    outcome = outcome_of(task)
    assert outcome.failure is Failure.EXCEPTION
    assert (outcome.error or "").startswith("ValueError: sys.path of the executors")


def test_a_superseded_task_ends_its_process_and_writes_nothing(local_run: str) -> None:
    def train() -> None:
        attempts.take(context.current().folder or "", 1)
        time.sleep(1e6)

    task = task_of(train, local_run)
    with pytest.raises(attempts.SupersededError):
        outcome_of(task)
    assert "outputs.json" not in os.listdir(task.paths.folder)


def test_an_import_that_hangs_ends_the_trial(local_run: str) -> None:
    class Hanging:
        def __reduce__(self) -> Any:
            return time.sleep, (1e6,)

    hanging = Hanging()
    task = task_of(lambda: hanging, local_run, trial_timeout_s=0.5, start_timeout_s=1.5)
    outcome = outcome_of(task)
    assert outcome.failure is Failure.DEADLINE
    assert "its function was not called within 1.5 s" in (outcome.error or "")


class HangingMount:
    """A file system in user space that answers no question about its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fsencode(folder)
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._device = os.open("/dev/fuse", os.O_RDWR)
        except OSError as exc:
            pytest.skip(f"no file systems in user space here: {exc}")
        options = f"fd={self._device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        if self._libc.mount(b"hanging", self._folder, b"fuse", 0, options.encode()):
            os.close(self._device)
            pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}")
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        # The first request asks for the protocol; see fuse_init_in and fuse_init_out in
        # linux/fuse.h. All others are read and never answered.
        request = os.read(self._device, 1 << 18)
        _, _, unique = struct.unpack_from("<IIQ", request)
        body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 1 << 16, 1, 0, 0, 0)
        os.write(self._device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
        with contextlib.suppress(OSError):
            while True:
                os.read(self._device, 1 << 18)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._libc.umount2(self._folder, 1 | 2)  # MNT_FORCE: all requests fail. MNT_DETACH.
        self._thread.join(120)
        os.close(self._device)


@pytest.mark.slow
def test_a_process_that_waits_for_a_dead_file_system_does_not_hold_its_slot(
    local_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    monkeypatch.setattr(training_process, "UNKILLABLE_S", 2.0)

    def train() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        (mount / "data").read_text()

    with HangingMount(mount):
        outcome = outcome_of(task_of(train, local_run, trial_timeout_s=1.0))
        pid = int((tmp_path / "pid").read_text())
        assert process_state(pid) == "D"
    assert outcome.failure is Failure.TIMEOUT
    assert "could not be ended within 2 s; it is in state D" in (outcome.error or "")
    assert eventually(lambda: not is_alive(pid))


def test_an_exception_with_a_secret_is_not_passed_on(local_run: str) -> None:
    def train() -> None:
        raise ValueError(f"cannot log in with {os.environ['TOKEN']}")

    def plain() -> None:
        raise ValueError("cannot log in")

    env = {"TOKEN": "kq7Zw-38fhE_kd93"}
    secrets = (env["TOKEN"],)
    outcome = outcome_of(task_of(train, local_run, env=env, secrets=secrets))
    assert outcome.exception is None
    assert env["TOKEN"] not in outcome.to_json()
    assert (outcome.error or "").startswith("ValueError: cannot log in with ")
    assert outcome_of(task_of(plain, local_run, env=env, secrets=secrets)).exception


def test_a_process_that_is_killed_leaves_no_half_checkpoint(local_run: str) -> None:
    def train() -> None:
        half = Path(context.current().folder or "", "checkpoints", ".0-abc")
        half.mkdir(parents=True)
        (half / "weights").write_text("half")
        os.kill(os.getpid(), 9)

    task = task_of(train, local_run)
    assert outcome_of(task).failure is Failure.SIGNAL
    assert os.listdir(task.paths.checkpoints) == []


def test_a_store_that_fails_for_a_moment_costs_no_attempt(
    run_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(lambda: 1, run_path)
    failed: set[tuple[str, ...]] = set()
    for name in ("read", "create", "write", "list_names", "rename"):
        monkeypatch.setattr(storage, name, failing_once(getattr(storage, name), name, failed))
    monkeypatch.setattr(polling.time, "sleep", lambda _: None)
    for number in range(2):  # The second attempt moves the files of the first one away.
        outcome = outcome_of(replace(task, trial=replace(task.trial, attempt=number)))
        assert (outcome.status, outcome.attempt, outcome.note) == (Status.RETURNED, number, None)
    assert {name for name, *_ in failed} >= {"read", "create", "write", "list_names", "rename"}
    assert storage.exists(storage.join(task.paths.superseded(0), "log.txt"))


def test_files_of_messages_exist_before_the_driver_looks_for_them(
    run_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, write = task_of(lambda: 1, run_path), storage.write
    files: list[str] = []

    def announce(url: str, data: Any) -> None:
        if url == task.paths.attempt(0):
            files.extend(storage.list_names(task.paths.folder))
        write(url, data)

    monkeypatch.setattr(storage, "write", announce)
    storage.write(task.paths.orders, b"an order\n")
    task.begin(0, {})
    if storage.is_local(run_path):  # Stores have no clients that remember missing files.
        assert {"metrics.jsonl", "asks.jsonl", "orders.jsonl"} <= set(files)
    else:
        assert "metrics.jsonl" not in files
    assert storage.read(task.paths.orders) == b"an order\n"


def failing_once(
    work: Callable[..., Any], name: str, failed: set[tuple[str, ...]]
) -> Callable[..., Any]:
    """Return a function that fails at its first call for each file, as on a full disk."""

    def call(*args: Any) -> Any:
        if (key := (name, str(args[0]))) not in failed:
            failed.add(key)
            raise OSError(28, "No space left on device")
        return work(*args)

    return call


def test_names_for_import_hooks_stay_as_they_are() -> None:
    hook = "__editable__.package-1.0.finder.__path_hook__"
    assert trial_task._absolute(hook) == hook
    assert trial_task._absolute("") == os.getcwd()
    assert trial_task._absolute("tests") == os.path.abspath("tests")


def test_an_attempt_of_a_gang_that_is_repeated_keeps_the_files_of_the_one_before(
    local_run: str,
) -> None:
    """Spark, or the driver, repeats an attempt that was lost before its start was seen."""
    task = task_of(lambda: None, local_run)
    ranks, before = Path(task.paths.all_ranks), Path(task.paths.superseded(0), "ranks")
    for number in (0, 1, 1, 1):
        task.supersede(number)
        ranks.mkdir(exist_ok=True)
        (ranks / f"{number}").touch()
    assert [path.name for path in before.iterdir()] == ["0"]
    assert [path.name for path in ranks.iterdir()] == ["1"]


NOBODY = 65534


@pytest.fixture
def as_nobody() -> Iterator[str]:
    """Run a test as a user whom permissions bind; return the path of a run of that user."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        task_of(lambda: None, storage.join(folder, "imports"))  # Those that root may do.
        os.seteuid(NOBODY)
        try:
            yield storage.join(folder, "run")
        finally:
            os.seteuid(0)


def test_a_working_folder_that_its_program_made_read_only_is_moved_away(as_nobody: str) -> None:
    task = task_of(lambda: None, as_nobody)
    work = Path(task.paths.folder, "work")
    work.mkdir()
    (work / "data").touch()
    work.chmod(0o555)
    task.supersede(0)
    task.supersede(1)
    moved = Path(task.paths.superseded(0), "work")
    assert (os.listdir(moved), moved.stat().st_mode & 0o777) == (["data"], 0o555)
    assert not work.exists()


def test_folder_that_cannot_be_moved_stays_read_only(as_nobody: str) -> None:
    work = Path(as_nobody, "work")
    work.mkdir(parents=True)
    work.chmod(0o555)
    (target := Path(as_nobody, "target")).mkdir(mode=0o555)
    with pytest.raises(PermissionError):
        storage.rename(str(work), str(target / "work"))
    assert work.stat().st_mode & 0o777 == 0o555


def test_files_of_another_user_that_cannot_be_moved_away_are_told_with_a_remedy(
    as_nobody: str,
) -> None:
    task = task_of(lambda: None, as_nobody)
    work = Path(task.paths.folder, "work")
    os.seteuid(0)
    work.mkdir(mode=0o755)
    os.seteuid(NOBODY)
    task.supersede(0)
    with pytest.raises(PermissionError, match=r"the files of attempt 0 in .* as user nobody") as e:
        task.supersede(1)
    assert str(work) in str(e.value)
    assert "SPARKDL_PERMISSIONS=2770" in str(e.value)


@pytest.mark.parametrize("is_import", [True, False])
def test_a_process_that_an_import_killed_is_started_once_more_without_preload(
    is_import: bool, local_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for a native library aborts if another module was imported before it."""
    aborts = 'import os, sys\nif "earlier" in sys.modules:\n    os.abort()\n'
    for name, text in {"earlier": "", "aborts": aborts}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    begun = tmp_path / "begun"

    def train() -> int:
        import importlib

        with begun.open("a") as file:
            file.write("x")
        importlib.import_module("aborts" if is_import else "earlier")
        return 5 if is_import else os.abort()  # type: ignore[func-returns-value]

    task = task_of(train, local_run)
    task = replace(task, start=replace(task.start, preload=("earlier",)))
    outcome = outcome_of(task)
    log = storage.read(task.paths.log).decode()
    if is_import:
        assert outcome.outputs == {"value": 5} and begun.read_text() == "xx"
        assert "killed by SIGABRT while it imported a module" in (outcome.note or "")
        assert f"sparkdl: {outcome.note}." in log
    else:
        assert outcome.failure is Failure.SIGNAL and begun.read_text() == "x"
        assert (outcome.error or "").startswith("killed by SIGABRT (") and "once more" not in log
