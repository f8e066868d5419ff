"""Runs on the driver. Recognise models of PyTorch in memory, and save those that are programs."""

import copy
from typing import Any


def is_torch(model: object) -> bool:
    """Return True for a module of PyTorch or a program of `torch.export`; imports no PyTorch."""
    names = {(base.__module__, base.__name__) for base in type(model).__mro__}
    return bool(
        names
        & {
            ("torch.nn.modules.module", "Module"),
            ("torch.export.exported_program", "ExportedProgram"),
        }
    )


def save_program(model: Any, file: Any) -> str | None:
    """Save a program, and return its format, see `torch_format`; None for a module of Python.

    Args:
        model: a model of PyTorch.
        file: a path or a file object.
    """
    import torch

    if isinstance(model, torch.export.ExportedProgram):
        torch.export.save(model, file)
        return "torch.export"
    if isinstance(model, torch.jit.ScriptModule):
        torch.jit.save(model, file)
        return "torch.jit"
    return None


def float_dtype(module: Any) -> str:
    """Return the dtype in which a module takes floats: float64 if its weights have it.

    Example:
        >>> import torch
        >>> float_dtype(torch.nn.Linear(1, 1).double()), float_dtype(torch.nn.ReLU())
        ('float64', 'float32')
    """
    weights = {str(each.dtype) for each in module.parameters() if each.is_floating_point()}
    return "float64" if weights == {"torch.float64"} else "float32"


def on_cpu(module: Any) -> Any:
    """Return a module on the CPU: the module itself, or a copy of one that is elsewhere."""
    tensors = (*module.parameters(), *module.buffers())
    is_elsewhere = any(tensor.device.type != "cpu" for tensor in tensors)
    return copy.deepcopy(module).cpu() if is_elsewhere else module
