"""The directories of all ranks become one checkpoint, or none; commits beside the training."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import checkpoints, context, experiment
from sparkdl.checkpoints import newest, parts
from sparkdl.checkpoints.parts import Part
from sparkdl.errors import TrainingFailedError
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.rank_files import RankFiles
from tests.helpers.runs import quiet
from tests.test_checkpoints import here, trial  # noqa: F401

RANKS = 3
# What a rank does to the store while it commits.
STEPS = ("write", "put", "read", "rename", "remove", "list_names", "fsync")


class Killed(BaseException):
    """Ends a thread as a signal ends a process: no `except Exception` and no retry sees it."""


def part(
    trial: str,  # noqa: F811
    source: Path,
    rank: int,
    number: int,
    size: int = RANKS,
    timeout_s: float = 60.0,
) -> Part:
    files = RankFiles(TrialPaths(trial).ranks(0))
    return Part(source, trial, 0, files, rank, size, number, timeout_s)


def save(folder: Path, rank: int, epoch: int) -> Path:
    """Save the part of one rank, and files that all ranks have."""
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    (folder / "shards" / f"{rank}.bin").write_text(f"rank {rank} of epoch {epoch}")
    (folder / "config.json").write_text(f"epoch {epoch}")
    return folder


def in_threads(ranks: int, act: Callable[[int], Any]) -> list[Any]:
    """Call a function for each rank at the same time; return its values and exceptions."""
    results: list[Any] = [None] * ranks

    def call(rank: int) -> None:
        try:
            results[rank] = act(rank)
        except BaseException as exc:
            results[rank] = exc

    threads = [threading.Thread(target=call, args=(rank,), name=f"{rank}") for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def content(url: str, folder: Path) -> dict[str, str]:
    storage.download(url, folder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json"]
    return {path.name: path.read_text() for path in files}


def whole(epoch: int) -> dict[str, str]:
    return {f"{rank}.bin": f"rank {rank} of epoch {epoch}" for rank in range(RANKS)}


def test_parts_become_one_checkpoint(trial: str, tmp_path: Path) -> None:  # noqa: F811
    for epoch in range(2):
        results = in_threads(
            RANKS,
            lambda rank, epoch=epoch: part(  # type: ignore[misc]
                trial, save(tmp_path / f"{rank}", rank, epoch), rank, epoch
            ).commit(epoch, {"loss": float(epoch)}),
        )
        found = newest(trial)
        assert found and results == [found, None, None], results
        assert (found.number, found.step, found.metrics) == (epoch + 1, epoch, {"loss": epoch})
        assert found.files == ["config.json", *(f"shards/{rank}.bin" for rank in range(RANKS))]
        assert content(found.url, tmp_path / f"read {epoch}") == whole(epoch)
    messages = storage.list_names(TrialPaths(trial).ranks(0))
    assert messages and not [name for name in messages if name.split("-")[1] == "0"]


@pytest.mark.parametrize("victim", range(2))
def test_torn_at_any_moment_the_one_before_is_left(
    victim: int, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank is lost at each of its steps; the others end when they wait for it."""
    originals = {name: getattr(storage, name) for name in STEPS}
    for moment in itertools.count(1):
        trial = f"{root}/{victim}-{moment}"  # noqa: F811
        act = [save(tmp_path / f"{moment}-{rank}", rank, 0) for rank in range(RANKS)]
        in_threads(RANKS, lambda rank: part(trial, act[rank], rank, 0).commit(0, {}))
        for rank in range(RANKS):
            save(act[rank], rank, 1)
        steps, is_lost = itertools.count(1), threading.Event()

        def step(
            name: str, *args: Any, steps: Any = steps, lost: Any = is_lost, moment: int = moment
        ) -> Any:
            if threading.current_thread().name == str(victim) and next(steps) >= moment:
                lost.set()
                raise Killed
            try:
                return originals[name](*args)
            except FileNotFoundError:
                if lost.is_set() and "/ranks/" in str(args[0]):
                    raise Killed from None  # It waits for the lost rank, and is ended with it.
                raise

        for name in STEPS:
            monkeypatch.setattr(storage, name, lambda *args, name=name: step(name, *args))
        results = in_threads(
            RANKS,
            lambda rank: part(trial, act[rank], rank, 1).commit(1, {}),
        )
        monkeypatch.undo()
        found = newest(trial)
        assert found is not None
        assert content(found.url, tmp_path / f"read {moment}") == whole(found.step)
        if not isinstance(results[victim], Killed):
            break
    assert moment > 5 and found.step == 1


