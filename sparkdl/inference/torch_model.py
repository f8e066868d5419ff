"""Runs in a Spark task. Load models of PyTorch, and call them with arrays."""

import importlib
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.host.optional_packages import require
from sparkdl.inference.model_file import StoredModel
from sparkdl.inference.own_modules import OwnModules
from sparkdl.inference.returned_arrays import arrays_of
from sparkdl.inference.task_environment import TaskEnvironment, num_cores
from sparkdl.inference.tensor_spec import TensorSpec, fit_rows
from sparkdl.inference.torch_objects import float_dtype
from sparkdl.inference.traced_model import TracedModel

# Lets torch.load read tensors only, also where it is called by torch.export.load.
WEIGHTS_ONLY = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}


def load_torch(stored: StoredModel, inputs: Sequence[TensorSpec], detect_gpus: bool) -> TracedModel:
    """Load a model, on the GPU of this task if there is one.

    Args:
        stored: the model: a module that the driver has pickled, or a file that holds a program.
        inputs: the inputs of the model.
        detect_gpus: use a GPU of this host if Spark assigned none to the task.

    Raises:
        MissingPackageError: if PyTorch is not installed on this host.
    """
    is_sent = stored.library == "torch"
    modules = OwnModules(stored.modules)
    variables = {} if is_sent else WEIGHTS_ONLY
    with TaskEnvironment(detect_gpus, variables), modules.importable():
        torch = _import_torch()
        torch.set_num_threads(num_cores())
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if is_sent:
            # The driver sent this module, on its CPU.
            module = pickle.loads(stored.data or b"").eval().to(device)
            num_rows = None
        else:
            with stored.open_local() as path:
                module, num_rows = load_program(stored.library, path, device)
    names = [spec.name for spec in inputs]
    floats = float_dtype(module)

    def tensor(array: Any, spec: TensorSpec) -> Any:
        """Return the rows of an input; floats in the dtype of the weights, as in training."""
        dtype = floats if spec.dtype.startswith("float") else spec.dtype
        return torch.tensor(fit_rows(array, spec, np.dtype(dtype)), device=device)

    def call(arrays: Sequence[Any]) -> list[Any]:
        tensors = [tensor(*pair) for pair in zip(arrays, inputs, strict=True)]
        with torch.inference_mode(), modules.importable():
            if stored.by_name:
                returned = module(**dict(zip(names, tensors, strict=True)))
            else:
                returned = module(*tensors)
        if isinstance(returned, list):
            returned = tuple(returned)
        return arrays_of(returned, stored.outputs, to_numpy)

    return TracedModel(stored.outputs, call, num_rows, (ValueError, IndexError))


def _import_torch() -> Any:
    require("torch", "the model")
    return importlib.import_module("torch")


def load_program(library: str, path: Path, device: str) -> tuple[Any, int | None]:
    """Return a program as a callable, and the number of rows that it takes at once.

    Args:
        library: `torch.jit` or `torch.export`.
        path: the file of the program.
        device: the device on which it computes, such as `cuda`.
    """
    import torch

    if library == "torch.jit":
        return torch.jit.load(str(path), device).eval(), None
    with warnings.catch_warnings():
        # PyTorch's own reader warns of the buffers that it reads.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        program = torch.export.load(path)
    if device != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    input_names = set(program.graph_signature.user_inputs)
    shapes = [
        node.meta["val"].shape
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in input_names
    ]
    # An axis of any length is a symbol, not an int.
    fixed = {shape[0] for shape in shapes if len(shape) and type(shape[0]) is int}
    return program.module(), max(fixed, default=None)


def to_numpy(output: Any) -> Any:
    """Return the array of a tensor; a list of arrays for tensors of different lengths."""
    if isinstance(output, list | tuple):
        return [to_numpy(row) for row in output]
    if str(output.dtype) == "torch.bfloat16":
        output = output.float()
    return output.cpu().numpy()
