"""Runs anywhere (pure). The arguments of a function in the graph of a SavedModel.

A signature names the parts of a ragged argument `x` `x` and `x_1`. Two arguments may have the same
names. The function that the signature calls keeps the name of the argument of each part.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["separate_inputs"]

_ARGUMENT = "_user_specified_name"


def separate_inputs(graph: Any, definition: Any) -> frozenset[str]:
    """Return the inputs of a signature that are arguments of their own, as far as it can be told.

    Args:
        graph: the `MetaGraphDef`.
        definition: the `SignatureDef`.
    """
    functions = {f.signature.name: f for f in graph.graph_def.library.function}
    names = {info.name.partition(":")[0]: key for key, info in definition.inputs.items()}
    for node in graph.graph_def.node:
        wrapper = functions.get(node.attr["f"].func.name) if "f" in node.attr else None
        if wrapper is None or not names.keys() & {*node.input}:
            continue
        # The wrapper has the inputs of the signature, in the order of the call.
        pairs = zip(wrapper.signature.input_arg, node.input, strict=False)
        inputs = {arg.name: names[given] for arg, given in pairs if given in names}
        return _separate(wrapper, inputs, functions)
    return frozenset()


def _separate(
    wrapper: Any, inputs: Mapping[str, str], functions: Mapping[str, Any]
) -> frozenset[str]:
    for call in wrapper.node_def:
        inner = functions.get(call.attr["f"].func.name) if "f" in call.attr else None
        if inner is None:
            continue
        arguments = {}
        for index, given in enumerate(call.input):
            attributes = inner.arg_attr.get(index)
            if given in inputs and attributes is not None and _ARGUMENT in attributes.attr:
                arguments[inputs[given]] = attributes.attr[_ARGUMENT].s
        shared = [*arguments.values()]
        return frozenset(key for key, name in arguments.items() if shared.count(name) == 1)
    return frozenset()
