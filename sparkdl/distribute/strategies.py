"""Runs in the training process. The tf.distribute strategy of this process."""

import functools
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from sparkdl import context
from sparkdl.context import Context
from sparkdl.distribute import keras3_patches, tested_versions
from sparkdl.distribute.autoshard import leave_shares
from sparkdl.distribute.join_marker import joining

__all__ = ["choose", "correct_keras", "strategy", "uses_tf_keras"]

# By default all gradients go as one buffer, after the last of them is computed; in pieces they
# overlap. A step of 25 million parameters on two CPU processes: 317 to 351 ms by default, 215 to
# 242 with pieces of 1 to 4 MiB.
BYTES_PER_PACK = 4 << 20


def strategy() -> Any:
    """The right tf.distribute strategy for this process; the same object every time.

    Build and compile the model under its `scope()`. With Keras 3, `compile`, `fit`, `evaluate` and
    `predict` work on any number of workers, and BatchNorm's moving statistics are averaged over
    the workers after each epoch; without a correction that this call makes they do neither.

    Returns:
        In `experiment.allreduce`: a `MultiWorkerMirroredStrategy` of all workers. It blocks until
        all of them have called it. On the chief of `experiment.parameter_server`: a
        `ParameterServerStrategy`. Everywhere else, outside a run too: a `MirroredStrategy` of this
        process's GPUs if it has several, else TensorFlow's default strategy.

    Raises:
        RuntimeError: this process is a worker or server of a parameter-server run; or, in a gang,
            TensorFlow has computed something before the first call.

    Example:
        >>> from sparkdl import distribute
        >>> with distribute.strategy().scope():
        ...     model = "built and compiled here"
        >>> distribute.strategy().num_replicas_in_sync
        1
    """
    # The strategy belongs to the process: a forked one makes its own.
    return _strategy(os.getpid())


@functools.lru_cache(maxsize=1)
def _strategy(pid: int) -> Any:
    me = context.current()
    makers: dict[str, Callable[[Context], Any]] = {
        "multi_worker": _multi_worker,
        "parameter_server": _parameter_server,
        "local": _local,
    }
    return makers[choose(me)](me)


def choose(me: Context) -> str:
    """Which kind of strategy a process needs: `multi_worker`, `parameter_server` or `local`.

    Raises:
        RuntimeError: it needs none.

    Example:
        >>> choose(Context(strategy="multi_worker", world_size=2)), choose(Context())
        ('multi_worker', 'local')
    """
    if me.strategy == "none":
        raise RuntimeError(
            f"distribute.strategy() was called on {me.role} {me.index} of a parameter-server run, "
            "which has none: the chief makes the strategy and drives all others. Call "
            "distribute.serve() here."
        )
    # A strategy of several workers with one worker only would lose what the local one can do.
    return "local" if me.strategy == "multi_worker" and me.world_size == 1 else me.strategy


def uses_tf_keras(environ: Mapping[str, str]) -> bool:
    """Whether `tf.keras` is tf_keras, which is TensorFlow's own question (tensorflow/__init__.py).

    Example:
        >>> uses_tf_keras({"TF_USE_LEGACY_KERAS": "1"}), uses_tf_keras({})
        (True, False)
    """
    return environ.get("TF_USE_LEGACY_KERAS") in ("true", "True", "1")


def _multi_worker(me: Context) -> Any:
    import tensorflow as tf

    if me.is_elastic:
        raise RuntimeError(
            "distribute.strategy() was called in a run with elastic=True: TensorFlow's strategies "
            "do not outlive the loss of a worker. Use distribute.optimizer, without a strategy."
        )
    if not os.environ.get("TF_CONFIG"):
        raise RuntimeError(  # TensorFlow would train on this worker alone, and say nothing.
            f"distribute.strategy() found no TF_CONFIG on worker {me.index} of {me.world_size}; "
            "expected the one that a run with framework='tensorflow' sets. Leave it as it was."
        )
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=BYTES_PER_PACK)
    try:
        with joining(me):
            made = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except (RuntimeError, ValueError) as exc:
        raise RuntimeError(
            f"this process cannot join the others any more: {exc} Call distribute.strategy() "
            "before anything that computes with TensorFlow, and make no other strategy."
        ) from exc
    leave_shares(made, me.world_size)
    correct_keras()
    return made


@functools.cache
def correct_keras() -> None:
    """Correct Keras 3 for several workers, where it is a version of which we know how."""
    if uses_tf_keras(os.environ):
        return
    import keras
    import tensorflow as tf

    if keras.backend.backend() != "tensorflow":
        return
    found = {"tensorflow": tf.__version__, "keras": keras.__version__}
    if message := tested_versions.untested(found):
        warnings.warn(f"Keras is left as it is. {message}", stacklevel=2)
    else:
        keras3_patches.correct()


def _parameter_server(me: Context) -> Any:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    with joining(me):
        return tf.distribute.ParameterServerStrategy(resolver)


def _local(me: Context) -> Any:
    import tensorflow as tf

    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()
