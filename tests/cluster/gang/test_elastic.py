"""`elastic=True` on real executors: a lost rank is replaced while the others train on."""

import functools
import json
import os
import secrets
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import checkpoints, experiment
from sparkdl.errors import ConfigError, TrainingFailedError
from sparkdl.runs import Run
from tests.helpers.processes import eventually, jvm_of, processes_of
from tests.helpers.runs import quiet
from tests.helpers.spark import start_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EPOCHS, STEPS, BATCH = 8, 24, 8


def rows() -> tuple[Any, Any]:
    import numpy as np

    chance = np.random.default_rng(0)
    x = chance.normal(size=(3 * STEPS * BATCH, 4)).astype("float32")
    noise = chance.normal(scale=0.5, size=(len(x), 1)).astype("float32")
    return x, x.sum(axis=1, keepdims=True) + noise


def train(pause_s: float = 0.3) -> dict[str, Any]:
    """Linear regression; tells which process made which step.

    Args:
        pause_s: how long a step takes while a rank is missing, so that it can come back.
    """
    import hashlib

    import keras
    import tensorflow as tf

    import sparkdl.horovod as hvd
    from sparkdl import context, distribute
    from sparkdl.keras import Checkpoint

    class Tell(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(pause_s if hvd.size() < context.world_size else 0.02)
            with open(Path(context.folder, f"steps-{context.rank}.txt"), "a") as file:
                file.write(f"{self.epoch} {batch} {os.getpid()}\n")

    Path(context.folder, f"before-{os.getpid()}.txt").write_text(str(context.get_checkpoint()))
    keras.utils.set_random_seed(context.rank)
    x, y = rows()
    size, rank = context.world_size, context.rank
    rows_of_mine = tf.data.Dataset.from_tensor_slices((x[rank::size], y[rank::size])).batch(BATCH)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(distribute.optimizer(keras.optimizers.SGD(0.02, momentum=0.5)), "mse")
    callbacks = [Tell(), Checkpoint()]
    history = model.fit(rows_of_mine, epochs=EPOCHS, verbose=0, callbacks=callbacks).history
    weights = b"".join(v.numpy().tobytes() for v in [*model.weights, *model.optimizer.variables])
    digest = hashlib.sha256(weights).hexdigest()
    Path(context.folder, f"end-{context.rank}.txt").write_text(digest)
    return {"losses": history["loss"], "pid": os.getpid()}


def folder(run: Run) -> Path:
    return Path(run.trials[0].path)


def steps_of(run: Run, rank: int) -> list[list[int]]:
    """Epoch, step and process of each step of a rank so far."""
    path = folder(run) / f"steps-{rank}.txt"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [[int(word) for word in line.split()] for line in lines]


def trains(run: Run, rank: int, many: int = 5) -> bool:
    return len(steps_of(run, rank)) >= many


def ends(run: Run) -> set[str]:
    return {path.read_text() for path in folder(run).glob("end-*.txt")}


@pytest.fixture(scope="module")
def undisturbed(three_executors: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The losses of a run on three executors that nothing happens to."""
    options = quiet(str(tmp_path_factory.mktemp("undisturbed")))
    run = experiment.allreduce(train, num_workers=3, elastic=True, **options)
    assert len(ends(run)) == 1
    return run.result["losses"]


def test_refused_before_anything_starts(root: str) -> None:
    with pytest.raises(ConfigError, match="elastic=True cannot be combined with evaluator=True"):
        experiment.allreduce(train, num_workers=2, elastic=True, evaluator=True, **quiet(root))
    assert list(Path(root).iterdir()) == []


def test_a_killed_process_is_replaced_while_the_others_train(root: str, undisturbed: Any) -> None:
    for rank in (0, 2):
        where = f"{root}/{rank}"
        run = experiment.allreduce(train, num_workers=3, elastic=True, wait=False, **quiet(where))
        assert eventually(lambda: all(trains(run, r) for r in range(3)))
        victim = steps_of(run, rank)[-1][2]
        os.kill(victim, signal.SIGKILL)
        run.wait()
        assert (run.state, run.trials[0].attempts) == ("COMPLETE", 1)
        processes = [{pid for _, _, pid in steps_of(run, r)} for r in range(3)]
        assert [len(pids) for pids in processes] == [2 if r == rank else 1 for r in range(3)]
        assert len(ends(run)) == 1  # Bitwise equal, also those of the replacement.
        assert len(list(folder(run).glob("end-*.txt"))) == 3
        # Those that lived made every step once, in order.
        other = [step[:2] for step in steps_of(run, (rank + 1) % 3)]
        assert other == sorted(other) and len(other) == EPOCHS * STEPS
        assert run.result["losses"][-1] == pytest.approx(undisturbed[-1], rel=0.03)
        assert eventually(lambda: not processes_of(run.id))
        assert not (folder(run) / "ranks").exists()


def test_a_lost_executor_is_replaced_while_the_others_train(root: str, undisturbed: Any) -> None:
    run = experiment.allreduce(train, num_workers=3, elastic=True, wait=False, **quiet(root))
    assert eventually(lambda: all(trains(run, r) for r in range(3)))
    assert eventually(lambda: bool(checkpoints.committed(str(folder(run)))))
    chief = json.loads((folder(run) / "attempts/0.json").read_text())["pid"]
    os.kill(jvm_of(chief), signal.SIGKILL)  # The executor of rank 0, with the task in it.
    run.wait()
    assert (run.state, run.trials[0].attempts) == ("COMPLETE", 1)
    assert [len({pid for *_, pid in steps_of(run, r)}) for r in range(3)] == [2, 1, 1]
    assert len(ends(run)) == 1
    replacement = steps_of(run, 0)[-1][2]
    assert run.result["pid"] == replacement
    # It was given the state of the others, and read no checkpoint.
    assert (folder(run) / f"before-{replacement}.txt").read_text() == "None"
    assert run.result["losses"][-1] == pytest.approx(undisturbed[-1], rel=0.03)
    # The others were chief meanwhile, and have gone on with its metrics.
    assert run.trials[0].history.index.max() == EPOCHS - 1


def test_a_rank_that_hangs_is_replaced(
    root: str, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_COLLECTIVE_TIMEOUT_S", "8")
    run = experiment.allreduce(train, num_workers=3, elastic=True, wait=False, **quiet(root))
    assert eventually(lambda: all(trains(run, r) for r in range(3)))
    os.kill(steps_of(run, 1)[-1][2], signal.SIGSTOP)
    run.wait()
    assert (run.state, run.trials[0].attempts, len(ends(run))) == ("COMPLETE", 1, 1)
    # On a slow machine others may take so long too, and are replaced as well.
    assert len({pid for *_, pid in steps_of(run, 1)}) >= 2
    assert eventually(lambda: not processes_of(run.id))


def test_an_exception_of_the_persons_own_ends_all(root: str, undisturbed: Any) -> None:
    def fails() -> None:
        from sparkdl import context, distribute

        distribute.barrier()
        if context.rank == 1:
            raise ArithmeticError("no")
        distribute.barrier()

    with pytest.raises(TrainingFailedError, match=r"worker 1 \(rank 1\).*ArithmeticError: no"):
        experiment.allreduce(fails, num_workers=3, elastic=True, **quiet(root))


def test_all_ranks_lost_at_once_start_again_from_the_checkpoint(
    root: str, undisturbed: Any
) -> None:
    run = experiment.allreduce(train, num_workers=2, elastic=True, wait=False, **quiet(root))
    assert eventually(lambda: any(step[0] > 1 for step in steps_of(run, 0)))
    first = [steps_of(run, rank)[-1][2] for rank in (0, 1)]
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    run.wait()
    assert (run.state, run.trials[0].attempts) == ("COMPLETE", 2)
    again = [epoch for epoch, _, pid in steps_of(run, 0) if pid not in first]
    assert min(again) > 0  # It began with the epoch of the checkpoint.
    assert len(run.result["losses"]) == EPOCHS


def test_horovods_elastic_functions_begin_again(root: str, undisturbed: Any) -> None:
    def program() -> dict[str, Any]:
        import keras
        import numpy as np
        import tensorflow as tf

        import sparkdl.horovod as hvd
        from sparkdl import context

        hvd.init()
        x, y = rows()
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)

        @hvd.elastic.run
        def trains(state: Any) -> float:
            mine, wanted = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]
            for state.batch in range(state.batch, 400):  # noqa: B020
                at = state.batch * 8 % 64
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(mine[at : at + 8]) - wanted[at : at + 8]) ** 2)
                tape = hvd.DistributedGradientTape(tape)
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                state.sizes = sorted({*state.sizes, hvd.size()})
                with open(Path(context.folder, f"steps-{context.rank}.txt"), "a") as file:
                    file.write(f"0 {state.batch} {os.getpid()}\n")
                if state.batch % 10 == 0:
                    state.commit()
                while state.batch == 390 and hvd.size() < 3:  # The lost rank comes back.
                    time.sleep(0.01)
                    state.check_host_updates()
                while state.batch == 100 and not Path(context.folder, "killed").exists():
                    time.sleep(0.01)
            return float(hvd.allreduce(np.float64(loss)))

        state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, sizes=[])
        loss = trains(state)
        weights = [w.tolist() for w in model.get_weights()]
        Path(context.folder, f"end-{context.rank}.txt").write_text(str(weights))
        return {"loss": loss, "sizes": state.sizes}

    run = experiment.horovod(program, num_workers=3, elastic=True, wait=False, **quiet(root))
    assert eventually(lambda: all(trains(run, r, 30) for r in range(3)))
    os.kill(steps_of(run, 1)[-1][2], signal.SIGKILL)
    (folder(run) / "killed").touch()
    run.wait()
    assert run.result["sizes"] in ([2, 3], [3])  # The loss may be seen when the rank is back.
    assert run.result["loss"] < 1.0
    assert len(ends(run)) == 1
    assert [len({pid for *_, pid in steps_of(run, r)}) for r in range(3)] == [1, 2, 1]


@pytest.mark.usefixtures("own_application")
def test_the_secret_is_in_no_file(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    known = b"0123456789abcdef" * 2
    monkeypatch.setattr(secrets, "token_bytes", lambda count: known[:count])
    session = start_session(
        "local-cluster[2,1,1024]",
        spark__executor__memory="1g",
        spark__eventLog__enabled="true",
        spark__eventLog__dir=events.as_uri(),
        spark__eventLog__compress="false",
    )
    local = Path(session.sparkContext._temp_dir).parent  # Of the driver and the executors.
    shapes = (known, known.hex().encode(), repr(known).encode())
    backwards = [shape[::-1] for shape in shapes]  # The function is in such a file itself.
    large = os.urandom(1 << 20)  # Spark writes what is as large as this to a file.

    def files_with(content: bytes, *folders: Path) -> list[str]:
        paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return [str(path) for path in paths if content in path.read_bytes()]

    def meets() -> dict[str, Any]:
        from sparkdl import distribute

        distribute.barrier()
        secrets_kept = [name for shape in backwards for name in files_with(shape[::-1], local)]
        return {
            "total": distribute.allreduce(1, "sum"),
            "function_files": len(files_with(large[:1000], local)),
            "secret_files": len(secrets_kept),
        }

    run = experiment.allreduce(meets, num_workers=2, elastic=True, **quiet(root))
    assert run.result["total"] == 2
    assert run.result["function_files"] > 0
    assert run.result["secret_files"] == 0
    SparkSession.active().stop()
    assert files_with(b"SparkListenerJobStart", events)
    assert not [name for shape in shapes for name in files_with(shape, events, Path(root))]


def workers_of(executor: int) -> list[int]:
    """The Python workers of an executor: children of its daemon."""

    def children(pid: int) -> list[int]:
        path = Path(f"/proc/{pid}/task/{pid}/children")
        threads = path.parents[1].iterdir() if path.exists() else ()
        return [int(c) for t in threads for c in (t / "children").read_text().split()]

    return [worker for daemon in children(executor) for worker in children(daemon)]


@pytest.mark.usefixtures("own_application")
def test_the_others_go_on_where_no_slot_comes_back(root: str) -> None:
    """Spark does not start a task again on the executor where it failed: there is no other one."""
    session = start_session(
        "local-cluster[2,1,1024]",
        spark__executor__memory="1g",
        spark__excludeOnFailure__enabled="true",
        spark__excludeOnFailure__task__maxTaskAttemptsPerExecutor="1",
        spark__excludeOnFailure__stage__maxFailedTasksPerExecutor="1",
        spark__excludeOnFailure__application__maxFailedTasksPerExecutor="9",
    )
    pids = session.sparkContext.parallelize(range(2), 2).map(lambda _: os.getpid()).collect()
    executors = {jvm_of(pid) for pid in pids}
    short = functools.partial(train, pause_s=0.02)
    run = experiment.allreduce(short, num_workers=2, elastic=True, wait=False, **quiet(root))
    assert eventually(lambda: all(trains(run, r) for r in range(2)))
    chief = json.loads((folder(run) / "attempts/0.json").read_text())["pid"]
    (other,) = executors - {jvm_of(chief)}
    for worker in workers_of(other):
        os.kill(worker, signal.SIGKILL)
    run.wait()
    assert (run.state, run.trials[0].attempts) == ("COMPLETE", 1)
    assert len(steps_of(run, 0)) == EPOCHS * STEPS * 3 // 2 and len(ends(run)) == 1
    assert len({pid for *_, pid in steps_of(run, 1)}) == 1
    assert run.result["losses"][-1] < 0.4  # That of the noise is 0.25.
    session.stop()
