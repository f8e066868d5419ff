"""Runs in the training process. One order of the collectives of a `tf.compat.v1` graph.

A session runs operations that do not depend on each other in any order, and each rank in another
one: see `name_order`.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.world import ring
from sparkdl.horovod.name_order import NameOrder, order_of
from sparkdl.horovod.process_sets import ProcessSet

_Function = Callable[..., Sequence[Any]]


def collective_scope(function: _Function, tensors: Sequence[Any], name: str | None = None) -> Any:
    """Return a name scope for a collective in a graph, by which the ranks find each other.

    It is unique in the graph, and does not depend on the other collectives of the graph, which may
    differ between the ranks.

    Args:
        function: a function that is defined in the collective.
        tensors: the tensors.
        name: name of the collective; by default that of the collective and of the first tensor.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return contextlib.nullcontext()
    kind = function.__qualname__.partition(".")[0].strip("_")
    name = name or f"{kind}_{_origin(tensors[0]).name}"
    return tf.name_scope("hvd_" + re.sub(r"[^A-Za-z0-9_./\\-]", "_", name))


def call_in_session(
    function: _Function,
    process_set: ProcessSet,
    tensors: Sequence[Any],
    dtypes: Sequence[Any],
    scope: str,
) -> list[Any]:
    """Add a collective to a graph; return the tensors of its results.

    Args:
        function: takes a ring and an array for each tensor, and returns a list of arrays.
        process_set: the ranks that take part.
        tensors: the tensors.
        dtypes: dtypes of the results.
        scope: a scope that only this collective has, see `collective_scope`.
    """
    order, key = _order_of(process_set), _key(scope)

    def call(*arrays: Any) -> Any:
        return order.call(lambda ring: function(ring, *arrays), key)

    plain = tf.autograph.experimental.do_not_convert(call)
    dataset = tf.data.Dataset.from_tensors(tuple(tensors)).map(
        lambda *values: tuple(tf.numpy_function(plain, values, dtypes))
    )
    # A session has a thread for each core only. This dataset has one of its own, so that as many
    # collectives can wait as the graph has.
    kinds: dict[str, Any] = {"output_types": dtypes, "output_shapes": [None] * len(dtypes)}
    threaded = tf.raw_ops.PrivateThreadPoolDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_threads=tf.constant(1, tf.int64),
        **kinds,
    )
    return list(tf.raw_ops.DatasetToSingleElement(dataset=threaded, **kinds))


def session_ring(process_set: ProcessSet) -> Ring:
    """Return the ring that `call_in_session` passes to functions."""
    return _order_of(process_set).ring


def _order_of(process_set: ProcessSet) -> NameOrder:
    if isinstance(ring(), ElasticRing):
        raise RuntimeError(
            "an elastic gang has no collectives in sessions of tf.compat.v1, because its ranks "
            "change. Run without elastic=True."
        )
    return order_of(process_set)


def _origin(tensor: Any) -> Any:
    """Return the tensor of the program that became this one.

    These operations are added on the way, and their numbers count the collectives of the graph.
    """
    while tensor.op.type in ("Identity", "IdentityN", "Cast"):
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor


def _key(scope: str) -> str:
    """Return a name that no other collective of the graph has, and the ranks have in common.

    Args:
        scope: a scope that is unique in the graph, or in one of its functions.
    """
    graph, parts = tf.compat.v1.get_default_graph(), [scope.rstrip("/")]
    while hasattr(graph, "outer_graph"):
        # The number of a function counts all functions of the process.
        parts.insert(0, re.sub(r"_\d+$", "", graph.name))
        graph = graph.outer_graph
    return parts[0] if len(parts) == 1 else graph.unique_name("/".join(parts))
