"""Runs in the training process. Keep the ranks of a model together during `fit`.

If the optimizer of a model averages gradients over all ranks, `fit` gets two more callbacks: one
before the user's callbacks and one after them. Keras is otherwise unchanged.
"""

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from sparkdl.distribute.callback_lists import add_last_callbacks
from sparkdl.distribute.callback_packets import pack, unpack
from sparkdl.distribute.chief_files import written_by_chief
from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.epoch_lengths import let_lengths_differ
from sparkdl.distribute.equal_variables import build_optimizer, make_equal, shared_variables
from sparkdl.distribute.joint_reducer import REDUCER, JointReducer, joint_reducer
from sparkdl.distribute.keras3_patches import add_callbacks, moving_statistics
from sparkdl.distribute.keras_metrics import Results, logs_of_all, results_of_all
from sparkdl.distribute.keras_verbs import with_logs_of_all, without_repeats
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.sharded_fit import check_callbacks, without_legacy_files
from sparkdl.errors import named_type

_EXTENDED = "_sparkdl_extended"
# The attribute of a callback with the position of its `fit`.
_POSITION = "_sparkdl_position"
# The method by which Keras 3 resolves `jit_compile="auto"`; on a GPU it usually selects XLA.
_RESOLVE_AUTO = "_resolve_auto_jit_compile"


def extend_fit(package: Any) -> None:
    """Make `fit` and `evaluate` of a package's models keep the ranks together, once.

    Args:
        package: keras or tf_keras.
    """
    if not hasattr(package.Model.fit, _EXTENDED):
        package.Model.fit = _with_synchronized_ranks(package.Model.fit, package.callbacks)
        setattr(package.Model.fit, _EXTENDED, True)
        add_last_callbacks(package.callbacks.CallbackList, _learn_callbacks)
        for name in ("evaluate", "test_on_batch", "train_on_batch"):
            setattr(package.Model, name, with_logs_of_all(getattr(package.Model, name)))
        package.Model.save = without_legacy_files(package.Model.save)
        if resolve_auto := getattr(package.Model, _RESOLVE_AUTO, None):
            setattr(package.Model, _RESOLVE_AUTO, _without_xla(resolve_auto))
        let_lengths_differ(package)


def _learn_callbacks(callback: Any, of_fit: list[Any]) -> None:
    """Tell the position of a `fit` all callbacks, with those of Keras itself."""
    if position := getattr(callback, _POSITION, None):
        position.callbacks = of_fit


