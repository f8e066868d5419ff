"""Where it runs: P. What `fit` does on every rank when its optimizer averages over all of them.

Keras is left as it is: `fit` only gets two callbacks more, one before the person's and one behind.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from sparkdl.distribute.collectives import broadcast_variables, mean
from sparkdl.distribute.graph import Reducer
from sparkdl.distribute.keras3 import add_callbacks, statistics

__all__ = ["REDUCER", "extend", "state"]

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
        package.Model.fit = _together(package.Model.fit, package.callbacks.Callback)
        setattr(package.Model.fit, _EXTENDED, True)
        if auto := getattr(package.Model, _AUTO, None):
            setattr(package.Model, _AUTO, _without_xla(auto))


def _without_xla(auto: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """The answer of models whose optimizer averages: nobody has asked for XLA, see `_check`."""

    @functools.wraps(auto)
    def resolved(self: Any) -> bool:
        return not hasattr(getattr(self, "optimizer", None), REDUCER) and auto(self)

    return resolved


def _together(fit: Callable[..., Any], base: Any) -> Callable[..., Any]:
    """`fit` that keeps the ranks of a model together whose optimizer averages over them."""
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def fit_together(self: Any, *args: Any, **kwargs: Any) -> Any:
        reducer = getattr(self.optimizer, REDUCER, None)
        _check(self, reducer)
        if reducer is None:
            return fit(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        add_callbacks(bound, *_callbacks(base, reducer))
        try:
            with reducer.counting_steps():
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


def _callbacks(base: Any, reducer: Reducer) -> tuple[Any, Any]:
    """What comes before the person's callbacks, and behind them."""
    world = reducer.ring

    class Together(base):  # type: ignore[misc]
        """Equal variables at the start; equal statistics and numbers at the end of an epoch."""

        has_steps = False

        def on_train_begin(self, logs: Any = None) -> None:
            optimizer = self.model.optimizer
            if self.model.built and hasattr(optimizer, "build"):
                optimizer.build(self.model.trainable_variables)
            broadcast_variables(state(self.model))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.has_steps = True

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

    class Agree(base):  # type: ignore[misc]
        """Where one rank stops, all stop."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            stops = np.array([bool(self.model.stop_training)])
            self.model.stop_training = bool(world.allreduce(stops, "max")[0])

    return Together(), Agree()


def state(model: Any) -> list[Any]:
    """What the ranks must have alike: not the seeds, which differ from rank to rank."""
    variables = model.optimizer.variables
    return [*model.weights, *(variables() if callable(variables) else variables)]
