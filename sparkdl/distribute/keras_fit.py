"""Runs in the training process.

What `fit` does on every rank when its optimizer averages over all of them.

Keras is left as it is: `fit` only gets two callbacks more, one before the person's and one behind.
"""

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from sparkdl.distribute.collectives import broadcast_variables, mean
from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.gradient_reducer import Reducer
from sparkdl.distribute.keras3_patches import add_callbacks, statistics

__all__ = ["REDUCER", "begin_with", "extend", "state"]

# The name under which an optimizer has its reducer.
REDUCER = "_sparkdl_reducer"
_EXTENDED = "_sparkdl_extended"
# What Keras 3 asks for `jit_compile="auto"`: on a GPU the answer is XLA, as a rule.
_AUTO = "_resolve_auto_jit_compile"


def extend(package: Any) -> None:
    """Let `fit` of this package's models keep the ranks together; once in a process is enough.

    Args:
        package: keras or tf_keras.
    """
    if not hasattr(package.Model.fit, _EXTENDED):
        package.Model.fit = _in_step(package.Model.fit, package.callbacks.Callback)
        setattr(package.Model.fit, _EXTENDED, True)
        if auto := getattr(package.Model, _AUTO, None):
            setattr(package.Model, _AUTO, _without_xla(auto))


def _without_xla(auto: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """The answer of models whose optimizer averages: nobody has asked for XLA, see `_check`."""

    @functools.wraps(auto)
    def resolved(self: Any) -> bool:
        return not hasattr(getattr(self, "optimizer", None), REDUCER) and auto(self)

    return resolved


def _in_step(fit: Callable[..., Any], base: Any) -> Callable[..., Any]:
    """`fit` that keeps the ranks of a model together whose optimizer averages over them."""
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def fit_together(self: Any, *args: Any, **kwargs: Any) -> Any:
        reducer = getattr(self.optimizer, REDUCER, None)
        _check(self, reducer)
        if reducer is None:
            return fit(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        place, x = _Place(self, reducer), bound.arguments.get("x")
        bound.arguments["x"] = place.rest_of(x)
        who = (base, reducer, place)
        add_callbacks(bound, _together(*who), _agree(*who))
        try:
            with reducer.counting_steps(place.let_in, midway=_num_batches(x) is not None):
                return fit(*bound.args, **bound.kwargs)
        except Exception as exc:
            if reducer.ring.broken:  # What TensorFlow makes of it says less.
                raise reducer.ring.broken from exc
            raise

    return fit_together


def _check(model: Any, reducer: Reducer | None) -> None:
    """See that gradients can be averaged where this model's are applied.

    Raises:
        ValueError: they cannot.
    """
    if getattr(getattr(model.optimizer, "inner_optimizer", None), REDUCER, None):
        raise ValueError(
            "compile has put the optimizer into a LossScaleOptimizer, which asks for gradients of "
            "other ranks only where its own are finite. Compile with "
            "distribute.optimizer(keras.mixed_precision.LossScaleOptimizer(optimizer))."
        )
    if reducer is None:
        return
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"the model was made under a {type(strategy).__name__}, which averages gradients, and "
            "so does distribute.optimizer. Make it outside the strategy's scope, or compile it "
            "with the plain optimizer."
        )
    if model.jit_compile:
        raise ValueError(
            "the model is compiled with XLA (jit_compile=True), which cannot call other ranks. "
            "Compile it with jit_compile=False."
        )


class _Place:
    """How far `fit` is, for ranks that come into it later.

    Args:
        model, reducer: of this `fit`.
    """

    def __init__(self, model: Any, reducer: Reducer) -> None:
        self._model, self._reducer, self.epoch, self._skips = model, reducer, 0, 0
        self._ring = reducer.ring if isinstance(reducer.ring, ElasticRing) else None
        self.is_late = self._ring is not None and self._ring.is_late
        # Ranks that come later know nothing of what was before their first `fit`.
        takes_in = self._ring and self._ring.recovers and not self._ring.has_trained
        self.let_in = self._let_in if takes_in else None

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._reducer.begin_epoch()

    def _let_in(self) -> None:
        if self._ring and self._ring.meet():
            place = {"epoch": self.epoch, "step": self._reducer.steps}
            self._ring.share(state(self._model), place)

    def come_in(self) -> None:
        """Go on where the others are: they wait between two steps."""
        if not self.is_late or not self._ring:
            return
        if not self._model.built:
            raise ValueError(
                f"{self._model.name!r} has no weights yet, and cannot be given those of the other "
                "ranks. Start it with an Input layer, or call it on a batch before fit."
            )
        self._ring.meet()
        place = self._ring.share(state(self._model), None)
        self._skips = place["step"]
        begin_with(self._model, place["epoch"])

    def end(self) -> None:
        """This `fit` is over."""
        if self._ring:
            self._ring.has_trained = True
        if self.is_late:
            begin_with(self._model, None)

    def rest_of(self, x: Any) -> Any:
        """The rows; of a `tf.data.Dataset` at first from the batch on that the others are at."""
        import tensorflow as tf

        count = _num_batches(x)
        if not self.is_late or count is None or not isinstance(x, tf.data.Dataset):
            return x

        def skips() -> Any:
            skipped, self._skips = self._skips, 0
            return np.int64(skipped)

        def turned(skipped: Any) -> Any:
            return x.skip(skipped).concatenate(x.take(skipped))

        begin = tf.data.Dataset.from_tensors(0).map(
            lambda _: tf.ensure_shape(tf.numpy_function(skips, [], tf.int64), [])
        )
        return begin.flat_map(turned).apply(tf.data.experimental.assert_cardinality(count))


def _num_batches(x: Any) -> int | None:
    """How many batches an epoch has, 0 for arrays; None where Keras learns it from the first one.

    A rank that came into the middle of that would learn a wrong number.
    """
    if hasattr(x, "cardinality"):
        count = int(x.cardinality())
        return count if count > 0 else None
    return None if hasattr(x, "__next__") else 0


def begin_with(model: Any, epoch: int | None) -> None:
    """Let the `fit` that is under way begin with an epoch, or with None the next one as it says.

    Both Keras 3 and tf_keras look for it behind `on_train_begin`, for their BackupAndRestore.
    """
    model._initial_epoch = model._training_state = None
    if epoch is not None:
        model._initial_epoch = epoch
        model._training_state = SimpleNamespace(
            maybe_load_initial_counters_from_ckpt=lambda *_, **__: (epoch, 0)
        )


def _together(base: Any, reducer: Reducer, place: _Place) -> Any:
    """What comes before the person's callbacks."""
    world = reducer.ring

    class Together(base):  # type: ignore[misc]
        """Equal variables at the start; equal statistics and numbers at the end of an epoch."""

        has_steps = False

        def on_train_begin(self, logs: Any = None) -> None:
            optimizer = self.model.optimizer
            if self.model.built and hasattr(optimizer, "build"):
                optimizer.build(self.model.trainable_variables)
            if not place.is_late:
                broadcast_variables(state(self.model))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.has_steps = True
            place.begin_epoch(epoch)

        def on_test_begin(self, logs: Any = None) -> None:
            if self.has_steps:
                reducer.end_epoch()
                for variable in statistics(self.model):
                    variable.assign(world.allreduce(variable.numpy()))
            self.has_steps = False

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.on_test_begin()  # Without a validation nobody has called it.
            if logs:
                logs.update(mean(logs))

    return Together()


def _agree(base: Any, reducer: Reducer, place: _Place) -> Any:
    """What comes behind the person's callbacks."""

    class Agree(base):  # type: ignore[misc]
        """Where one rank stops, all stop. One that comes later begins where they are."""

        def on_train_begin(self, logs: Any = None) -> None:
            place.come_in()  # Behind callbacks that restore a checkpoint.

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            stops = np.array([bool(self.model.stop_training)])
            self.model.stop_training = bool(reducer.ring.allreduce(stops, "max")[0])

        def on_train_end(self, logs: Any = None) -> None:
            place.end()

    return Agree()


def state(model: Any, optimizer: Any = None) -> list[Any]:
    """What the ranks must have alike: not the seeds, which differ from rank to rank."""
    variables = (optimizer or model.optimizer).variables
    return [*model.weights, *(variables() if callable(variables) else variables)]
