"""Runs in the training process. Let Keras's methods beside `fit` return logs over all ranks."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.equal_variables import build_optimizer, make_equal
from sparkdl.distribute.joint_reducer import JointReducer, joint_reducer
from sparkdl.distribute.keras_metrics import logs_of_all, results_of_all

# The argument with which `fit` calls `evaluate`.
_IN_FIT = "_use_cached_eval_dataset"
_IS_EQUAL = "_sparkdl_is_equal"


def with_logs_of_all(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method: its loss and metrics are those of the rows of all ranks.

    Args:
        verb: `evaluate`, `test_on_batch` or `train_on_batch` of `Model`.
    """
    signature = inspect.signature(verb)
    trains = verb.__name__ == "train_on_batch"

    @functools.wraps(verb)
    def call_together(self: Any, *args: Any, **kwargs: Any) -> Any:
        reducer = joint_reducer(self)
        if reducer and trains:
            _start_equal(self, reducer)
        if reducer is None or not _is_shared(reducer, in_fit=_IN_FIT in kwargs):
            return verb(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        returns_dict = bound.arguments.get("return_dict", False)
        bound.arguments["return_dict"] = True
        if verb.__name__ == "evaluate" and bound.arguments.get("steps") is None:
            bound.arguments["x"] = without_repeats(bound.arguments.get("x"))
        own_logs = verb(*bound.args, **bound.kwargs)
        results = results_of_all(self, reducer.ring, has_rows=bool(own_logs))
        logs = logs_of_all(reducer.ring, own_logs, results)
        return logs if returns_dict else _in_order(self, logs)

    return call_together


def without_repeats(x: Any) -> Any:
    """Return rows of `sparkdl.data` without the row that a rank repeats; other data as it is."""
    return getattr(x, "without_repeats", x)


def _is_shared(reducer: JointReducer, in_fit: bool) -> bool:
    """Return True if all ranks call the method, and average what it returns."""
    # A restarted rank of an elastic gang may call it before it joins the others in `fit`.
    is_late = isinstance(reducer.ring, ElasticRing) and reducer.ring.is_late
    return not is_late and (in_fit or reducer.evaluates_together)


def _start_equal(model: Any, reducer: JointReducer) -> None:
    """Give all ranks the variables of rank 0 before the first step outside `fit`."""
    # A rank that joins an elastic gang late would be alone in this.
    if isinstance(reducer.ring, ElasticRing) or getattr(model, _IS_EQUAL, False):
        return
    if model.built:
        build_optimizer(model)
        make_equal(model, reducer)
        setattr(model, _IS_EQUAL, True)


def _in_order(model: Any, logs: Mapping[str, Any]) -> Any:
    """Return the values of logs as Keras does without `return_dict`."""
    names = [name for name in model.metrics_names if name in logs]
    names += sorted(set(logs) - set(names))
    values = [logs[name] for name in names]
    return values[0] if len(values) == 1 else values