def _without_xla(resolve_auto: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Wrap the method that resolves "auto": an averaging optimizer rules out XLA, see `_check`."""

    @functools.wraps(resolve_auto)
    def resolve(self: Any) -> bool:
        return joint_reducer(self) is None and resolve_auto(self)

    return resolve


def _with_synchronized_ranks(fit: Callable[..., Any], callbacks: Any) -> Callable[..., Any]:
    """Wrap `fit`: keep the ranks together if the model's optimizer averages over them.

    Args:
        fit: the method of `Model`.
        callbacks: the module `callbacks` of the same package.
    """
    signature, base = inspect.signature(fit), callbacks.Callback

    @functools.wraps(fit)
    def fit_together(self: Any, *args: Any, **kwargs: Any) -> Any:
        reducer = joint_reducer(self)
        _check(self, reducer)
        if reducer is None:
            return fit(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        position, x = _Position(self, reducer), bound.arguments.get("x")
        bound.arguments["x"] = position.remaining_rows(x)
        if bound.arguments.get("validation_steps") is None:
            validation = bound.arguments.get("validation_data")
            bound.arguments["validation_data"] = without_repeats(validation)
        add_callbacks(
            bound,
            _first_callback(base, reducer, position),
            _last_callback(base, reducer, position),
        )
        given = bound.arguments["callbacks"]
        position.callbacks = getattr(given, "callbacks", given)
        check_callbacks(self, position.callbacks)
        files = [c for c in position.callbacks if isinstance(c, callbacks.ModelCheckpoint)]
        position.admits_within_epoch = within_epoch = _num_batches(x) is not None
        try:
            with (
                written_by_chief(files, reducer.ring),
                reducer.counting_steps(position.admit if within_epoch else None),
            ):
                return fit(*bound.args, **bound.kwargs)
        except Exception as exc:
            # The error of the ring names the lost rank; TensorFlow's error does not.
            if ring_error := reducer.ring_error(exc):
                raise ring_error from exc
            raise

    return fit_together


def _check(model: Any, reducer: JointReducer | None) -> None:
    """Validate that gradients can be averaged where this model applies them.

    Raises:
        ValueError: if they cannot.
    """
    if getattr(getattr(model.optimizer, "inner_optimizer", None), REDUCER, None):
        raise ValueError(
            "compile has wrapped the optimizer in a LossScaleOptimizer, which averages gradients "
            "only on ranks whose own gradients are finite. Compile with "
            "distribute.optimizer(keras.mixed_precision.LossScaleOptimizer(optimizer))."
        )
    if reducer is None:
        return
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"the model was built under {named_type(strategy)}, which averages gradients as "
            "distribute.optimizer does. Build the model outside the strategy's scope, or compile "
            "it with the plain optimizer."
        )
    if model.jit_compile:
        raise ValueError(
            "the model is compiled with XLA (jit_compile=True), which cannot communicate with "
            "other ranks. Compile it with jit_compile=False."
        )


class _Position:
    """The position of a `fit`, which ranks that join later start from.

    Args:
        model: the model to fit.
        reducer: the reducer of the model's optimizer.

    Attributes:
        epoch: number of the current epoch.
        callbacks: all callbacks of the `fit`.
        is_late: True if this rank joins a `fit` that the other ranks have begun.
        admit: admits ranks that wait, and lets ranks go; None if no rank can join this `fit`.
        admits_within_epoch: it does so between any two steps; otherwise before an
            epoch, whose rows are divided among the ranks that are present then.
    """

    def __init__(self, model: Any, reducer: JointReducer) -> None:
        self._model = model
        self._reducer = reducer
        self._ring = reducer.ring if isinstance(reducer.ring, ElasticRing) else None
        self._num_skipped = 0
        self._states = b""
        self.epoch = 0
        self.callbacks: list[Any] = []
        self.is_late = self._ring is not None and self._ring.is_late
        # A restarted rank runs the training function from its start: it joins in its first `fit`.
        can_admit = self._ring and self._ring.recovers and not self._ring.has_trained
        self.admit = self._admit if can_admit and reducer.can_admit else None
        self.admits_within_epoch = False

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._reducer.begin_epoch()
        if not self._ring or not self.admit or self.admits_within_epoch:
            return
        while self._ring.allreduce(np.array([self._ring.is_awaited]), "max")[0]:
            self._admit()
        self.restore_callbacks()  # The other ranks have not begun this epoch before.

    def _admit(self) -> None:
        if self._ring and self._ring.meet():
            position = {"epoch": self.epoch, "step": self._reducer.steps}
            self._ring.pass_on(pack(self.callbacks))
            self._ring.share(shared_variables(self._model), position)

    def join(self) -> None:
        """Join the other ranks, which wait between two steps, at their position."""
        if not self.is_late or not self._ring:
            return
        if not self._model.built:
            raise ValueError(
                f"{self._model.name!r} has no weights yet, and cannot receive the weights of the "
                "other ranks. Start it with an Input layer, or call it on a batch before fit."
            )
        self._ring.meet()
        self._states = self._ring.pass_on(b"")
        position = self._ring.share(shared_variables(self._model), None)
        self._num_skipped = position["step"]
        set_initial_epoch(self._model, position["epoch"])

    def restore_callbacks(self) -> None:
        """Give the callbacks of a rank that has joined the states of the other ranks."""
        if self._states:
            unpack(self.callbacks, self._states)
        self._states = b""

    def end(self) -> None:
        """Record that this `fit` is over."""
        if self._ring:
            self._ring.has_trained = True
        if self.is_late:
            set_initial_epoch(self._model, None)

    def remaining_rows(self, x: Any) -> Any:
        """Return the rows of `fit`; a rank that joins a `tf.data.Dataset` skips the batches done.

        Args:
            x: the argument of `fit`.
        """
        import tensorflow as tf

        num_batches = _num_batches(x)
        if not self.is_late or num_batches is None or not isinstance(x, tf.data.Dataset):
            return x

        def take_num_skipped() -> Any:
            num_skipped = self._num_skipped
            self._num_skipped = 0
            return np.int64(num_skipped)

        def rotate(num_skipped: Any) -> Any:
            return x.skip(num_skipped).concatenate(x.take(num_skipped))

        num_skipped = tf.data.Dataset.from_tensors(0).map(
            lambda _: tf.ensure_shape(tf.numpy_function(take_num_skipped, [], tf.int64), [])
        )
        cardinality = tf.data.experimental.assert_cardinality(num_batches)
        return num_skipped.flat_map(rotate).apply(cardinality)


def _num_batches(x: Any) -> int | None:
    """Return the number of batches of an epoch, or 0 for arrays.

    Return None if Keras counts the batches in the first epoch: a rank that joins within that epoch
    would count too few.
    """
    if hasattr(x, "cardinality"):
        count = int(x.cardinality())
        return count if count > 0 else None
    return None if hasattr(x, "__next__") else 0


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Make the current `fit` of a model begin with an epoch.

    Both Keras 3 and tf_keras read these attributes after `on_train_begin`, for their
    BackupAndRestore.

    Args:
        model: the model.
        epoch: number of the epoch; None to let the next `fit` begin as its arguments say.
    """
    model._initial_epoch = model._training_state = None
    if epoch is not None:
        model._initial_epoch = epoch
        model._training_state = SimpleNamespace(
            maybe_load_initial_counters_from_ckpt=lambda *_, **__: (epoch, 0)
        )


def _first_callback(base: Any, reducer: JointReducer, position: _Position) -> Any:
    """Return the callback that is called before the user's callbacks."""
    world = reducer.ring

    class SynchronizeRanks(base):  # type: ignore[misc]
        """Make variables equal at the start, and statistics and logs at the end of an epoch."""

        has_steps = False
        num_batches = 0
        results: Any = None

        def on_train_begin(self, logs: Any = None) -> None:
            self.is_equal = position.is_late
            if self.model.built:
                build_optimizer(self.model)
                self.make_equal()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.num_batches = batch + 1
            self.make_equal()  # A model of tf_keras may get its variables with the first batch.

        def make_equal(self) -> None:
            if not self.is_equal:
                make_equal(self.model, reducer)
            self.is_equal = True

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.has_steps, self.num_batches = True, 0
            position.begin_epoch(epoch)

        def on_test_begin(self, logs: Any = None) -> None:
            if self.has_steps:
                self.results = _end_epoch(self.model, reducer, self.num_batches)
            self.has_steps = False

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.on_test_begin()  # Keras has not called it if there is no validation.
            if logs is not None:
                logs.update(logs_of_all(world, logs, self.results))

    return SynchronizeRanks()


def _end_epoch(model: Any, reducer: JointReducer, num_batches: int) -> Results:
    """End an epoch on all ranks: average the statistics, and return the results of the metrics."""
    world = reducer.ring
    has_ended = not reducer.is_over
    num_steps = max(num_batches, reducer.steps)
    reducer.end_epoch()
    _check_rows(world, num_steps, has_ended)
    for variable in moving_statistics(model):
        if not reducer.is_local(variable):
            variable.assign(world.allreduce(variable.numpy()))
    # Before a validation resets the metrics.
    return results_of_all(model, world, has_rows=num_steps > 0)


def _check_rows(world: Ring, num_steps: int, has_ended: bool) -> None:
    """Validate that an epoch had a step.

    Args:
        world: the ring of all ranks.
        num_steps: number of steps of this rank in the epoch.
        has_ended: True if this rank had no more rows.

    Raises:
        ValueError: on all ranks, if some of them had no rows and others had.
    """
    steps, are_without = zip(*world.allgather_object([num_steps, has_ended]), strict=True)
    if max(steps) or all(are_without):  # Keras warns of an epoch without rows by itself.
        return
    without = ", ".join(str(rank) for rank, has_ended in enumerate(are_without) if has_ended)
    raise ValueError(
        f"no rows on rank {without}, and an epoch ends with the first rank that has no more rows: "
        "no step was made. Give each rank at least one batch: use fewer ranks, or a reader of "
        "sparkdl.data, which gives all ranks equally many rows."
    )


def _last_callback(base: Any, reducer: JointReducer, position: _Position) -> Any:
    """Return the callback that is called after the user's callbacks."""

    class StopTogether(base):  # type: ignore[misc]
        """Stop all ranks when one rank stops; start a rank that joins later at their position."""

        def on_train_begin(self, logs: Any = None) -> None:
            position.join()  # After the user's callbacks, which may restore a checkpoint.

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            position.restore_callbacks()  # The other ranks have begun this epoch, too.

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            stops = np.array([bool(self.model.stop_training)])
            self.model.stop_training = bool(reducer.ring.allreduce(stops, "max")[0])

        def on_train_end(self, logs: Any = None) -> None:
            position.end()

    last = StopTogether()
    setattr(last, _POSITION, position)
    return last
