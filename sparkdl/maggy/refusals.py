"""Runs anywhere. Names of maggy that sparkdl does not have, with what to write in their place."""

from collections.abc import Iterable

from sparkdl.host.missing_names import missing_name

__all__ = ["refuse"]

_ALLREDUCE = (
    "Write experiment.allreduce(train, num_workers=4{0}) of sparkdl, whose function builds its "
    "model and its data{1} itself"
)
_TENSORFLOW = _ALLREDUCE.format("", " under distribute.strategy().scope()")
_TORCH = _ALLREDUCE.format(", framework='torch'", "")
_SAMPLER = "Write experiment.search(train, space, algorithm=...) of sparkdl with an Optuna sampler"
_INSTEAD = {
    "TfDistributedConfig": _TENSORFLOW,
    "TorchDistributedConfig": _TORCH,
    "MaggyDDPModuleWrapper": _TORCH,
    "MaggyDataLoader": _TORCH,
    "AbstractAblator": "Write experiment.launch(train, grid) of sparkdl with what is left out",
    "AbstractPruner": "Write experiment.search(..., pruner=...) of sparkdl with an Optuna pruner",
    "Hyperband": "Write experiment.search(..., pruner={'hyperband': {'promote': True, "
    "'max_reports': 27}}) of sparkdl",
    "AbstractEarlyStop": "Write experiment.search(..., pruner=...) of sparkdl with an Optuna "
    "pruner",
    "BaseAsyncBO": _SAMPLER,
    "Trial": "A trial of sparkdl is one of experiment.load(path).trials",
    "util": "Its functions are inner ones of maggy; spark.sparkContext, context and tensorboard "
    "of sparkdl have what trials need",
    "trial": "A trial of sparkdl is one of experiment.load(path).trials",
    "pruner": "Write experiment.search(..., pruner='hyperband') of sparkdl",
    "constants": "Metrics are numbers of Python or NumPy",
}


def refuse(module: str, name: str, names: Iterable[str]) -> Exception:
    """Return the error to raise from the `__getattr__` of a module, see `missing_name`.

    Args:
        module: the name of the module.
        name: the missing name.
        names: the names that the module has.

    Example:
        >>> raise refuse("sparkdl.maggy.config", "TorchDistributedConfig", ())
        Traceback (most recent call last):
        AttributeError: sparkdl.maggy.config has no 'TorchDistributedConfig'. Write \
experiment.allreduce(train, num_workers=4, framework='torch') of sparkdl, whose function builds \
its model and its data itself. See docs/maggy.md.
    """
    if name in _INSTEAD:
        text = f"{module} has no {name!r}. {_INSTEAD[name]}. See docs/maggy.md."
    else:
        expected = f" Expected one of {', '.join(names)}." if names else ""
        text = f"module {module!r} has no attribute {name!r}.{expected} See docs/maggy.md."
    return missing_name(text, depth=2)
