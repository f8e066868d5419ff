"""`experiment.allreduce` on three real executors: forms, trains, fails and ends as promised."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.spark import SparkCluster
from sparkdl.errors import (
    ConfigError,
    FunctionError,
    SlotsError,
    TrainingFailedError,
    TrialFailedError,
)
from sparkdl.runs import Run
from tests.helpers.processes import eventually, is_alive, jvm_of, processes_of
from tests.helpers.runs import quiet, stopped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("three_executors")]


def mini(rows: int = 96) -> tuple[Any, Any, Any]:
    """A small Keras model under this process's strategy, and data that is the same everywhere."""
    import keras
    import numpy as np

    from sparkdl import distribute

    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 4)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("float32")
    with distribute.strategy().scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    return model, x, y


def digest(model: Any) -> str:
    import hashlib

    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


def test_trains_keras_to_equal_weights_and_returns_the_chiefs_value(
    root: str, tmp_path: Path
) -> None:
    def train() -> dict[str, Any]:
        from sparkdl import context

        model, x, y = mini()
        history = model.fit(x, y, batch_size=24, epochs=2, verbose=0).history
        Path(tmp_path, f"{context.rank}").write_text(f"{digest(model)} {history['loss'][-1]}")
        print(f"rank {context.rank} of {context.world_size} is {context.role} {context.index}")
        context.report({"loss": history["loss"][-1]})
        return {"loss": history["loss"][-1], "rank": context.rank}

    run = experiment.allreduce(train, num_workers=3, name="mini", **quiet(root, seed=3))
    told = [Path(tmp_path, str(rank)).read_text() for rank in range(3)]
    assert len(set(told)) == 1, told
    assert (run.kind, run.state, run.result["rank"]) == ("allreduce", "COMPLETE", 0)
    assert run.trials[0].metrics["loss"] == run.result["loss"]
    for rank in range(3):
        log = Path(run.trials[0].path, f"log-worker-{rank}.txt").read_text()
        assert f"rank {rank} of 3 is worker {rank}" in log
    reloaded = experiment.load(run.path)
    assert (reloaded.state, reloaded.result) == ("COMPLETE", run.result)
    assert eventually(lambda: not processes_of(run.id))


def test_a_strategy_that_the_program_makes_itself_trains_as_one_process(root: str) -> None:
    def train() -> dict[str, Any]:
        import numpy as np
        import tensorflow as tf

        strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
        random = np.random.default_rng(0)
        x = random.normal(size=(64, 4)).astype("float32")
        table = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(16)
        with strategy.scope():
            tf.keras.utils.set_random_seed(1)
            model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=["mae"])
        history = model.fit(table, epochs=2, verbose=0, validation_data=table).history
        return {**history, "workers": strategy.num_replicas_in_sync}

    several = experiment.allreduce(train, num_workers=2, **quiet(root, seed=3)).result
    alone = experiment.allreduce(train, num_workers=1, **quiet(root, seed=3)).result
    assert (several.pop("workers"), alone.pop("workers")) == (2, 1)
    assert several.keys() == alone.keys() == {"loss", "mae", "val_loss", "val_mae"}
    for name, values in alone.items():
        assert several[name] == pytest.approx(values, rel=1e-4), name


def test_refused_before_anything_starts(root: str) -> None:
    for wrong in (0, 1.5, True, "2"):
        with pytest.raises(ConfigError, match="num_workers is"):
            experiment.allreduce(lambda: 0, num_workers=wrong, **quiet(root))  # type: ignore[arg-type]
    with pytest.raises(FunctionError, match="'x'"):
        experiment.allreduce(lambda x: x, num_workers=2, **quiet(root))
    assert list(Path(root).iterdir()) == []


@pytest.mark.acceptance("A7")
def test_more_workers_than_slots_are_refused(root: str) -> None:
    began = time.monotonic()
    with pytest.raises(SlotsError, match=r"needs 5 slots.*has 3.*local-cluster\[5,1,1024\]"):
        experiment.allreduce(lambda: 0, num_workers=5, **quiet(root))
    assert time.monotonic() - began < 30
    assert list(Path(root).iterdir()) == []


