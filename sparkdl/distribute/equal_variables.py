"""Runs in the training process. Give all ranks equal variables of a model and its optimizers."""

from typing import Any

from sparkdl.distribute.joint_reducer import JointReducer, averaging_optimizers
from sparkdl.distribute.sharded_state import state_of


def shared_variables(model: Any, optimizer: Any = None) -> list[Any]:
    """Return the variables that must be equal on all ranks; seeds are not among them.

    Args:
        model: a model of keras or tf_keras.
        optimizer: by default all optimizers of the model that average gradients, and
            `model.optimizer`.
    """
    variables_of_all: list[Any] = list(model.weights)
    others = [each for each in averaging_optimizers(model) if each is not model.optimizer]
    for each in [optimizer] if optimizer else [model.optimizer, *others]:
        own_variables = each.variables if each else ()
        variables_of_all += own_variables() if callable(own_variables) else own_variables
    # The optimizers of a model of tf_keras may be among its own variables.
    return list({id(variable): variable for variable in variables_of_all}.values())


def build_optimizer(model: Any) -> None:
    """Create the variables of the optimizer of a model, unless it has more of its own."""
    optimizers = averaging_optimizers(model)
    if model.optimizer in optimizers and hasattr(model.optimizer, "build") and len(optimizers) == 1:
        model.optimizer.build(model.trainable_variables)


def make_equal(model: Any, reducer: JointReducer) -> None:
    """Give all ranks of a ring the variables of its first rank, but for those of each rank."""
    if reducer.ring.size == 1:
        return
    for optimizer in averaging_optimizers(model):
        if (state := state_of(optimizer)) and optimizer.built:
            state.check_steps()
    slots = {id(slot) for slot in _local_slots(model, reducer)}
    for variable in shared_variables(model):
        if not reducer.is_local(variable) and id(variable) not in slots:
            variable.assign(reducer.ring.broadcast(variable.numpy()))


def _local_slots(model: Any, reducer: JointReducer) -> list[Any]:
    """Return what an optimizer keeps for the variables of each rank, such as momentums."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    slots: list[Any] = []
    for variable in model.trainable_variables:
        if not reducer.is_local(variable):
            continue
        if hasattr(optimizer, "get_slot_names"):  # A legacy optimizer of tf_keras.
            slots += optimizer._slots.get(variable._unique_id, {}).values()
        elif (place := _place_in(optimizer, variable)) is not None:
            attributes = {
                name: value for name, value in vars(optimizer).items() if name != "_variables"
            }
            slots += [
                v[place] for v in attributes.values() if isinstance(v, list) and len(v) > place
            ]
    return slots


def _place_in(optimizer: Any, variable: Any) -> int | None:
    """Return the position of a model's variable in the lists of an optimizer."""
    if hasattr(optimizer, "_index_dict"):  # tf_keras
        place: int | None = optimizer._index_dict.get(optimizer._var_key(variable))
        return place
    variables = getattr(optimizer, "_trainable_variables", ())
    return next((i for i, other in enumerate(variables) if other is variable), None)
