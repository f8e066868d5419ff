"""Gangs of three ranks, for a driver of `tests.clusters.driver`.

Each training function tells the test where its process runs once it trains: it makes the file
`<rank>@<host>` in a folder of the test.
"""

import hashlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkdl import experiment

# A gang that the test disturbs makes this many steps, far more than it gets to.
ENDLESS = 100_000


def tell(folder: str) -> None:
    """Tell the test that this rank trains on this host."""
    from sparkdl import context

    Path(folder, f"{context.rank}@{socket.gethostname()}").write_text(str(os.getpid()))


def rows(count: int = 96) -> tuple[Any, Any]:
    import numpy as np

    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def _fit(
    folder: str, model: Any, data: Any, steps: int | None, waits: bool = False
) -> dict[str, Any]:
    """Train, and write the digest of the weights."""
    import keras

    from sparkdl import context

    class Tell(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                tell(folder)
                while waits and not Path(folder, "go").exists():
                    time.sleep(0.05)
            if steps != 16:
                time.sleep(0.02)

    model.fit(data, steps_per_epoch=steps, callbacks=[Tell()], verbose=0)
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
    Path(folder, f"weights-{context.rank}").write_text(digest)
    return {"host": socket.gethostname()}


def _model(optimizer: Callable[[Any], Any]) -> Any:
    import keras

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer(keras.optimizers.SGD(0.02)), "mse")
    return model


def _train_strategy(folder: str, steps: int) -> dict[str, Any]:
    import tensorflow as tf

    from sparkdl import distribute

    with distribute.strategy().scope():
        model = _model(lambda optimizer: optimizer)
    return _fit(folder, model, tf.data.Dataset.from_tensor_slices(rows()).repeat().batch(12), steps)


def _train_ring(folder: str, steps: int, waits: bool) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    from sparkdl import context, distribute

    keras.utils.set_random_seed(context.rank)
    data = tf.data.Dataset.from_tensor_slices(rows()).shard(context.world_size, context.rank)
    return _fit(folder, _model(distribute.optimizer), data.repeat().batch(4), steps, waits)


def _train_fed(folder: str, steps: int) -> dict[str, Any]:
    import keras
    import numpy as np

    from sparkdl import context, data, distribute

    keras.utils.set_random_seed(context.rank)
    columns = {"feature_cols": list("abcd"), "label_cols": "y"}
    dataset = data.dataset(global_batch_size=12, **columns)
    if steps != ENDLESS:
        seen = sum(len(np.asarray(y)) for _, y in dataset)
        Path(folder, f"rows-{context.rank}").write_text(str(seen))
    return _fit(folder, _model(distribute.optimizer), dataset, None)


def _summary(run: Any, folder: str) -> dict[str, Any]:
    digests = {path.read_text() for path in Path(folder).glob("weights-*")}
    return {
        "state": str(run.state),
        "attempts": run.trials[0].attempts,
        "result": run.result,
        "digests": sorted(digests),
        "path": run.path,
    }


def strategy(spark: SparkSession, folder: str, steps: int = 16, **options: Any) -> Any:
    """Train with `tf.distribute`."""
    run = experiment.allreduce(
        lambda: _train_strategy(folder, steps), num_workers=3, progress=False, **options
    )
    return _summary(run, folder)


def ring(
    spark: SparkSession, folder: str, steps: int = 16, waits: bool = False, **options: Any
) -> Any:
    """Train with the ring; with `waits`, each rank waits in its fourth step for a file `go`."""
    run = experiment.allreduce(
        lambda: _train_ring(folder, steps, waits), num_workers=3, progress=False, **options
    )
    return _summary(run, folder)


def fed(spark: SparkSession, folder: str, steps: int = 16, **options: Any) -> Any:
    """Train on the rows of a DataFrame, which Spark sends."""
    count = 600 if steps < ENDLESS else 1_000_000
    columns = [f"cast(sin(id * {n}) as float) {name}" for n, name in enumerate("abcd", 1)]
    table = spark.range(count, numPartitions=7).selectExpr(*columns, "cast(id % 7 as float) y")
    run = experiment.allreduce(
        lambda: _train_fed(folder, steps), num_workers=3, data=table, progress=False, **options
    )
    seen = [int(path.read_text()) for path in Path(folder).glob("rows-*")]
    return {**_summary(run, folder), "rows": sum(seen)}


def _pin() -> dict[str, Any]:
    from sparkdl import distribute

    pin = f"{socket.gethostname()}:{os.environ['CUDA_VISIBLE_DEVICES']}"
    return {"pins": sorted(distribute.allgather_object(pin))}


def pinned(spark: SparkSession, size: int, **options: Any) -> Any:
    """Return the hosts and GPUs of the ranks of a gang."""
    run = experiment.allreduce(_pin, num_workers=size, progress=False, **options)
    return run.result["pins"]


