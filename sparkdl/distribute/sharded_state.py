"""Runs in the training process. Divide the state of a Keras optimizer among the ranks.

ZeRO, stage 1 (Rajbhandari and others 2020, "ZeRO: Memory optimizations toward training trillion
parameter models"). Each variable of the model is cut into as many flat parts as there are ranks,
those of the ring's own reduction, so that the sums of gradients have the bits that all ranks get
without shards, and any number of variables of any size is divided evenly. The optimizer of a rank
is built for the rank's parts: temporary variables, which have values only during a step. It then
updates them as it updates any variable, and the ranks gather the parts of the weights.

An optimizer that updates each value by itself gives a part the values that it gives the whole. An
optimizer that looks at whole variables would not, and is refused.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.graph_order import call_in_order
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.shard_exchange import ShardExchange, size_of
from sparkdl.distribute.shard_gradients import clipped, part_of_gradient
from sparkdl.distribute.shard_marks import mark_as_shard
from sparkdl.errors import PeerLostError

# The attribute in which an optimizer holds its `ShardedState`.
_STATE = "_sparkdl_sharded_state"

# The optimizers of Keras that update each value by itself, from values at the same place.
ELEMENTWISE = tuple("SGD RMSprop Adam AdamW Adadelta Adagrad Adamax Nadam Ftrl Lion".split())

_ALL_SAVE = (
    "Each rank has a part of the optimizer's state (shard=True), so that all ranks must save the "
    "model at the same time: call sparkdl.keras.save(model, path) on all ranks."
)


def check_shards(opt: Any, package: Any) -> None:
    """Validate that the state of an optimizer can be divided among ranks.

    Args:
        opt: an optimizer.
        package: the package of the optimizer: keras or tf_keras.

    Raises:
        ValueError: if it cannot.
    """
    if package.__name__ != "keras":
        raise ValueError("shard=True needs an optimizer of Keras 3, but got one of tf_keras.")
    inner = getattr(opt, "inner_optimizer", opt)
    if type(inner) not in [getattr(package.optimizers, name, None) for name in ELEMENTWISE]:
        raise ValueError(
            f"shard=True cannot divide the state of {type(inner).__name__}: a part of a variable "
            "must be updated as within the whole variable, which is known of "
            f"{', '.join(ELEMENTWISE)}. Use one of them, or shard=False."
        )
    if opt.built or inner.built:
        raise ValueError(
            f"this {inner.name} has variables already, which all ranks would keep; expected a new "
            "optimizer for shard=True. Use distribute.load_model(path, shard=True) for a model "
            "that was saved."
        )


def state_of(opt: Any) -> "ShardedState | None":
    """Return the sharded state of an optimizer, if it has one."""
    state: ShardedState | None = getattr(opt, _STATE, None)
    return state


class ShardedState:
    """The part of an optimizer's state that this rank has.

    Args:
        opt: an optimizer without variables, see `check_shards`. Its methods are replaced: it builds
            variables for the parts of this rank, and saves and loads whole variables.
        ring: the ring of all ranks.
    """

    def __init__(self, opt: Any, ring: Ring) -> None:
        self.variables: list[Any] = []
        self._ring = ring
        self._exchange = ShardExchange(ring)
        self._opt = opt
        self._inner = getattr(opt, "inner_optimizer", opt)
        # What the optimizer updates, in the order of the variables of the model.
        self._parts: list[Any] = []
        self._places: dict[Any, int] = {}
        # The variables of which parts and slots are parts, by the id of the slot.
        self._wholes: dict[int, Any] = {}
        self._updated: list[int] = []
        self._replace_methods()

    def _replace_methods(self) -> None:
        """Replace methods of the optimizer; a subclass could not be loaded elsewhere."""
        opt, inner = self._opt, self._inner
        # Bypass the attributes that Keras tracks.
        replace = object.__setattr__
        for each in {id(each): each for each in (opt, inner)}.values():
            replace(each, _STATE, self)
            replace(each, "save_own_variables", functools.partial(self._save, each))
            load = functools.partial(self._load, each.load_own_variables, each)
            replace(each, "load_own_variables", load)
            replace(each, "set_weights", functools.partial(self._set_weights, each))
            replace(each, "finalize_variable_values", self._finalize)
        replace(inner, "build", functools.partial(self._build, inner.build))
        replace(inner, "add_variable_from_reference", self._add_slot)
        replace(inner, "_clip_gradients", functools.partial(self._clip, inner._clip_gradients))
        uses_decay = functools.partial(self._uses_decay, inner._use_weight_decay)
        replace(inner, "_use_weight_decay", uses_decay)
        replace(opt, "apply", functools.partial(self._apply, opt.apply))
        if opt is not inner:
            replace(opt, "check_finite", functools.partial(self._are_finite, opt.check_finite))

    # ---- building

    def _build(self, build: Callable[[Any], None], variables: Sequence[Any]) -> None:
        """Build the optimizer for the parts of this rank.

        Args:
            build: the method of the optimizer.
            variables: variables of the model.
        """
        import tensorflow as tf

        if self._inner.built:
            return
        if fp8 := [v for v in variables if getattr(v, "overwrite_with_gradient", False)]:
            raise ValueError(
                f"{fp8[0].path} is replaced by its gradient (float8), and cannot be updated in "
                "parts: use shard=False."
            )
        self.variables = list(variables)
        with tf.init_scope():
            for place, variable in enumerate(self.variables):
                empty = tf.zeros([0], variable.dtype)
                part = tf.Variable(empty, shape=[None], trainable=False, name="part")
                self._parts.append(part)
                self._places[self._inner._var_key(variable)] = place
                self._places[self._inner._var_key(part)] = place
            build(list(self._parts))

    def _add_slot(
        self, reference_variable: Any, name: str = "var", initializer: Any = "zeros"
    ) -> Any:
        """Add a variable for a part, with the name that Keras gives that of the whole variable."""
        whole = self.variables[self._place_of(reference_variable)]
        path = getattr(whole, "path", whole.name).replace("/", "_").replace(":", "_")
        part = self._exchange.part_of(whole)
        slot = self._inner.add_variable(
            shape=(part.stop - part.start,),
            initializer=initializer,
            dtype=whole.dtype,
            name=f"{path}_{name}",
        )
        mark_as_shard(slot)
        self._wholes[id(slot)] = whole
        return slot

    def _place_of(self, variable: Any) -> int:
        """Return the place of a variable of the model, or of its part."""
        place = self._places.get(self._inner._var_key(variable))
        if place is None:
            raise ValueError(
                f"{self._inner.name} got the gradient of {variable.name}, for which it has no "
                "state: an optimizer can update the variables that it was built for."
            )
        return place

    # ---- updating

    def _apply(self, apply: Callable[..., Any], grads: Any, trainable_variables: Any = None) -> Any:
        """Update the parts of this rank, and gather the variables of all ranks.

        Args:
            apply: the method of the optimizer.
            grads: reduced gradients: whole ones, or flat parts of this rank.
            trainable_variables: variables of the model.
        """
        import tensorflow as tf

        variables = self.variables if trainable_variables is None else list(trainable_variables)
        if variables and not self._opt.built:
            self._opt.build(variables)
        places = [self._place_of(variable) for variable in variables]
        pairs = list(zip(grads, places, strict=True))
        self._updated = [place for gradient, place in pairs if gradient is not None]
        # The moving averages are those of all variables.
        changed = range(len(self.variables)) if self._inner.use_ema else self._updated
        for place in changed:
            whole = self.variables[place]
            part = self._exchange.part_of(whole)
            self._parts[place].assign(tf.reshape(whole, [-1])[part.start : part.stop])
        own = [self._own(*pair) for pair in pairs]
        result = apply(own, [self._parts[place] for place in places])
        self._exchange.assign(
            [self.variables[place] for place in changed],
            [self._parts[place] for place in changed],
        )
        for place in changed:
            self._parts[place].assign(tf.zeros([0], self._parts[place].dtype))
        for place in self._updated:
            constraint = getattr(self.variables[place], "constraint", None)
            if constraint is not None:
                self.variables[place].assign(constraint(self.variables[place]))
        return result

    def _own(self, gradient: Any, place: int) -> Any:
        whole = self.variables[place]
        return part_of_gradient(gradient, size_of(whole), self._exchange.part_of(whole))

    def _finalize(self, var_list: Any) -> None:
        """Assign the moving averages to the variables of the model, as Keras does after `fit`."""
        if self._inner.use_ema:
            averages = self._inner._model_variables_moving_average
            self._exchange.assign(self.variables, [average.value for average in averages])

    def _clip(self, clip: Callable[[Any], Any], grads: Sequence[Any]) -> Any:
        """Clip the parts of gradients by the norms of the whole gradients.

        Args:
            clip: the method of the optimizer.
            grads: the parts, in the order of `_updated`.
        """
        by_all = self._inner.global_clipnorm
        limit = by_all or self._inner.clipnorm
        if not limit or limit < 0:
            return clip(grads)
        add = functools.partial(self._ring.allreduce, op="sum")
        return clipped(grads, limit, bool(by_all), add)

    def _uses_decay(self, uses_decay: Callable[[Any], bool], variable: Any) -> bool:
        """Return True if a part has weight decay, as its whole variable has it."""
        whole = self.variables[self._place_of(variable)]
        return uses_decay(getattr(whole, "value", whole))

    def _are_finite(self, are_finite: Callable[[Any], Any], grads: Sequence[Any]) -> Any:
        """Return a tensor that is True if the parts of all ranks are finite."""
        import tensorflow as tf

        lowest = functools.partial(self._ring.allreduce, op="min")
        result = call_in_order(lowest, [tf.cast(are_finite(grads), tf.uint8)], tf.uint8)
        return tf.ensure_shape(result, []) > 0

    # ---- saving and loading

    def check_steps(self) -> None:
        """Validate that all ranks have a state of the same step.

        Raises:
            ValueError: if they have not, because only some of the ranks have restored theirs.
        """
        steps = self._ring.allgather_object(int(self._inner._iterations.numpy()))
        if len(set(steps)) > 1:
            raise ValueError(
                f"the states of {self._inner.name} are of the steps {steps}, by rank. Each rank "
                "has a part of the state (shard=True): restore the checkpoint on all ranks."
            )

    def _save(self, opt: Any, store: Any) -> None:
        """Write the whole variables of an optimizer, as Keras does; all ranks must call it."""
        try:
            for i, variable in enumerate(opt.variables):
                store[str(i)] = self._whole_value(variable)
        except (PeerLostError, RuntimeError) as exc:
            raise type(exc)(f"{str(exc).rstrip('.')}. {_ALL_SAVE}") from exc

    def _whole_value(self, variable: Any) -> Any:
        value = variable.numpy()
        whole = self._wholes.get(id(variable))
        if whole is None:
            return value
        (flat,) = self._exchange.gather([size_of(whole)], value)
        return flat.reshape(whole.shape).copy()

    def _load(self, load: Callable[[Any], None], opt: Any, store: Any) -> None:
        """Read this rank's parts of the variables that `_save`, or plain Keras, has written.

        Args:
            load: the method of the optimizer.
            opt: the optimizer.
            store: the values by the numbers of the variables.
        """
        values = {key: store[key] for key in store.keys()}  # noqa: SIM118 No mapping.
        if len(values) == len(opt.variables):
            keys = [str(i) for i in range(len(values))]
            values = {k: self._part(v, values[k]) for k, v in zip(keys, opt.variables, strict=True)}
        load(values)  # It warns if the number of variables differs.

    def _set_weights(self, opt: Any, weights: Sequence[Any]) -> None:
        """Set the values of the whole variables."""
        for variable, value in zip(opt.variables, weights, strict=True):
            variable.assign(self._part(variable, value))

    def _part(self, variable: Any, value: Any) -> Any:
        """Return this rank's part of a value of a variable of the optimizer."""
        whole = self._wholes.get(id(variable))
        if whole is None:
            return value
        array = np.asarray(value)
        if array.shape != tuple(whole.shape):
            raise ValueError(
                f"{variable.path} has the shape {tuple(whole.shape)}, but its saved value has the "
                f"shape {array.shape}."
            )
        return array.reshape(-1)[self._exchange.part_of(whole)]
