"""The places and frameworks of ranks: one executor for all, JAX, PyTorch's variables, S3."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.gang.rendezvous import hold_port, own_address
from sparkdl.files import storage
from tests.experiment.test_allreduce import digest, mini
from tests.helpers.runs import quiet
from tests.helpers.spark import Applications

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_executor")]


@pytest.fixture(scope="module")
def one_executor(applications: Applications) -> Iterator[SparkSession]:
    """One executor process with three slots."""
    yield from applications.lend("local-cluster[1,3,2048]", spark__executor__memory="2g")


@pytest.mark.acceptance("A20")
def test_three_ranks_in_one_executor_train(root: str, tmp_path: Path) -> None:
    def train() -> int:
        from sparkdl import context

        model, x, y = mini()
        model.fit(x, y, batch_size=24, epochs=2, verbose=0)
        told = f"{context.local_rank} of {context.local_world_size}"
        (tmp_path / f"{context.rank}").write_text(f"{told} {digest(model)}")
        return context.local_world_size

    assert experiment.allreduce(train, num_workers=3, **quiet(root)).result == 3
    told = [(tmp_path / f"{rank}").read_text().split(" ", 3) for rank in range(3)]
    assert [one[:3] for one in told] == [["0", "of", "3"], ["1", "of", "3"], ["2", "of", "3"]]
    assert len({one[3] for one in told}) == 1


def test_tf_keras(root: str, tmp_path: Path) -> None:
    def train() -> str:
        import numpy as np
        import tensorflow as tf

        from sparkdl import context, distribute

        x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
        with distribute.strategy().scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
            model.compile(optimizer="sgd", loss="mse")
        model.fit(x, x.sum(axis=1), batch_size=24, epochs=2, verbose=0)
        (tmp_path / f"{context.rank}").write_text(digest(model))
        return str(tf.keras.Model.__module__)

    legacy = {"TF_USE_LEGACY_KERAS": "1"}
    run = experiment.allreduce(train, num_workers=2, env=legacy, **quiet(root))
    assert run.result.startswith("tf_keras."), run.result
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text()


def test_jax(root: str) -> None:
    pytest.importorskip("jax")

    def train() -> dict[str, Any]:
        import keras
        import numpy as np
        import tensorflow as tf

        keras.distribution.initialize()
        import jax

        keras.distribution.set_distribution(keras.distribution.DataParallel())
        keras.utils.set_random_seed(1)
        x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(24)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        loss = model.fit(data, epochs=2, verbose=0).history["loss"]
        return {
            "backend": keras.backend.backend(),
            "n": jax.process_count(),
            "fell": loss[1] < loss[0],
        }

    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    env |= {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    run = experiment.allreduce(train, num_workers=2, framework="jax", env=env, **quiet(root))
    assert run.result == {"backend": "jax", "n": 2, "fell": True}


def test_the_variables_of_pytorch(root: str, tmp_path: Path) -> None:
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")

    def train() -> None:
        import socket

        told = {name: os.environ[name] for name in names}
        (tmp_path / told["RANK"]).write_text(json.dumps(told))
        if told["RANK"] == "0":  # As torch's store does: it can listen while the port is held.
            with socket.socket() as store:
                store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                store.bind((told["MASTER_ADDR"], int(told["MASTER_PORT"])))
                store.listen()

    experiment.allreduce(train, num_workers=3, **quiet(root))
    told = [json.loads((tmp_path / f"{rank}").read_text()) for rank in range(3)]
    assert {(one["MASTER_ADDR"], one["WORLD_SIZE"]) for one in told} == {("127.0.0.1", "3")}
    assert len({one["MASTER_PORT"] for one in told}) == 1
    assert [one["LOCAL_RANK"] for one in told] == ["0", "0", "0"]


def test_an_interface_of_the_persons_choice(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_INTERFACE", "lo")

    def train() -> str:
        return os.environ["TF_CONFIG"]

    config = json.loads(experiment.allreduce(train, num_workers=2, **quiet(root)).result)
    assert all(one.startswith("127.0.0.1:") for one in config["cluster"]["worker"])
    monkeypatch.setenv("SPARKDL_INTERFACE", "eth77")
    with pytest.raises(RuntimeError, match=r"no network interface 'eth77'.*it has .*lo"):
        experiment.allreduce(train, num_workers=2, **quiet(root))


def test_addresses_are_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP")
    assert own_address(None, ["a-pod-that-nobody-resolves.invalid:41"]) == "127.0.0.1"
    assert own_address(None, ["127.0.0.1:4040"]) == "127.0.0.1"
    with hold_port("127.0.0.1") as one, hold_port("127.0.0.1") as other:
        assert one.getsockname()[1] != other.getsockname()[1]


def test_a_run_directory_on_s3(s3: str) -> None:
    """A crash of the chief, then on from the checkpoint that only the store has."""

    def train() -> dict[str, Any]:
        import tempfile

        from sparkdl import context

        start = context.get_checkpoint()
        first = 1 + int(Path(start, "epoch").read_text()) if start else 0
        print(f"rank {context.rank} starts at {first}")
        for epoch in range(first, 4):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "epoch").write_text(f"{epoch}")
                context.report({"loss": 1 / (1 + epoch)}, step=epoch, checkpoint=folder)
            if epoch == 1 and context.attempt == 0 and context.is_chief:
                raise ValueError("once")
        return {"first": first}

    run = experiment.allreduce(train, num_workers=2, max_restarts=1, root=s3, progress=False)
    assert (run.state, run.result, run.trials[0].attempts) == ("COMPLETE", {"first": 2}, 2)
    assert list(run.trials[0].history.index) == [0, 1, 2, 3]
    log = storage.read(f"{run.trials[0].path}/log-worker-1.txt").decode()
    assert "rank 1 starts at 2" in log