def _train_servers(folder: str, steps: int) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    from sparkdl import distribute

    strategy = distribute.strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.02)
        optimizer.build(model.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        def replica() -> Any:
            with tf.GradientTape() as tape:
                x = tf.random.normal((8, 4))
                loss = tf.reduce_mean((model(x) - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            return loss

        return strategy.run(replica)

    for number in range(steps // 4):
        losses = [coordinator.schedule(step) for _ in range(4)]
        coordinator.join()
        if number == 3:
            tell(folder)
    return {"loss": float(losses[-1].fetch()), "host": socket.gethostname()}


def servers(spark: SparkSession, folder: str, steps: int = 40, **options: Any) -> Any:
    """Train with a coordinator, a worker and a parameter server."""
    run = experiment.parameter_server(
        lambda: _train_servers(folder, steps), num_workers=1, num_ps=1, progress=False, **options
    )
    return _summary(run, folder)


def _train_elastic(folder: str, epochs: int) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    import sparkdl.horovod as hvd
    from sparkdl import context, distribute
    from sparkdl.keras import Checkpoint

    class Tell(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            tell(folder)
            time.sleep(0.05)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            name = f"epoch-{epoch}-of-{hvd.size()}@{socket.gethostname()}"
            Path(folder, name).touch()
            # All ranks stop after the same epoch.
            if any(distribute.allgather_object(Path(folder, "go").exists())):
                self.model.stop_training = True

    keras.utils.set_random_seed(context.rank)
    data = tf.data.Dataset.from_tensor_slices(rows()).shard(context.world_size, context.rank)
    model = _model(distribute.optimizer)
    model.fit(data.batch(4), epochs=epochs, callbacks=[Tell(), Checkpoint()], verbose=0)
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
    Path(folder, f"weights-{context.rank}").write_text(digest)
    return {"host": socket.gethostname(), "size": hvd.size()}


def elastic(spark: SparkSession, folder: str, epochs: int = 3, **options: Any) -> Any:
    """Train with an elastic ring."""
    run = experiment.allreduce(
        lambda: _train_elastic(folder, epochs),
        num_workers=3,
        elastic=True,
        progress=False,
        **options,
    )
    return _summary(run, folder)


def _train_beside_slow_host(folder: str) -> dict[str, Any]:
    """Train until there is a file `go`; a host with a file `slow@<host>` is slow."""
    import keras
    import tensorflow as tf

    import sparkdl.horovod as hvd
    from sparkdl import context, distribute
    from sparkdl.distribute import step_times

    step_times.KEPT_S, step_times.POST_S = 0.05, 0.2
    is_slow = Path(folder, f"slow@{socket.gethostname()}")

    class Tell(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            tell(folder)
            with open(Path(folder, f"steps-{context.rank}"), "a") as file:
                process = f"{os.getpid()}@{socket.gethostname()}"
                file.write(f"{self.epoch} {batch} {hvd.size()} {process}\n")
            time.sleep(0.5 if is_slow.exists() else 0.02)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if any(distribute.allgather_object(Path(folder, "go").exists())):
                self.model.stop_training = True

    keras.utils.set_random_seed(context.rank)
    data = tf.data.Dataset.from_tensor_slices(rows()).shard(context.world_size, context.rank)
    model = _model(distribute.optimizer)
    model.fit(data.batch(4), epochs=10_000, callbacks=[Tell()], verbose=0)
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
    Path(folder, f"weights-{context.rank}").write_text(digest)
    return {"host": socket.gethostname(), "pid": os.getpid()}


def with_slow_host(spark: SparkSession, folder: str, **options: Any) -> Any:
    """Train with an elastic ring of two ranks, of which one is on a slow host."""
    from sparkdl.cluster.gang import rank_mover, slow_ranks

    slow_ranks.LOOK_S = rank_mover.LOOK_S = rank_mover.PAUSE_S = 0.5
    train = lambda: _train_beside_slow_host(folder)  # noqa: E731
    options = {"num_workers": 2, "elastic": True, "move_slow_ranks": True, **options}
    run = experiment.allreduce(train, progress=False, **options)
    again = experiment.load(run.path)
    return {**_summary(run, folder), "slow": again.slow_ranks}


def predict(spark: SparkSession, folder: str) -> Any:
    """Apply a model to a DataFrame; return the largest error, and the number of hosts."""
    import keras
    import numpy as np
    from pyspark.sql import functions as F

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.set_weights([np.array([[1.0], [2.0]]), np.array([0.5])])
    model.save(f"{folder}/model.keras")
    table = spark.range(3000, numPartitions=9).selectExpr(
        "id", "array(cast(id as float), cast(1 as float)) x"
    )
    predicted = experiment.predict(f"{folder}/model.keras", table, feature_cols="x")
    error = F.abs(F.col("prediction") - F.col("id") - 2.5)
    count, worst = predicted.agg(F.count("*"), F.max(error)).first()
    return {"count": count, "worst": worst}


def _squares(args: Any, ctx: Any) -> None:
    Path(args["folder"], f"{ctx.executor_id}@{socket.gethostname()}").touch()
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([row * row for row in feed.next_batch(10)])


def tf_cluster(spark: SparkSession, folder: str, endless: bool = False) -> Any:
    """Feed the rows of an RDD to a cluster of TensorFlowOnSpark's API."""
    from sparkdl.tfos import TFCluster

    sc = spark.sparkContext
    fed = TFCluster.InputMode.SPARK
    cluster = TFCluster.run(sc, _squares, {"folder": folder}, 3, 0, input_mode=fed)
    try:
        while True:
            total = cluster.inference(sc.parallelize(range(1000), 9)).sum()
            if not endless:
                return {"total": total}
    finally:
        cluster.shutdown()