def test_different_files_of_one_name_are_refused(root: str, tmp_path: Path) -> None:
    def act(rank: int) -> Any:
        folder = tmp_path / f"{rank}"
        folder.mkdir()
        (folder / "weights.bin").write_text(f"{rank}")
        return part(root, folder, rank, 0).commit(0, {})

    for result in in_threads(RANKS, act):
        assert isinstance(result, ValueError)
        assert "the ranks 0 and 1 have different files of the name 'weights.bin'" in str(result)
    assert newest(root) is None


def test_ranks_may_share_a_folder(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a file that one of them sees before it is complete, and a large one."""
    monkeypatch.setattr(parts, "COMPARED_BYTES", 4)
    folder = save(tmp_path / "model", 0, 0)
    (folder / "large").write_text("half")
    described = parts._describe(folder / "large")
    (folder / "large").write_text("half and half")
    assert parts.owners_of([{"large": parts._describe(folder / "large")}, {"large": described}])
    results = in_threads(2, lambda rank: part(root, folder, rank, 0, size=2).commit(0, {}))
    assert results[0].files == ["config.json", "large", "shards/0.bin"]


def test_ranks_at_different_steps_are_refused(root: str, tmp_path: Path) -> None:
    def act(rank: int) -> Any:
        mine = part(root, save(tmp_path / f"{rank}", rank, 0), rank, 0)
        return mine.commit(rank, {}, given_step=5 if rank == 1 else 4)

    for result in in_threads(RANKS, act):
        assert isinstance(result, ValueError)
        assert r"at the steps [4, 5]. All ranks call context.report at the same" in str(result)
    assert newest(root) is None


def test_the_problem_of_one_rank_is_told_to_all(root: str, tmp_path: Path) -> None:
    def act(rank: int) -> Any:
        folder = save(tmp_path / f"{rank}", rank, 0) if rank != 1 else tmp_path / "nowhere"
        return part(root, folder, rank, 0).commit(0, {})

    first, second, third = in_threads(RANKS, act)
    assert isinstance(second, NotADirectoryError)
    for told in (first, third):
        assert isinstance(told, ValueError) and "rank 1: checkpoint=" in str(told)
    assert newest(root) is None


def test_a_rank_returns_when_its_files_are_safe(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 copies the files of a shared folder; rank 1 may overwrite them afterwards."""
    folder, put = save(tmp_path / "model", 1, 0), storage.put

    def slow(*args: Any) -> None:
        assert not done.wait(0.1)
        put(*args)

    done = threading.Event()
    monkeypatch.setattr(storage, "put", slow)

    def act(rank: int) -> None:
        part(root, folder, rank, 0, size=2).commit(0, {})
        done.set()
        save(folder, 1, 1)

    assert in_threads(2, act) == [None, None]
    found = newest(root)
    assert found and content(found.url, tmp_path / "read") == {"1.bin": "rank 1 of epoch 0"}


def test_a_rank_that_does_not_take_part_is_named(root: str, tmp_path: Path) -> None:
    source = save(tmp_path / "0", 0, 0)
    with pytest.raises(TimeoutError, match=r"rank 1 has not passed its part.*0\.05 s"):
        part(root, source, 0, 0, size=2, timeout_s=0.05).commit(0, {})


def test_a_whole_sharded_checkpoint_may_be_reported_by_all(
    root: str,
    tmp_path: Path,
    here: Callable[..., context.Context],  # noqa: F811
) -> None:
    """As DCP saves it into a folder that the ranks share."""
    (tmp_path / "model").mkdir()
    for name in ("__0_0.distcp", "__1_0.distcp", ".metadata"):
        (tmp_path / "model" / name).write_text(name)
    for rank in range(2):
        here(root, rank=rank, world_size=2)
        context.report(0.5, checkpoint=tmp_path / "model")
    assert len(newest(root).files) == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["__1_0.distcp", "ocdbt.process_1/d/0a"])
