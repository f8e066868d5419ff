"""`experiment.parameter_server`: chief, two workers and a parameter server on four executors."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment
from sparkdl.errors import ConfigError, SlotsError, TrainingFailedError
from sparkdl.runs import Run
from tests.helpers.processes import eventually, is_alive
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("four_executors")]

STEPS = 120
EVERY = 20


def train() -> dict[str, Any]:
    """Asynchronous steps on a Keras 3 model, a checkpoint after every 20 of them."""
    import tempfile

    import keras
    import numpy as np
    import tensorflow as tf

    from sparkdl import context, distribute

    strategy = distribute.strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
        steps = tf.Variable(0, dtype=tf.int64)
    saved = tf.train.Checkpoint(steps=steps, variables=model.trainable_variables)
    # Else each parameter server would write and read on its own host.
    here = tf.train.CheckpointOptions(experimental_io_device="/job:chief")
    if start := context.get_checkpoint():
        saved.read(f"{start}/model", options=here).assert_consumed()
    print(f"attempt {context.attempt} starts at step {int(steps.numpy())}")

    def dataset() -> Any:
        x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        y = x.sum(axis=1, keepdims=True)
        return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)

    @tf.function
    def step(iterator: Any) -> Any:
        def replica(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            return loss

        loss = strategy.run(replica, args=(next(iterator),))
        steps.assign_add(1)
        return loss

    batches = iter(coordinator.create_per_worker_dataset(dataset))
    loss = None
    while (done := int(steps.numpy())) < STEPS:
        for _ in range(EVERY - done % EVERY):
            loss = coordinator.schedule(step, args=(batches,))
        coordinator.join()
        with tempfile.TemporaryDirectory() as folder:
            saved.write(f"{folder}/model", options=here)
            context.report({"loss": loss.fetch()}, step=int(steps.numpy()), checkpoint=folder)
    # After a kill that came behind the last checkpoint there is nothing left to do.
    return {"steps": int(steps.numpy()), "loss": float(loss.fetch()) if loss else 0.0}


def pid_of(run: Run, attempt: int, rank: int) -> int:
    """The training process of a rank: 0 the chief, 1 and 2 the workers, 3 the parameter server."""
    file = Path(run.trials[0].path, "ranks", str(attempt), f"{rank}.pid")
    assert eventually(lambda: file.exists() and file.read_text()), f"no {file}"
    return int(file.read_text())


def started(root: str, **options: Any) -> tuple[Run, list[int]]:
    """A run that has committed its first checkpoint, and its processes."""
    run = experiment.parameter_server(
        train, num_workers=2, num_ps=1, wait=False, **quiet(root, **options)
    )
    assert eventually(lambda: run.trials[0].checkpoint or run.state != "RUNNING")
    assert run.state == "RUNNING", run
    return run, [pid_of(run, 0, rank) for rank in range(4)]


def assert_all_gone(pids: list[int], run: Run) -> None:
    assert eventually(lambda: not [pid for pid in pids if is_alive(pid)])
    assert not Path(run.trials[0].path, "ranks").exists()


def test_trains_and_ends_with_its_coordinator(root: str) -> None:
    run, pids = started(root)
    run.wait()
    assert run.state == "COMPLETE", run
    assert run.result["steps"] == STEPS
    assert run.result["loss"] < 1.0
    assert list(run.trials[0].history.index) == list(range(EVERY, STEPS + 1, EVERY))
    assert_all_gone(pids, run)


def test_a_killed_worker_does_not_fail_the_run_and_comes_back(root: str) -> None:
    run, pids = started(root)
    os.kill(pids[1], signal.SIGKILL)
    assert eventually(lambda: run.state != "RUNNING" or pid_of(run, 0, 1) != pids[1])
    run.wait()
    assert run.state == "COMPLETE", run
    assert run.trials[0].attempts == 1
    # A step whose worker died after it had counted may be counted again: at least once each.
    assert STEPS <= run.result["steps"] <= STEPS + 2
    assert_all_gone(pids, run)


@pytest.mark.thorough
def test_a_worker_may_be_killed_long_after_the_start(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that takes its place has a start of its own."""
    options: dict[str, Any] = {"num_workers": 1, "num_ps": 1, **quiet(root)}

    def import_tensorflow() -> None:
        from sparkdl import distribute

        distribute.strategy()

    experiment.parameter_server(import_tensorflow, **options)
    monkeypatch.setenv("SPARKDL_START_TIMEOUT_S", "10")

    def train() -> int:
        from sparkdl import context, distribute

        distribute.strategy()
        own = context.current()
        file = Path(own.folder or "", "ranks/0/1.pid")
        time.sleep(11)  # More than the start may take.
        before = file.read_text()
        os.kill(int(before), signal.SIGKILL)
        deadline = time.monotonic() + 120
        while file.read_text() in (before, "") and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(11)
        return int(file.read_text()) != int(before)

    run = experiment.parameter_server(train, **options)
    assert (run.state, run.result, run.trials[0].attempts) == ("COMPLETE", 1, 1)


