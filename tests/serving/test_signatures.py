"""Signatures: inputs with two names alike, and fields that have no value."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef

from sparkdl.models.saved_model import saved_model_class
from sparkdl.serving.loaded_version import load
from sparkdl.serving.signatures import Signature, read_signatures

NAMES = {"always_print_fields_with_no_presence", "including_default_value_fields"}


def graph_of(*arguments: str | None) -> Any:
    """A graph whose signature has the inputs `x` and `x_1`, given the arguments of its function."""
    graph = MetaGraphDef()
    library = graph.graph_def.library.function
    wrapper, inner = library.add(), library.add()
    wrapper.signature.name, inner.signature.name = "wrapper", "inner"
    nodes = graph.graph_def.node
    nodes.add(name="restore", input=["saver_filename"]).attr["f"].func.name = "inner"
    nodes.add(name="variable")
    call = nodes.add(name="call")
    call.attr["f"].func.name = "wrapper"
    wrapper.node_def.add(name="constant")
    wrapper.node_def.add(name="other").attr["f"].func.name = "missing"
    within = wrapper.node_def.add(name="call")
    within.attr["f"].func.name = "inner"
    for index, name in enumerate(["x", "x_1"]):
        graph.signature_def["serving_default"].inputs[name].name = f"serving_{name}:0"
        call.input.append(f"serving_{name}")
        wrapper.signature.input_arg.add(name=f"arg_{name}")
        within.input.append(f"arg_{name}")
        if argument := arguments[index]:
            inner.arg_attr[index].attr["_user_specified_name"].s = argument.encode()
    call.input.append("variable")
    wrapper.signature.input_arg.add(name="weights")
    within.input.append("weights")
    return graph


def signature_of(graph: Any, folder: Path) -> Signature:
    """The signature of a graph, read from the file of a SavedModel."""
    saved = saved_model_class()()
    saved.meta_graphs.add().MergeFromString(graph.SerializeToString())
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
    return read_signatures(folder)["serving_default"]


@pytest.mark.parametrize(
    ("arguments", "separate"),
    [
        (("x", "x_1"), {"x", "x_1"}),
        (("x", "x"), set()),
        (("x", None), {"x"}),
        ((None, None), set()),
    ],
)
def test_inputs_are_separate_where_the_function_names_them_differently(
    tmp_path: Path, arguments: tuple[str | None, ...], separate: set[str]
) -> None:
    graph = graph_of(*arguments)
    assert signature_of(graph, tmp_path).separate == separate


def test_a_graph_that_does_not_call_a_function_tells_nothing(tmp_path: Path) -> None:
    graph = graph_of("x", "x_1")
    del graph.graph_def.node[2:]
    assert signature_of(graph, tmp_path).separate == set()
    graph = graph_of("x", "x_1")
    del graph.graph_def.library.function[0].node_def[2:]
    assert signature_of(graph, tmp_path).separate == set()


@pytest.mark.parametrize("is_older", [False, True])
def test_fields_without_a_value_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    newer: Any = json_format.MessageToDict

    def older(message: Any, preserving_proto_field_name: bool, **more: bool) -> Any:
        """As protobuf 4 has it."""
        [name] = NAMES & inspect.signature(newer).parameters.keys()
        assert more == {"including_default_value_fields": True}
        return newer(
            message, preserving_proto_field_name=preserving_proto_field_name, **{name: True}
        )

    if is_older:
        monkeypatch.setattr(json_format, "MessageToDict", older)
    metadata = signature_of(graph_of("x", "x_1"), tmp_path).metadata
    assert metadata["method_name"] == ""
    assert metadata["outputs"] == {}
    assert metadata["inputs"]["x"]["dtype"] == "DT_INVALID"


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [("x-1", "x1"), ("user-id", "user2"), ("b", "a"), ("a", "B"), ("0x", "aa"), ("a/z", "aB")],
)
def test_inputs_have_their_names_whatever_their_order(
    names: tuple[str, str], tmp_path: Path
) -> None:
    """TensorFlow orders names that it has changed, so that they can be those of parameters."""
    import tensorflow as tf

    class Module(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name) for name in names])
        def subtract(self, first: Any, second: Any) -> Any:
            return {"less": first - second}

    module = Module()
    tf.saved_model.save(module, str(tmp_path), signatures=module.subtract)
    version = load(str(tmp_path), "less", 1)
    signature = version.signatures["serving_default"]
    values = {names[1]: np.float32([2]), names[0]: np.float32([7])}
    assert version.run(signature, values).outputs["less"].tolist() == [5]
