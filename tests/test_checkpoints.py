"""Checkpoints are committed as a whole or do not exist, and a rule decides which are retained."""

import json
import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st

from sparkdl import checkpoints, context
from sparkdl.checkpoints import Checkpoint, commit, committed, newest, prune, retained
from sparkdl.cluster.process.trial_folder import Mirror
from sparkdl.files import attempts, polling, storage
from sparkdl.files.attempts import SupersededError
from sparkdl.files.layout import TrialPaths
from sparkdl.runs import Trial


class SlowStore(LocalFileSystem):  # type: ignore[misc]
    """A store without renames, in which files appear bit by bit, unlike in any object store."""

    protocol = "slowstore"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(str(path).removeprefix("slowstore://")))

    def mv(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("an object store cannot rename")


fsspec.register_implementation("slowstore", SlowStore, clobber=True)


PLACES = ["local", "memory", "slowstore", pytest.param("s3", marks=pytest.mark.slow)]


@pytest.fixture(params=PLACES)
def trial(request: pytest.FixtureRequest, root: str, tmp_path: Path) -> str:
    """The folder of a trial on each kind of storage."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{tmp_path.name} ü'/run/trials/3"
    place = storage.join(root, "run", "trials", 3)
    return place if request.param == "local" else f"{request.param}://{place}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., context.Context]:
    """Let this process act as the training process of a trial."""
    monkeypatch.setenv(context.VARIABLE, "{}")
    context._forget_reporter()

    def become(trial: str, **fields: Any) -> context.Context:
        context._forget_reporter()  # A new process starts with an empty cache.
        folder = Path(trial) if storage.is_local(trial) else tmp_path / "mirrored"
        folder.mkdir(parents=True, exist_ok=True)
        context.activate(context.Context(run="r", folder=str(folder), url=trial, **fields))
        return context.current()

    return become


def saved(folder: Path, content: str) -> Path:
    """Save a directory like a framework."""
    (folder / "variables").mkdir(parents=True, exist_ok=True)
    (folder / "variables" / "weights ü").write_text(content)
    (folder / "graph").write_text(f"graph of {content}")
    return folder


def content(path: str | None) -> str:
    assert path
    text = Path(path, "variables", "weights ü").read_text()
    assert Path(path, "graph").read_text() == f"graph of {text}"
    return text


def test_commit_copies_the_directory(trial: str, tmp_path: Path) -> None:
    assert committed(trial) == [] and newest(trial) is None
    source = saved(tmp_path / "model", "one")
    commit(source, trial, 4, {"loss": 0.5})
    saved(source, "two")
    commit(source, trial, 5, {"loss": 0.25, "other": math.nan})
    first, second = committed(trial)
    assert (first.number, first.step, first.metrics) == (1, 4, {"loss": 0.5})
    assert math.isnan(second.metrics["other"])
    # Not every reader of JSON accepts NaN.
    assert b"NaN" not in storage.read(f"{second.url}/checkpoint.json")
    assert second.time >= first.time > 1e9
    assert newest(trial).url == second.url == f"{trial}/checkpoints/000002"  # type: ignore[union-attr]
    local = str(tmp_path / "local")
    assert content(checkpoints.fetch(trial, 1, local)) == "one"
    assert content(checkpoints.fetch(trial, 2, local)) == "two"
    assert content(str(source)) == "two"
    assert Trial(3, {}, trial).checkpoint == second.url
    assert storage.list_names(TrialPaths(trial).checkpoints) == ["000001", "000002"]


def test_checkpoint_without_its_marker_does_not_exist(trial: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "model", "one")
    commit(source, trial, 0, {})
    storage.copy(source, storage.join(trial, "checkpoints", "000002"))
    storage.write(storage.join(trial, "checkpoints", "000003", "checkpoint.json"), '{"step": 1')
    storage.write(storage.join(trial, "checkpoints", ".0f", "weights"), "half")
    assert [c.number for c in committed(trial)] == [1]
    assert newest(trial).number == 1  # type: ignore[union-attr]
    with pytest.raises(FileNotFoundError, match="never committed, or is no longer kept"):
        checkpoints.fetch(trial, 2, str(tmp_path))
    commit(source, trial, 1, {})
    assert storage.list_names(storage.join(trial, "checkpoints")) == ["000001", "000004"]


def test_commit_that_fails_leaves_nothing(
    trial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved(tmp_path / "model", "one")
    commit(source, trial, 0, {})
    put = storage.put

    def full(folder: Path, name: str, url: str) -> None:
        if name == "variables/weights ü":
            raise OSError(28, "No space left on device")
        put(folder, name, url)

    monkeypatch.setattr(storage, "put", full)
    with pytest.raises(OSError, match="No space left"):
        commit(source, trial, 1, {})
    assert [c.number for c in committed(trial)] == [1]
    if storage.is_local(trial):
        assert os.listdir(f"{trial}/checkpoints") == ["000001"]


def test_commit_refuses_invalid_directories(root: str, tmp_path: Path) -> None:
    source = tmp_path / "model"
    with pytest.raises(NotADirectoryError, match=r"model' does not exist; expected a directory"):
        commit(source, root, 0, {})
    (source / "empty").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"model' has no files"):
        commit(source, root, 0, {})
    (source / "checkpoint.json").write_text("{}")
    with pytest.raises(ValueError, match=r"Give your file another name"):
        commit(source, root, 0, {})
    with pytest.raises(NotADirectoryError, match="is a file"):
        commit(source / "checkpoint.json", root, 0, {})
    with pytest.raises(ValueError, match="would contain all earlier"):
        commit(tmp_path, root, 0, {})
    assert committed(root) == []


def test_commit_follows_links_and_accepts_a_checkpoint(root: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "model", "one")
    (tmp_path / "linked").mkdir()
    for name in ("graph", "variables"):
        (tmp_path / "linked" / name).symlink_to(source / name)
    first = commit(tmp_path / "linked", root, 0, {})
    saved(source, "two")
    assert content(first.url) == "one"
    checkpoints.hold(first.url, "another")
    again = commit(first.url, root, 1, {})
    assert again.files == first.files and content(again.url) == "one"
    assert sorted(os.listdir(again.url)) == ["checkpoint.json", "graph", "variables"]


def losses(*numbers: float) -> list[Checkpoint]:
    return [
        Checkpoint(url=str(number), number=number, step=number, metrics={"loss": loss})
        for number, loss in enumerate(numbers, start=1)
    ]


@pytest.mark.parametrize(
    ("keep", "metric", "direction", "expected"),
    [
        ("all", None, "max", {1, 2, 3, 4}),
        ("last", None, "max", {4}),
        (3, None, "max", {2, 3, 4}),
        (9, None, "max", {1, 2, 3, 4}),
        ("best+last", None, "min", {2, 4}),
        ("best+last", "loss", "max", {3, 4}),
        ("best+last", "absent", "max", {4}),
    ],
)
def test_retained_follows_the_rule(
    keep: Any, metric: str | None, direction: str, expected: set[int]
) -> None:
    assert retained(losses(2, 1, 3, math.nan), keep, metric, direction) == expected


def test_retained_finds_the_best_without_a_named_metric() -> None:
    two = [
        *losses(2, 1),
        Checkpoint(url="", number=3, step=3, metrics={"loss": 5, "accuracy": 0.5}),
    ]
    assert retained(two, "best+last", None, "min") == {3}
    plain = [
        Checkpoint(url="", number=number, step=number, metrics={"value": value})
        for number, value in [(1, 0.5), (2, 0.9), (3, 0.1)]
    ]
    assert retained(plain, "best+last", "accuracy") == {
        2,
        3,
    }  # A plain number counts as the metric.
    assert retained(losses(1, 1, 2), "best+last", None, "min") == {1, 3}
    assert retained(losses(2, 1, 3, 2), "best+last") == {2, 4}  # The name tells the direction.


@given(
    st.lists(st.floats(), max_size=12),
    st.one_of(st.sampled_from(["best+last", "last", "all"]), st.integers(1, 14)),
    st.sampled_from(["max", "min"]),
)
def test_retained_has_the_properties_of_the_rule(
    numbers: list[float], keep: Any, direction: str
) -> None:
    points = losses(*numbers)
    stay = retained(points, keep, "loss", direction)
    assert stay <= {c.number for c in points}
    assert not points or points[-1].number in stay
    # The result is the same if the rule is applied after each commit.
    left: list[Checkpoint] = []
    for checkpoint in points:
        left = [*left, checkpoint]
        numbers_left = retained(left, keep, "loss", direction)
        left = [c for c in left if c.number in numbers_left]
    assert {c.number for c in left} == stay
    if isinstance(keep, int):
        assert len(stay) == min(keep, len(points))
    finite = [x for x in numbers if math.isfinite(x)]
    if finite and keep == "best+last":
        best = max(finite) if direction == "max" else min(finite)
        assert best in [c.metrics["loss"] for c in points if c.number in stay]


def test_prune_leaves_held_and_spared_checkpoints(trial: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "model", "x")
    urls = [commit(source, trial, n, {}).url for n in range(5)]
    checkpoints.hold(urls[0], "run/7")
    checkpoints.hold(urls[0], "run 8")
    spare = checkpoints.fetch(trial, 3, str(tmp_path))
    prune(trial, "last", spare=spare)
    assert [c.number for c in committed(trial)] == [1, 3, 5]
    checkpoints.release(urls[0], "run/7")
    checkpoints.release(urls[0], "never")
    prune(trial, "last")
    assert [c.number for c in committed(trial)] == [1, 5]
    checkpoints.release(urls[0], "run 8")
    prune(trial, "last")
    assert storage.list_names(storage.join(trial, "checkpoints")) == ["000005"]
    with pytest.raises(FileNotFoundError, match="no longer kept"):
        checkpoints.hold(urls[0], "late")
    assert storage.list_names(storage.join(trial, "checkpoints")) == ["000005"]


def test_prune_restores_a_checkpoint_that_is_held_meanwhile(
    trial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved(tmp_path / "model", "x")
    first, _ = commit(source, trial, 0, {}), commit(source, trial, 1, {})
    remove = storage.remove

    def held_meanwhile(url: str) -> None:
        monkeypatch.setattr(storage, "remove", remove)
        checkpoints.hold(first.url, "other")
        remove(url)

    monkeypatch.setattr(storage, "remove", held_meanwhile)
    prune(trial, "last")
    assert [c.number for c in committed(trial)] == [1, 2]


def test_report_commits_and_get_checkpoint_returns_the_newest(
    trial: str, tmp_path: Path, here: Callable[..., context.Context]
) -> None:
    source = tmp_path / "model"
    me = here(trial, metric="accuracy")
    assert context.get_checkpoint() is None
    for n, accuracy in enumerate([0.5, 0.9, 0.6, 0.7]):
        context.report({"accuracy": accuracy})
        context.report({"loss": 1.0}, step=n, checkpoint=saved(source, f"of {n}"))
        assert content(context.get_checkpoint()) == f"of {n}"
    assert [(c.number, c.step) for c in committed(trial)] == [(2, 1), (4, 3)]
    assert newest(trial).metrics == {"accuracy": 0.7, "loss": 1.0}  # type: ignore[union-attr]
    # The next attempt runs on another host, where the folder is a mirror.
    if trial != me.folder:
        storage.remove(str(me.folder))
    here(trial, attempt=1, keep_checkpoints="last")
    assert content(context.get_checkpoint()) == "of 3"
    context.report(0.8)
    assert json.loads(Path(str(me.folder), "metrics.jsonl").read_text().split("\n")[-2]) == {
        "step": 4,
        "metrics": {"value": 0.8},
    }


def test_get_checkpoint_is_the_same_for_all_ranks_of_a_gang(
    trial: str, tmp_path: Path, here: Callable[..., context.Context]
) -> None:
    source = saved(tmp_path / "model", "old")
    commit(source, trial, 7, {})
    start = checkpoints.fetch(trial, 1, str(tmp_path / "mirrored"))
    gang = {"world_size": 2, "checkpoint": start, "keep_checkpoints": "last"}
    me = here(trial, rank=0, role="chief", **gang)
    saved(source, "new")
    context.report(1, checkpoint=source)
    context.report(1, step=9, checkpoint=source)
    assert content(context.get_checkpoint()) == "old"
    assert [c.number for c in committed(trial)] == [1, 3]
    me = here(trial, rank=1, role="worker", index=0, **gang)
    context.report(1, checkpoint="absent")
    assert context.get_checkpoint() == start
    context.report(2)
    folder = Path(str(me.folder))
    lines = (folder / "metrics-worker-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 8]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_report_tries_again_to_commit(
    root: str, tmp_path: Path, here: Callable[..., context.Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    put, errors = storage.put, [OSError(28, "No space left on device")] * 2

    def full(*args: Any) -> None:
        if errors:
            raise errors.pop()
        put(*args)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the store is busy")

    monkeypatch.setattr(storage, "put", full)
    monkeypatch.setattr(checkpoints, "prune", fail)
    monkeypatch.setattr(polling.time, "sleep", lambda _: None)
    here(root, metric="accuracy")
    context.report({"accuracy": 0.5}, checkpoint=saved(tmp_path / "model", "one"))
    assert content(context.get_checkpoint()) == "one"


def test_get_checkpoint_of_another_trial_until_one_is_committed(
    root: str, tmp_path: Path, here: Callable[..., context.Context]
) -> None:
    theirs = commit(saved(tmp_path / "model", "theirs"), f"{root}/trials/1", 3, {})
    here(f"{root}/trials/2", checkpoint=theirs.url)
    assert context.get_checkpoint() == theirs.url
    context.report(0.5, checkpoint=saved(tmp_path / "model", "ours"))
    assert content(context.get_checkpoint()) == "ours"
    assert newest(f"{root}/trials/2").step == 4  # type: ignore[union-attr]
    assert content(theirs.url) == "theirs"


def test_fetch_is_complete_or_leaves_nothing(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = f"slowstore://{root}"
    done = commit(saved(tmp_path / "model", "x"), trial, 0, {})
    Path(root, "checkpoints", "000001", "graph").unlink()
    with pytest.raises(FileNotFoundError, match="no longer kept"):
        checkpoints.fetch(trial, done.number, str(tmp_path / "local"))
    assert os.listdir(tmp_path / "local" / "checkpoints") == []


def test_report_outside_a_run_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(context.VARIABLE, "{}")
    context._forget_reporter()
    commit(saved(tmp_path / "model", "of an earlier session"), "runs/local", 0, {})
    assert context.get_checkpoint() is None
    context.report(0.5, checkpoint=saved(tmp_path / "model", "mine"))
    assert content(context.get_checkpoint()) == "mine"
    assert Path(str(context.get_checkpoint())).is_absolute()
    assert context.checkpoint_dir == str(tmp_path / "runs" / "local" / "scratch")
    assert capsys.readouterr().out == "value=0.5\n"


def test_checkpoint_dir_survives_an_attempt(
    trial: str, here: Callable[..., context.Context]
) -> None:
    me = here(trial)
    scratch = Path(context.checkpoint_dir)
    assert scratch == Path(str(me.folder), "scratch")
    (scratch / "state").write_text("5")
    if trial != me.folder:
        Mirror(Path(str(me.folder)), trial, {"checkpoints"}).close()
        assert not scratch.exists()
    here(trial, attempt=1)
    assert Path(context.checkpoint_dir, "state").read_text() == "5"
    here(trial, world_size=4, rank=2, role="worker", index=1)
    assert context.checkpoint_dir == str(scratch / "worker-1")


def test_history_merges_attempts(root: str) -> None:
    attempts = [[(1, 0.1), (2, 0.2), (3, 0.3)], [], [(3, 0.4), (4, 0.5), (6, 0.6)], [(4, 0.7)]]
    paths = TrialPaths(root)
    for number, rows in enumerate(attempts):
        folder = root if number == 3 else paths.superseded(number)
        lines = [json.dumps({"step": s, "metrics": {"loss": x}}) + "\n" for s, x in rows]
        storage.write(TrialPaths(folder).metrics, "".join(lines) + '{"step": 9')
        storage.write(paths.attempt(number), "{}")
    history = Trial(0, {}, root).history
    assert history["loss"].to_dict() == {1: 0.1, 2: 0.2, 3: 0.4, 4: 0.7}
    assert Trial(0, {}, f"{root}/none").history.empty


# Processes are killed while they commit.


def checked(path: str) -> int:
    """Return the turn of a checkpoint after a check that all its files are complete."""
    sums = json.loads(Path(path, "sums.json").read_text())
    for name, digest in sums["files"].items():
        assert sha256(Path(path, name).read_bytes()).hexdigest() == digest, (path, name)
    return int(sums["turn"])


def commit_on_and_on(trial: str, folder: str, keep: str | int, ready: Any) -> None:
    context.activate(context.Context(run="r", folder=folder, url=trial, keep_checkpoints=keep))
    before = context.get_checkpoint()
    turn = checked(before) if before else 0
    ready.send(turn)
    source = Path(folder, "model")
    source.mkdir(exist_ok=True)
    while True:
        turn += 1
        digests = {}
        for n in range(5):
            data = f"{turn} {n} ".encode() * 4000
            source.joinpath(f"part-{n}").write_bytes(data)
            digests[f"part-{n}"] = sha256(data).hexdigest()
        source.joinpath("sums.json").write_text(json.dumps({"turn": turn, "files": digests}))
        context.report(float(turn), checkpoint=source)
        ready.send(turn)


@pytest.fixture
def forks() -> Iterator[Any]:
    """A fork server, which starts processes in milliseconds."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([__name__])
    yield forks


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "slowstore"])
def test_commit_killed_at_any_moment_leaves_complete_checkpoints(
    kind: str, root: str, forks: Any
) -> None:
    folder = f"{root}/trial"
    store = folder if kind == "local" else f"slowstore://{root}/store"
    Path(folder).mkdir()
    chance, last = random.Random(5), 0
    for moment in range(100):
        receive, send = forks.Pipe(duplex=False)
        keep = ("best+last", "last", 3)[moment % 3]
        process = forks.Process(target=commit_on_and_on, args=(store, folder, keep, send))
        process.start()
        send.close()
        assert receive.recv() >= last, "it went back behind a checkpoint that was committed"
        if moment % 8 == 0:  # Some kills come behind a commit, however slow the machine is.
            receive.recv()
        time.sleep(chance.uniform(0, 0.06))
        process.kill()
        process.join()
        points = committed(store)
        turns = [checked(c.url.removeprefix("slowstore://")) for c in points]
        assert turns == sorted(turns) and [c.step + 1 for c in points] == turns
        last = turns[-1] if turns else 0
    assert last > 10
    # The next commit removes the incomplete checkpoints of killed processes.
    commit(saved(Path(root, "model"), "x"), store, last, {})
    prune(store, "last")
    assert len(storage.list_names(TrialPaths(store).checkpoints)) == 1