def test_a_gang_waits_for_the_executor_that_replaces_a_lost_one(
    three_executors: SparkSession, root: str
) -> None:
    pids = (
        three_executors.sparkContext.parallelize(range(3), 3).map(lambda _: os.getpid()).collect()
    )
    before = SparkCluster(three_executors).executor_ids
    os.kill(jvm_of(pids[0]), signal.SIGKILL)
    assert eventually(lambda: before - SparkCluster(three_executors).executor_ids)
    assert experiment.allreduce(lambda: 0, num_workers=3, **quiet(root)).state == "COMPLETE"


def test_gradients_are_averaged_over_the_ring(root: str) -> None:
    """The one changed line: no strategy, other rows and another seed on each rank."""

    def train() -> list[float]:
        import keras
        import numpy as np

        from sparkdl import context, distribute

        keras.utils.set_random_seed(context.rank)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(distribute.optimizer("adam"), "mse")
        x = np.random.default_rng(context.rank).normal(size=(96, 4)).astype("float32")
        model.fit(x, x.sum(axis=1), batch_size=24, epochs=2, verbose=0)
        weights = distribute.allgather(model.layers[0].kernel.numpy().reshape(1, -1))
        return (weights == weights[0]).all(axis=1).tolist()

    run = experiment.allreduce(lambda: {"equal": train()}, num_workers=3, **quiet(root))
    assert run.result["equal"] == [True] * 3


@pytest.mark.parametrize(("how", "says"), [("kill", "SIGKILL"), ("raise", "KeyError: 'mine'")])
def test_of_a_ring_the_rank_is_named_that_failed_first(root: str, how: str, says: str) -> None:
    """And not those that only noticed."""

    def train() -> None:
        import numpy as np

        from sparkdl import context, distribute

        for step in range(1000):
            distribute.allreduce(np.ones(1000))
            if context.rank == 1 and step == 20:
                if how == "raise":
                    raise KeyError("mine")
                os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(TrainingFailedError, match=rf"worker 1 \(rank 1\).*{says}") as failed:
        experiment.allreduce(train, num_workers=3, **quiet(root))
    assert "PeerLostError" not in str(failed.value).split("Its log")[0]


