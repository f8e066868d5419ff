"""Runs in a Spark task. Load a model with a loader, and call it with arrays."""

import sys
from collections.abc import Sequence
from typing import Any

from sparkdl.inference.loader_model import read_loader_model
from sparkdl.inference.model_file import StoredModel
from sparkdl.inference.task_environment import TaskEnvironment, num_cores
from sparkdl.inference.traced_model import TracedModel


def load_stored(stored: StoredModel, environment: TaskEnvironment) -> TracedModel:
    """Load a model by its loader.

    Args:
        stored: the folder of the model.
        environment: the variables with which it is loaded and called: a framework that it uses
            may start at the first call only.
    """
    with stored.open_local() as path, environment:
        traced = read_loader_model(path).trace(path)[stored.signature]
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(num_cores())

    def call(arrays: Sequence[Any]) -> Sequence[Any]:
        with environment:
            return traced.function(arrays)

    return TracedModel(traced.outputs, call)