def test_a_part_is_not_dropped_in_silence(
    name: str,
    root: str,
    tmp_path: Path,
    here: Callable[..., context.Context],  # noqa: F811
) -> None:
    (tmp_path / "model" / name).parent.mkdir(parents=True)
    (tmp_path / "model" / name).write_text("part")
    here(root, rank=1, world_size=2)
    with pytest.raises(ValueError, match=r"a part of a sharded checkpoint.*sharded=True"):
        context.report(0.5, checkpoint=tmp_path / "model")


def test_ranks_that_may_change_share_no_checkpoint(
    root: str,
    tmp_path: Path,
    here: Callable[..., context.Context],  # noqa: F811
) -> None:
    for fields, who in (
        ({"is_elastic": True}, "an elastic gang"),
        ({"rank": 2}, "worker 0 of a local"),
    ):
        here(root, world_size=2, **fields)
        with pytest.raises(ValueError, match=f"equal ranks that stay the same, and this .*{who}"):
            context.report(0.5, checkpoint=save(tmp_path / "model", 0, 0), sharded=True)


# ---- beside the training


def test_a_commit_goes_on_while_the_function_does(
    trial: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: Callable[..., context.Context],  # noqa: F811
) -> None:
    here(trial)
    may_copy, put = threading.Event(), storage.put

    def slow(*args: Any) -> None:
        assert may_copy.wait(60)
        put(*args)

    monkeypatch.setattr(storage, "put", slow)
    source = save(tmp_path / "model", 0, 0)
    context.report({"loss": 0.5}, step=0, checkpoint=source, wait=False)
    assert newest(trial) is None and not source.exists()
    context.report({"loss": 0.25}, step=1)  # Without a checkpoint, a report waits for nothing.
    save(source, 0, 2)
    may_copy.set()
    context.report({"loss": 0.125}, step=2, checkpoint=source, wait=False)
    assert newest(trial).step in (0, 2)  # type: ignore[union-attr]
    assert context.get_checkpoint()
    found = newest(trial)
    assert found and (found.step, found.metrics) == (2, {"loss": 0.125})
    assert content(found.url, tmp_path / "read") == {"0.bin": "rank 0 of epoch 2"}
    assert list(tmp_path.rglob(".0-*")) == []


def test_its_error_is_raised_by_what_waits_for_it(
    root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: Callable[..., context.Context],  # noqa: F811
) -> None:
    here(root)

    def fails(*_: Any) -> None:
        raise PermissionError("no entry")

    monkeypatch.setattr(storage, "put", fails)
    context.report(0.5, checkpoint=save(tmp_path / "model", 0, 0), wait=False)
    with pytest.raises(PermissionError, match="no entry"):
        context.this_committer().finish()
    (kept,) = Path(root, "checkpoints").glob(".0-moved-*")
    assert (kept / "shards" / "0.bin").read_text() == "rank 0 of epoch 0"
    context.this_committer().finish()  # It is told once.
    assert newest(root) is None