# A process of an attempt that was given up may live on, and commit.


def test_a_superseded_attempt_cannot_commit(
    trial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved(tmp_path / "model", "one")
    attempts.take(trial, 0)
    commit(source, trial, 0, {})
    put = storage.put

    def superseded_meanwhile(folder: Path, name: str, url: str) -> None:
        put(folder, name, url)
        attempts.take(trial, 1)

    monkeypatch.setattr(storage, "put", superseded_meanwhile)
    with pytest.raises(SupersededError, match="as attempt 1"):
        commit(source, trial, 1, {})
    monkeypatch.setattr(storage, "put", put)
    with pytest.raises(SupersededError):
        commit(source, trial, 1, {})
    assert [c.step for c in committed(trial)] == [0]
    newer = commit(source, trial, 5, {}, attempt=1)
    assert [(c.step, c.attempt) for c in committed(trial)] == [(0, 0), (5, 1)]
    if not storage.is_local(trial):
        assert (
            newer.number == 3
        )  # The number in which the late process may still write is not used.


def test_a_sweep_spares_what_a_later_attempt_is_writing(root: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "model", "one")
    folder = Path(root, "checkpoints")
    for name in (".0-aa", ".1-bb", ".2-cc"):
        (folder / name).mkdir(parents=True)
    commit(source, root, 0, {}, attempt=1)
    assert sorted(os.listdir(folder)) == [".2-cc", "000001"]


def test_a_checkpoint_with_missing_files_is_not_committed(
    trial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved(tmp_path / "model", "one")
    put = storage.put

    def swept_meanwhile(folder: Path, name: str, url: str) -> None:
        storage.remove(url)
        put(folder, name, url)

    monkeypatch.setattr(storage, "put", swept_meanwhile)
    with pytest.raises(FileNotFoundError, match="is not committed"):
        commit(source, trial, 0, {})
    assert committed(trial) == []


def test_a_number_that_was_taken_meanwhile_is_passed_over(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved(tmp_path / "model", "one")
    rename = storage.rename

    def taken_meanwhile(url: str, new: str) -> None:
        monkeypatch.setattr(storage, "rename", rename)
        storage.copy(source, new)
        rename(url, new)

    monkeypatch.setattr(storage, "rename", taken_meanwhile)
    assert commit(source, root, 0, {}, attempt=1).number == 2
    assert [c.number for c in committed(root)] == [2]
