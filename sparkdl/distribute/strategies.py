"""Runs in the training process. Create the tf.distribute strategy of this process."""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from sparkdl import context
from sparkdl.context import Context
from sparkdl.distribute import keras3_patches
from sparkdl.distribute.autoshard import keep_marked_shares
from sparkdl.distribute.join_marker import joining
from sparkdl.host.late_imports import after_import
from sparkdl.host.optional_packages import require

# By default all gradients travel as one buffer after the last of them is computed; smaller packs
# overlap with the computation. A step of 25 million parameters on two CPU processes took 317 to
# 351 ms by default, and 215 to 242 ms with packs of 1 to 4 MiB.
BYTES_PER_PACK = 4 << 20


def strategy() -> Any:
    """Return the tf.distribute strategy that suits this process; the same object every time.

    Build and compile the model under its `scope()`. With Keras 3, `compile`, `fit`, `evaluate` and
    `predict` work on any number of workers, and the moving statistics of BatchNorm are averaged
    over the workers after each epoch. Both need corrections of Keras, which this call makes.

    Returns:
        In `experiment.allreduce`, a `MultiWorkerMirroredStrategy` of all workers; the call blocks
        until all workers have called it. On the chief of `experiment.parameter_server`, a
        `ParameterServerStrategy`. In all other cases, also outside a run, a `MirroredStrategy` of
        this process's GPUs if it has several, and otherwise TensorFlow's default strategy.

    Raises:
        RuntimeError: if this process is a worker or server of a parameter-server run; or, in a
            gang, if TensorFlow has computed something before the first call; or if Keras lacks a
            name that is corrected for several workers.

    Example:
        >>> from sparkdl import distribute
        >>> with distribute.strategy().scope():
        ...     model = "built and compiled here"
        >>> distribute.strategy().num_replicas_in_sync
        1
    """
    require("tensorflow", "distribute.strategy()")
    return _strategy(os.getpid())


# Process-wide state: one strategy per process. The process id is an argument so that a forked
# process does not use the strategy of its parent.
@functools.lru_cache(maxsize=1)
def _strategy(pid: int) -> Any:
    me = context.current()
    factories: dict[str, Callable[[Context], Any]] = {
        "multi_worker": _multi_worker,
        "parameter_server": _parameter_server,
        "local": _local,
    }
    return factories[choose(me)](me)


def choose(me: Context) -> str:
    """Return the kind of strategy of a process: `multi_worker`, `parameter_server` or `local`.

    Args:
        me: context of the process.

    Raises:
        RuntimeError: if the process has no strategy.

    Example:
        >>> choose(Context(strategy="multi_worker", world_size=2)), choose(Context())
        ('multi_worker', 'local')
    """
    if me.strategy == "none":
        raise RuntimeError(
            f"distribute.strategy() was called on {me.role} {me.index} of a parameter-server run, "
            "which has no strategy: the chief creates the strategy and sends work to all others. "
            "Call distribute.serve() here."
        )
    # A strategy of several workers with one worker only would lose what the local one can do.
    return "local" if me.strategy == "multi_worker" and me.world_size == 1 else me.strategy


def uses_tf_keras(environ: Mapping[str, str]) -> bool:
    """Return True if `tf.keras` is tf_keras, by the rule of tensorflow/__init__.py.

    Args:
        environ: environment variables.

    Example:
        >>> uses_tf_keras({"TF_USE_LEGACY_KERAS": "1"}), uses_tf_keras({})
        (True, False)
    """
    return environ.get("TF_USE_LEGACY_KERAS") in ("true", "True", "1")


def _multi_worker(me: Context) -> Any:
    import tensorflow as tf

    if me.is_elastic:
        raise RuntimeError(
            "distribute.strategy() was called in a run with elastic=True, but TensorFlow's "
            "strategies do not survive the loss of a worker. Use distribute.optimizer, without a "
            "strategy."
        )
    if not os.environ.get("TF_CONFIG"):
        # Without TF_CONFIG, TensorFlow would train on this worker alone, without a warning.
        raise RuntimeError(
            f"distribute.strategy() found no TF_CONFIG on worker {me.index} of {me.world_size}; "
            "expected the variable that a run with framework='tensorflow' sets. Leave TF_CONFIG "
            "unchanged."
        )
    correct_strategies()
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=BYTES_PER_PACK)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except (RuntimeError, ValueError) as exc:
        raise RuntimeError(
            f"this process can no longer join the other workers: {exc} Call "
            "distribute.strategy() before anything that computes with TensorFlow, and create no "
            "other strategy."
        ) from exc


def correct_strategies() -> None:
    """Correct every strategy of several workers that this process creates from now on.

    A program may call `tf.distribute.MultiWorkerMirroredStrategy()` in place of `strategy()`. Like
    that of `strategy()`, such a strategy leaves marked shares of the rows unchanged, and Keras 3 is
    corrected for it. This function imports neither TensorFlow nor Keras.
    """
    after_import("tensorflow", _correct_constructor)


# Process-wide state: the class is changed once per process.
@functools.cache
def _correct_constructor(tensorflow: Any) -> None:
    cls = tensorflow.distribute.MultiWorkerMirroredStrategy
    construct = cls.__init__

    @functools.wraps(construct)
    def construct_and_correct(self: Any, *args: Any, **kwargs: Any) -> None:
        me = context.current()
        if me.role == "evaluator":
            # TensorFlow looks for the evaluator in the cluster, of which it is no part: KeyError.
            alone = tensorflow.train.ClusterSpec({})
            resolver = tensorflow.distribute.cluster_resolver.SimpleClusterResolver(alone)
            kwargs.setdefault("cluster_resolver", resolver)
        with joining(me):
            construct(self, *args, **kwargs)
        num_workers = self.num_replicas_in_sync // len(self.extended.worker_devices)
        if num_workers > 1:
            keep_marked_shares(self, num_workers)
            after_import("keras", lambda keras: _correct_keras())

    cls.__init__ = construct_and_correct


# Process-wide state: Keras is patched once per process.
@functools.cache
def _correct_keras() -> None:
    """Correct Keras 3 for several replicas.

    Raises:
        RuntimeError: if a correction does not know the installed Keras.
    """
    if uses_tf_keras(os.environ):
        return
    import keras

    # Keras 2, which is a part of TensorFlow up to 2.15, needs no correction.
    if hasattr(keras, "ops") and keras.backend.backend() == "tensorflow":
        keras3_patches.apply()


def _parameter_server(me: Context) -> Any:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    with joining(me):
        return tf.distribute.ParameterServerStrategy(resolver)


def _local(me: Context) -> Any:
    import tensorflow as tf

    if len(tf.config.list_physical_devices("GPU")) > 1:
        after_import("keras", lambda keras: _correct_keras())
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()