def test_nothing_that_cannot_be_committed_is_moved(
    root: str,
    tmp_path: Path,
    here: Callable[..., context.Context],  # noqa: F811
) -> None:
    here(root)
    file, empty = tmp_path / "model.pt", tmp_path / "empty"
    file.write_text("weights")
    empty.mkdir()
    for path, error in ((file, NotADirectoryError), (empty, ValueError)):
        with pytest.raises(error):
            context.report(0.5, checkpoint=path, wait=False)
        assert path.exists()
    context.report(0.5, checkpoint=save(tmp_path / "model", 0, 0))
    committed = context.get_checkpoint()
    assert committed
    context.report(0.5, checkpoint=committed, wait=False)
    assert Path(committed, "config.json").exists()  # A committed checkpoint stays where it is.
    link = tmp_path / "latest"
    link.symlink_to("model")
    context.report(0.5, checkpoint=link, wait=False)
    context.this_committer().finish()
    assert newest(root).number == 3  # type: ignore[union-attr]


def test_outside_a_run_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    context._forget_reporter()
    context.report(0.5, checkpoint=save(tmp_path / "model", 0, 0), wait=False)
    os.chdir("elsewhere")
    context.this_committer().finish()
    assert newest(str(tmp_path / "runs/local"))
    context._forget_reporter()


def test_a_function_that_is_tried_raises_the_error_of_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise PermissionError("no entry")

    def train() -> None:
        save(Path("model"), 0, 0)
        context.report(0.5, checkpoint="model", wait=False)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(storage, "put", fails)
    with pytest.raises(PermissionError, match="no entry"):
        experiment.try_one(train, folder=tmp_path / "trial")


def test_a_process_that_a_rank_has_started_reports_no_part(
    root: str,
    tmp_path: Path,
    here: Callable[..., context.Context],  # noqa: F811
) -> None:
    here(root, world_size=2)
    save(tmp_path / "model", 0, 0)
    program = (
        "from sparkdl import context\n"
        f"context.report(0.5, checkpoint={str(tmp_path / 'model')!r}, sharded=True)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "this process is a child process of a rank" in done.stderr


# ---- on Spark


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "wait"), [(experiment.allreduce, True), (experiment.horovod, False)]
)
def test_a_gang_goes_on_from_the_parts_of_all_ranks(
    verb: Any, wait: bool, spark: SparkSession, root: str, tmp_path: Path
) -> None:
    def train() -> list[str]:
        from sparkdl import distribute

        resumed = context.get_checkpoint()
        seen = sorted(path.name for path in Path(resumed, "shards").iterdir()) if resumed else []
        begin = int(Path(resumed, "config.json").read_text().split()[1]) + 1 if resumed else 0
        for epoch in range(begin, 4):
            folder = save(tmp_path / f"rank-{context.rank}", context.rank, epoch)
            context.report({"loss": 1.0}, step=epoch, checkpoint=folder, sharded=True, wait=wait)
            distribute.barrier()
            if epoch == 2 and context.rank == 1 and not resumed:
                os.kill(os.getpid(), 9)
        (tmp_path / f"seen-{context.rank}").write_text(repr((seen, begin)))
        return seen

    run = verb(train, num_workers=2, max_restarts=1, **quiet(root))
    assert (run.state, run.trials[0].attempts) == ("COMPLETE", 2)
    told = [(tmp_path / f"seen-{rank}").read_text() for rank in range(2)]
    # A commit beside the training may have been cut off by the kill.
    begins = {3} if wait else {2, 3}
    assert told[0] == told[1] and told[0] in {repr((["0.bin", "1.bin"], b)) for b in begins}
    found = checkpoints.newest(run.trials[0].path)
    assert found and found.step == 3
    assert found.files == ["config.json", "shards/0.bin", "shards/1.bin"]
    names = storage.list_names(TrialPaths(run.trials[0].path).checkpoints)
    assert [name for name in names if name.startswith(".")] == []


@pytest.mark.slow
def test_an_error_of_the_last_commit_fails_the_trial(spark: SparkSession, root: str) -> None:
    def train() -> int:
        Path("model").mkdir()
        Path("model", "weights").symlink_to("/nowhere")
        context.report(0.5, checkpoint="model", wait=False)
        return 1

    with pytest.raises(TrainingFailedError, match=r"FileNotFoundError.*weights"):
        experiment.allreduce(train, num_workers=1, **quiet(root))