def test_a_killed_parameter_server_restarts_the_gang_from_the_checkpoint(root: str) -> None:
    run, pids = started(root)
    os.kill(pids[3], signal.SIGKILL)
    run.wait()
    assert run.state == "COMPLETE", run
    assert run.trials[0].attempts == 2
    assert run.result["steps"] == STEPS
    log = Path(run.trials[0].path, "log-chief-0.txt").read_text()
    assert any(f"attempt 1 starts at step {step}" in log for step in range(EVERY, STEPS, EVERY))
    assert_all_gone(pids, run)


def test_a_killed_coordinator_is_the_persons_crash(root: str) -> None:
    run, pids = started(root, max_restarts=1)
    os.kill(pids[0], signal.SIGKILL)
    run.wait()
    assert run.state == "COMPLETE", run
    assert (run.trials[0].attempts, run.result["steps"]) == (2, STEPS)
    assert_all_gone(pids, run)

    run, pids = started(f"{root}/again")
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(TrainingFailedError, match=r"chief 0 \(rank 0\) on host .*SIGKILL"):
        run.wait()
    assert run.trials[0].failure == "signal"
    assert_all_gone(pids, run)


def test_between_graph_program_on_every_node(root: str, tmp_path: Path) -> None:
    """TF1 style: every process runs `main`; parameter servers join and never return."""

    def main() -> int:
        import json

        import tensorflow as tf

        from sparkdl import context

        v1 = tf.compat.v1
        v1.disable_eager_execution()
        config = json.loads(os.environ["TF_CONFIG"])
        cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
        server = tf.distribute.Server(cluster, job_name=task["type"], task_index=task["index"])
        Path(tmp_path, f"{context.role}-{context.index}").write_text(str(os.getpid()))
        if context.role == "ps":
            server.join()
        device = f"/job:{task['type']}/task:{task['index']}"
        with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=device)):
            step = v1.train.get_or_create_global_step()
            weight = v1.get_variable("w", initializer=5.0)
            train_op = v1.train.GradientDescentOptimizer(0.1).minimize(weight**2, global_step=step)
        hooks = [v1.train.StopAtStepHook(last_step=60)]

        def told(what: str, count: int) -> bool:
            return len(list(tmp_path.glob(f"{what}-*"))) >= count

        # A worker's session looks for the chief's variables every 30 seconds only.
        while not context.is_chief and not told("begun", 1):
            time.sleep(0.05)
        with v1.train.MonitoredTrainingSession(
            master=server.target, is_chief=context.is_chief, hooks=hooks
        ) as session:
            while not session.should_stop():
                session.run(train_op)
                Path(tmp_path, f"begun-{context.rank}").touch()
                while context.is_chief and not told("begun", 3):
                    time.sleep(0.05)
        with v1.Session(server.target) as session:
            reached = session.run(step)  # The steps of all workers.
        # And a session needs the servers of all others.
        Path(tmp_path, f"ended-{context.rank}").touch()
        while not told("ended", 3):
            time.sleep(0.05)
        return int(reached)

    run = experiment.parameter_server(main, num_workers=2, num_ps=1, roles="all", **quiet(root))
    assert run.state == "COMPLETE", run
    assert run.result >= 60
    told = {p.name: int(p.read_text()) for p in tmp_path.glob("*-?") if p.name[0] in "cpw"}
    assert sorted(told) == ["chief-0", "ps-0", "worker-0", "worker-1"]
    assert_all_gone(list(told.values()), run)


def test_refused_before_anything_starts(root: str) -> None:
    with pytest.raises(SlotsError, match=r"needs 6 slots.*1 chief, 4 workers, 1 ps.*has 4"):
        experiment.parameter_server(train, num_workers=4, num_ps=1, **quiet(root))
    with pytest.raises(ConfigError, match="roles is 'both'"):
        experiment.parameter_server(train, num_workers=1, num_ps=1, roles="both", **quiet(root))
    with pytest.raises(ConfigError, match="ps_num_gpus is 3"):
        experiment.parameter_server(train, num_workers=1, num_ps=1, ps_num_gpus=3, **quiet(root))
    assert list(Path(root).iterdir()) == []