def dies_in_step(how: str, gone: Path) -> Any:
    def train() -> None:
        import keras

        from sparkdl import context

        class Die(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if context.rank == 1 and batch == 2:
                    gone.write_text(str(time.time()))
                    if how == "raise":
                        raise ValueError("a rank's own error")
                    os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(1)

        Path(gone.parent, f"pid-{context.rank}").write_text(str(os.getpid()))
        model, x, y = mini()
        model.fit(x, y, batch_size=6, epochs=50, verbose=0, callbacks=[Die()])

    return train


@pytest.mark.acceptance("A3")
@pytest.mark.parametrize(("how", "says"), [("exit", "exit code 1"), ("kill", "SIGKILL")])
def test_a_rank_that_dies_in_a_step_fails_the_run(
    root: str, tmp_path: Path, how: str, says: str
) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(TrainingFailedError, match=says) as caught:
        experiment.allreduce(
            dies_in_step(how, gone), num_workers=3, name=f"dies-{how}", **quiet(root)
        )
    assert time.time() - float(gone.read_text()) < 120
    assert "worker 1 (rank 1) on host" in str(caught.value)
    assert "log-worker-1.txt" in str(caught.value)
    run = experiment.load(str(experiment.history(root)["path"][0]))
    assert run.trials[0].failure == {"exit": "exit", "kill": "signal"}[how]
    pids = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
    assert len(pids) == 3
    assert eventually(lambda: not any(is_alive(pid) for pid in pids))
    assert not list(Path(run.path).glob("trials/0/ranks")), "what the ranks told stays"
    assert says in Path(run.trials[0].path, "error.txt").read_text()
    with pytest.raises(TrialFailedError, match=r"Its log is .*log-worker-1\.txt"):
        run.raise_for_failures()


@pytest.mark.acceptance("A4", "A18")
def test_an_exception_of_a_rank_fails_the_run_and_the_next_completes(
    root: str, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(TrainingFailedError, match="a rank's own error") as caught:
        experiment.allreduce(dies_in_step("raise", gone), num_workers=3, **quiet(root))
    assert time.time() - float(gone.read_text()) < 120
    assert type(caught.value.__cause__) is ValueError
    first = str(caught.value).split("\n")
    assert "worker 1 (rank 1) on host" in first[0]
    assert any("log-worker-1.txt" in line for line in first[:3])
    assert f'File "{__file__}", line' in str(caught.value.__cause__.__cause__)
    assert experiment.allreduce(lambda: 7, num_workers=3, **quiet(root)).result == 7


@pytest.mark.acceptance("A18")
def test_two_gangs_at_once_do_not_meet(root: str) -> None:
    """Three slots hold a gang of two and one of one at the same time."""

    def train() -> dict[str, Any]:
        deadline = time.monotonic() + 240
        Path(here, f"{os.environ['SPARKDL_RUN']}").touch()
        while len(list(Path(here).glob("gang-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        return {"config": os.environ["TF_CONFIG"], "met": len(list(Path(here).glob("gang-*")))}

    here = root
    runs: dict[int, Run] = {}

    def launch(workers: int) -> None:
        runs[workers] = experiment.allreduce(
            train, num_workers=workers, run_id=f"gang-{workers}", **quiet(f"{root}/runs")
        )

    threads = [threading.Thread(target=launch, args=(workers,)) for workers in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    clusters = [json.loads(run.result["config"])["cluster"]["worker"] for run in runs.values()]
    assert sorted(len(cluster) for cluster in clusters) == [1, 2]
    assert len({port for cluster in clusters for port in cluster}) == 3
    assert [run.result["met"] for run in runs.values()] == [2, 2]


@pytest.mark.acceptance("A20")
def test_fewer_ranks_than_executors_train(root: str) -> None:
    def train() -> str:
        model, x, y = mini()
        model.fit(x, y, batch_size=24, verbose=0)
        return digest(model)

    run = experiment.allreduce(train, num_workers=2, **quiet(root))
    assert run.state == "COMPLETE"


def test_an_evaluator_stands_outside(root: str, tmp_path: Path) -> None:
    def train() -> int:
        from sparkdl import context, distribute

        Path(tmp_path, f"{context.role}-{context.index}").write_text(
            f"{context.rank} {context.world_size} {distribute.strategy().num_replicas_in_sync}"
        )
        return context.world_size

    run = experiment.allreduce(train, num_workers=2, evaluator=True, **quiet(root))
    assert run.result == 2
    told = {path.name: path.read_text() for path in tmp_path.glob("*-*")}
    assert told == {"worker-0": "0 2 2", "worker-1": "1 2 2", "evaluator-0": "2 2 1"}


def test_a_rank_that_never_joins_is_told_of(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_START_TIMEOUT_S", "20")

    def train() -> None:
        from sparkdl import context, distribute

        if context.rank == 1:
            time.sleep(300)
        distribute.strategy()

    began = time.monotonic()
    with pytest.raises(TrainingFailedError, match=r"start deadline.*waiting for worker 1 to call"):
        experiment.allreduce(train, num_workers=2, **quiet(root))
    assert time.monotonic() - began < 200
    run = experiment.load(str(experiment.history(root)["path"][0]))
    assert run.trials[0].failure == "start deadline"
    assert eventually(lambda: not processes_of(run.id))


def test_a_rank_that_returns_without_joining_is_told_of_at_once(root: str) -> None:
    def train() -> None:
        from sparkdl import context, distribute

        if context.rank != 1:
            distribute.allreduce(1.0)

    with pytest.raises(TrainingFailedError, match=r"worker 1 returned without a call of"):
        experiment.allreduce(train, num_workers=2, **quiet(root))


def test_a_port_that_is_taken_means_new_ports_for_all(root: str, tmp_path: Path) -> None:
    """A program of no framework that we know gets its port free, and may lose it."""

    def train() -> list[str]:
        import socket

        from sparkdl import context

        addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
        port = int(addresses[context.rank].rpartition(":")[2])
        Path(tmp_path, f"{context.attempt}-{context.rank}").write_text(addresses[context.rank])
        with socket.socket() as thief, socket.socket() as mine:
            if context.rank == 1 and context.attempt == 0:
                thief.bind(("127.0.0.1", port))
            mine.bind(("127.0.0.1", port))
        return addresses

    run = experiment.allreduce(train, num_workers=2, **quiet(root))
    assert run.trials[0].attempts == 2
    first, second = (Path(tmp_path, f"{attempt}-1").read_text() for attempt in (0, 1))
    assert first != second
    assert run.result[1] == second


def test_cancel_leaves_nothing(root: str, tmp_path: Path) -> None:
    def train() -> None:
        from sparkdl import context

        Path(tmp_path, f"{context.rank}").write_text(str(os.getpid()))
        time.sleep(300)

    run = experiment.allreduce(train, num_workers=3, wait=False, **quiet(root))
    assert eventually(lambda: [bool(p.read_text()) for p in tmp_path.glob("[0-9]")] == [True] * 3)
    pids = [int(path.read_text()) for path in tmp_path.glob("[0-9]")]
    assert all(is_alive(pid) for pid in pids)
    run.cancel()
    stopped(run.wait)
    assert (run.state, run.trials[0].state) == ("CANCELLED", "CANCELLED")
    assert eventually(lambda: not any(is_alive(pid) for pid in pids))


@pytest.mark.acceptance("A9")
def test_a_gang_that_lost_an_executor_goes_on_from_the_last_checkpoint(
    root: str, tmp_path: Path
) -> None:
    def train() -> dict[str, Any]:
        from sparkdl import context
        from sparkdl.keras import Checkpoint

        model, x, y = mini()

        import keras

        class Wait(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if context.rank == 0:
                    with Path(tmp_path, "epochs").open("a") as out:
                        out.write(f"{context.attempt}:{epoch}\n")
                if epoch == 2 and context.attempt == 0:
                    time.sleep(300)

        model.fit(x, y, batch_size=24, epochs=4, verbose=0, callbacks=[Checkpoint(), Wait()])
        return {"addresses": os.environ["TF_CONFIG"], "start": context.get_checkpoint()}

    run = experiment.allreduce(train, num_workers=2, name="lost", wait=False, **quiet(root))
    epochs = tmp_path / "epochs"
    assert eventually(lambda: epochs.exists() and "0:2" in epochs.read_text())
    first = json.loads(Path(run.trials[0].path, "attempts/0.json").read_text())
    os.kill(jvm_of(first["pid"]), signal.SIGKILL)
    run.wait()
    assert run.state == "COMPLETE", run
    assert run.trials[0].attempts == 2
    assert epochs.read_text().split() == ["0:0", "0:1", "0:2", "1:2", "1:3"]
    assert list(run.trials[0].history.index) == [0, 1, 2, 3]
    second = json.loads(Path(run.trials[0].path, "attempts/1.json").read_text())
    assert set(map(str, first["ranks"].values())).isdisjoint(map(str, second["ranks"].values()))
    assert eventually(lambda: not processes_of(run.id))


def test_a_rank_may_judge_the_run_invalid(root: str) -> None:
    def train() -> None:
        from sparkdl import context
        from sparkdl.errors import InvalidTrial

        if context.rank == 1:
            raise InvalidTrial("too large for this device")
        time.sleep(300)

    with pytest.raises(TrainingFailedError, match="too large for this device"):
        experiment.allreduce(train, num_workers=2, **quiet(root))
    run = experiment.load(str(experiment.history(root)["path"][0]))
    assert run.trials[0].state == "INVALID"


def test_dynamic_allocation_is_explained(three_executors: SparkSession, root: str) -> None:
    from sparkdl.cluster.plan import Plan, Role
    from sparkdl.cluster.slots import Slots, check_gang

    plan = Plan(kind="allreduce", roles=(Role(name="worker", count=2),), is_gang=True)
    conf = {"spark.dynamicAllocation.enabled": "true"}
    with pytest.raises(SlotsError, match=r"dynamicAllocation\.enabled=false"):
        check_gang(plan, Slots(8, 8, "8"), conf.get, "yarn")


@pytest.mark.acceptance("A21")
def test_early_stopping_decides_once_for_all_ranks(root: str, tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        import keras

        from sparkdl import context
        from sparkdl.keras import EarlyStopping, save

        class Noise(keras.callbacks.Callback):
            """Each rank sees another validation loss; alone, each would stop at another epoch."""

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                logs["val_loss"] = abs(epoch - 2 - 2 * context.rank) + 1.0

        model, x, y = mini()
        stop = EarlyStopping("val_loss", patience=1)
        done = model.fit(x, y, batch_size=24, epochs=20, verbose=0, callbacks=[Noise(), stop])
        (tmp_path / f"{context.rank}").write_text(f"{len(done.epoch)} {digest(model)}")
        return {"epochs": len(done.epoch), "model": save(model, tmp_path / "kept/model.keras")}

    run = experiment.allreduce(train, num_workers=3, **quiet(root))
    assert len({(tmp_path / f"{rank}").read_text() for rank in range(3)}) == 1
    assert 2 < run.result["epochs"] < 20
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["model.keras"]
    artifact = Path(run.trials[0].path, run.result["model"])
    code = f"import keras; print(keras.saving.load_model({str(artifact)!r}).count_params())"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert loaded.stdout.split()[-1:] == ["5"], loaded.stderr


def test_a_killed_monitor_is_a_loss(root: str, tmp_path: Path) -> None:
    def train() -> int:
        from sparkdl import context

        if context.attempt == 0 and context.rank == 0:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(300)
        return context.attempt

    run = experiment.allreduce(train, num_workers=2, **quiet(root))
    assert (run.state, run.result, run.trials[0].attempts) == ("COMPLETE", 1, 2)


def test_what_an_earlier_attempt_raised_is_not_the_cause(root: str) -> None:
    def train() -> None:
        from sparkdl import context
        from sparkdl.errors import InvalidTrial

        if context.attempt == 0:
            raise ValueError("of the first attempt")
        raise InvalidTrial("of the second")

    with pytest.raises(TrainingFailedError, match="of the second") as caught:
        experiment.allreduce(train, num_workers=1, max_restarts=1, **quiet(root))
    assert caught.value.__cause__ is None


def test_a_port_of_the_persons_own_is_their_error(root: str, tmp_path: Path) -> None:
    def train() -> None:
        import tensorflow  # noqa: F401

        from sparkdl import context

        (tmp_path / f"call-{context.attempt}-{context.rank}").touch()
        raise OSError("[Errno 98] Address already in use")

    with pytest.raises(TrainingFailedError, match="Address already in use"):
        experiment.allreduce(train, num_workers=2, **quiet(root))
    assert not list(tmp_path.glob("call-1-*"))


def test_live_output_shows_each_line_of_each_attempt_once(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        from sparkdl import context

        for line in range(3):
            print(f"attempt {context.attempt} rank {context.rank} line {line}")
        time.sleep(1.0)  # Long enough to be looked at while it runs.
        if context.attempt == 0 and context.rank == 1:
            raise ValueError("once")

    experiment.allreduce(train, num_workers=2, max_restarts=1, root=root)
    shown = capsys.readouterr().out.splitlines()
    for attempt in (0, 1):
        for rank in (0, 1):
            for line in range(3):
                text = f"[worker {rank}] attempt {attempt} rank {rank} line {line}"
                assert shown.count(text) == 1, "\n".join(shown)
