"""A real gang that grows into idle slots, and gives them back to a search."""

import contextlib
import html
import json
import os
import signal
import time
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.gang import rank_grower
from sparkdl.errors import ConfigError, RunStoppedError
from sparkdl.files.layout import RunPaths
from sparkdl.runs import Run
from sparkdl.runs.events import GangResized
from sparkdl.runs.journal import read_journal
from tests.helpers.processes import eventually, processes_of
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS, BATCH, RATE = 24, 4, 0.05
GROW_S = 150.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "IDLE_S", "WAITING_S", "PAUSE_S"):
        monkeypatch.setattr(rank_grower, name, 0.3)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The rows, whose number is their first feature."""
    chance = np.random.default_rng(0)
    x = np.stack([np.arange(ROWS) / ROWS, chance.normal(size=ROWS)], axis=1).astype("float32")
    y = (x @ [1.0, -2.0] + 0.5).astype("float32")
    columns = {"a": x[:, 0], "b": x[:, 1], "y": y}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=5)
    return str(tmp_path / "rows.parquet")


def trainer(path: str) -> Any:
    """Return a function that trains until there is a file `go`; each rank tells what it did."""

    def train() -> dict[str, Any]:
        import keras
        import tensorflow as tf

        from sparkdl import context, data, distribute

        read: list[float] = []

        def note(a: Any) -> Any:
            read.extend(a.tolist())
            return a

        def noted(x: Any, y: Any) -> Any:
            a = tf.ensure_shape(tf.numpy_function(note, [x[:, 0]], tf.float32), [None])
            return tf.stack([a, x[:, 1]], axis=1), y

        class Tell(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                told = {
                    "epoch": epoch,
                    "present": list(context.current().present),
                    "rows": sorted(round(ROWS * each) for each in read),
                    "pid": os.getpid(),
                    "executor": os.environ["SPARK_EXECUTOR_DIRS"],
                }
                read.clear()
                with open(Path(context.folder, f"epochs-{context.rank}.txt"), "a") as file:
                    file.write(json.dumps(told) + "\n")
                time.sleep(0.02)
                if any(distribute.allgather_object(Path(context.folder, "go").exists())):
                    self.model.stop_training = True

        model = keras.Sequential(
            [keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")]
        )
        model.compile(distribute.optimizer(keras.optimizers.SGD(RATE)), "mse")
        rows = data.parquet(
            path, batch_size_per_worker=BATCH, feature_cols=["a", "b"], label_cols="y"
        )
        history = model.fit(rows.map(noted), epochs=100_000, verbose=0, callbacks=[Tell()]).history
        weights = [w.tolist() for w in model.get_weights()]
        Path(context.folder, f"end-{context.rank}.txt").write_text(json.dumps(weights))
        return {"losses": history["loss"], "weights": weights}

    return train


def told_by(run: Run, rank: int) -> list[dict[str, Any]]:
    path = Path(run.trials[0].path) / f"epochs-{rank}.txt"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def executor_of(run: Run, rank: int) -> int:
    """The pid of an executor, which its processes have inherited the environment of."""
    variable = f"SPARK_EXECUTOR_DIRS={told_by(run, rank)[-1]['executor']}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_java = (entry / "comm").read_text().strip() == "java"
            if is_java and variable in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
    raise AssertionError(f"no executor with {variable!r}")


def size(run: Run) -> int:
    """The number of ranks of the last epoch of the chief."""
    return len(told_by(run, 0)[-1]["present"]) if told_by(run, 0) else 0


def let_end(run: Run) -> Run:
    Path(run.trials[0].path, "go").touch()
    return run.wait()


def oracle(path: str, sizes: list[int]) -> tuple[Any, list[float]]:
    """The weights, and the losses of the epochs, of one process on the batches of all ranks."""
    table = pq.read_table(path).to_pandas()
    x, y = table[["a", "b"]].to_numpy("float64"), table["y"].to_numpy("float64")
    w, b, losses = np.zeros(2), 0.0, []
    for count in sizes:
        each, errors = ROWS // count, []
        for step in range(each // BATCH):
            places = [r * each + step * BATCH + i for r in range(count) for i in range(BATCH)]
            error = x[places] @ w + b - y[places]
            errors += list(error)
            w = w - RATE * 2 * (error @ x[places]) / len(places)
            b = b - RATE * 2 * error.mean()
        losses.append(float(np.mean(np.square(errors))))
    return [*w, b], losses


def search(root: str, until: Path, num_trials: int = 3) -> Run:
    """Trials that take their slots until there is a file."""

    def trial(i: int) -> int:
        while not until.exists():
            time.sleep(0.05)
        return i

    return experiment.launch(trial, {"i": range(num_trials)}, wait=False, **quiet(root))


def test_gang_grows_gives_back_to_a_search_and_grows_again(
    root: str, table: str, four_executors: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**quiet(root), "progress": True, "logs": "none"}
    train = trainer(table)
    run = experiment.allreduce(train, num_workers=(1, 3), elastic=True, wait=False, **options)
    assert eventually(lambda: size(run) == 3, GROW_S), run.resizes
    searched = search(root, Path(table).with_name("enough"))
    assert eventually(lambda: size(run) == 1, GROW_S), run.resizes
    assert eventually(lambda: all(t.state == "RUNNING" for t in searched.trials), GROW_S)
    Path(table).with_name("enough").touch()
    assert searched.wait().state == "COMPLETE"
    assert eventually(lambda: size(run) == 3, GROW_S), run.resizes
    let_end(run)
    assert (run.state, run.trials[0].attempts) == ("COMPLETE", 1)

    # Each row of each epoch was used once, whoever was there.
    epochs = told_by(run, 0)
    assert [each["epoch"] for each in epochs] == list(range(len(epochs)))
    others = {(each["epoch"], r): each for r in (1, 2) for each in told_by(run, r)}
    for each in epochs:
        ranks = [others[each["epoch"], r] for r in each["present"] if r]
        assert all(rank["present"] == each["present"] for rank in ranks)
        assert sorted(sum((rank["rows"] for rank in ranks), each["rows"])) == list(range(ROWS))

    # The weights and the losses are those of one process on the batches of all ranks.
    weights, losses = oracle(table, [len(each["present"]) for each in epochs])
    (w, b) = run.result["weights"]
    np.testing.assert_allclose([*np.ravel(w), *b], weights, atol=1e-4)
    np.testing.assert_allclose(run.result["losses"], losses, rtol=1e-3, atol=1e-6)
    ends = {path.read_text() for path in Path(run.trials[0].path).glob("end-*.txt")}
    assert len(ends) == 1

    # What the run tells.
    events = [e for e in read_journal(RunPaths(run.path).journal) if isinstance(e, GangResized)]
    assert all(before.after == after.before for before, after in pairwise(events))
    changes = [(e.after > e.before, e.reason) for e in events]
    up, down = (True, rank_grower.IDLE), (False, rank_grower.WAITING)
    assert list(dict.fromkeys(changes)) == [up, down] and changes[-1] == up
    assert run.resizes == experiment.load(run.path).resizes
    assert run.resizes[-1] in str(run) and run.resizes[0] in capsys.readouterr().out
    assert html.escape(run.resizes[0]) in Path(run.report()).read_text()

    # Nothing is left.
    assert eventually(lambda: not processes_of(run.id))
    assert not Path(run.trials[0].path, "ranks").exists()


def looper() -> Any:
    """Return a function for Horovod that trains until there is a file `go`."""

    def train() -> dict[str, list[int]]:
        import numpy as np

        import sparkdl.horovod as hvd
        from sparkdl import context

        hvd.init()

        @hvd.elastic.run
        def loop(state: Any) -> list[int]:
            while not state.is_over:
                total = hvd.allreduce(np.float64(1.0), op=hvd.Sum)
                assert total == hvd.size()
                if state.sizes[-1:] != [hvd.size()]:
                    state.sizes = [*state.sizes, hvd.size()]
                told = {"present": [*range(hvd.size())], "pid": os.getpid()}
                with open(Path(context.folder, f"epochs-{context.rank}.txt"), "a") as file:
                    file.write(json.dumps(told) + "\n")
                time.sleep(0.02)
                goes = Path(context.folder, "go").exists()
                state.is_over = bool(hvd.allreduce(np.float64(goes), op=hvd.Max))
                state.commit()
            return list(state.sizes)

        return {"sizes": loop(hvd.elastic.ObjectState(sizes=[], is_over=False))}

    return train


def test_loop_of_horovod_grows_and_gives_back_when_it_commits(
    root: str, table: str, four_executors: SparkSession
) -> None:
    options: Any = {"num_workers": (1, 2), "elastic": True, "wait": False, **quiet(root)}
    run = experiment.horovod(looper(), **options)
    assert eventually(lambda: size(run) == 2, GROW_S), run.resizes
    until = Path(table).with_name("enough")
    searched = search(root, until, 4)
    assert eventually(lambda: size(run) == 1, GROW_S), run.resizes
    until.touch()
    searched.wait()
    let_end(run)
    assert (run.state, run.trials[0].attempts) == ("COMPLETE", 1)
    assert [count for count, _ in groupby(run.result["sizes"])][:3] in (
        [1, 2, 1],
        [2, 1, 2],
        [2, 1],
    )
    assert eventually(lambda: not processes_of(run.id))


@pytest.fixture
def grown(root: str, table: str, four_executors: SparkSession) -> Iterator[Run]:
    """A gang of one rank that has grown to three."""
    options: Any = {"num_workers": (1, 3), "elastic": True, "wait": False, **quiet(root)}
    run = experiment.allreduce(trainer(table), **options)
    try:
        assert eventually(lambda: size(run) == 3, GROW_S), run.resizes
        yield run
    finally:
        if run.state == "RUNNING":
            run.cancel()
            with pytest.raises(RunStoppedError):
                run.wait()


def test_further_ranks_that_die_do_not_fail_the_run(grown: Run) -> None:
    os.kill(told_by(grown, 1)[-1]["pid"], signal.SIGKILL)
    os.kill(executor_of(grown, 2), signal.SIGKILL)
    first = len(told_by(grown, 0))
    # Both come back: one process is started again by its task, the other one by Spark.
    assert eventually(lambda: len(told_by(grown, 0)) > first and size(grown) == 3, GROW_S)
    assert len({each["pid"] for each in told_by(grown, 1)}) == 2
    let_end(grown)
    assert (grown.state, grown.trials[0].attempts) == ("COMPLETE", 1)
    ends = {path.read_text() for path in Path(grown.trials[0].path).glob("end-*.txt")}
    assert len(ends) == 1
    assert eventually(lambda: not processes_of(grown.id))


def test_cancelled_run_leaves_no_process_of_a_further_rank(grown: Run) -> None:
    grown.cancel()
    with pytest.raises(RunStoppedError):
        grown.wait()
    assert eventually(lambda: not processes_of(grown.id))
    tracker = grown_session().sparkContext.statusTracker()
    assert eventually(lambda: not list(tracker.getActiveJobsIds()))


def grown_session() -> SparkSession:
    return SparkSession.active()


def test_refused_before_anything_starts(root: str) -> None:
    def refused(match: str, **options: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            experiment.allreduce(print, **options, **quiet(root))

    refused(r"num_workers=\(2, 8\) needs elastic=True", num_workers=(2, 8))
    refused(r"expected the smaller number first: \(2, 8\)", num_workers=(8, 2), elastic=True)
    refused("num_workers is 0; expected", num_workers=(0, 2), elastic=True)
    refused("such as", num_workers=(1, 2, 3), elastic=True)
    more = {"num_workers": (2, 8), "elastic": True}
    refused("cannot be combined with move_slow_ranks=True", **more, move_slow_ranks=True)
    refused("elastic=True cannot be combined with data=", **more, data=object())
    assert list(Path(root).iterdir()) == []
