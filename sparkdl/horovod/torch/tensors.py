"""Runs in the training process. PyTorch's tensors as NumPy's arrays, and back.

They share their memory on the CPU; a tensor of a GPU is copied. NumPy has no bfloat16 of its own:
the dtype of `ml_dtypes` takes its place.
"""

from typing import Any

import numpy as np
import torch

from sparkdl.files.typed_json import dtype_named


def as_array(tensor: Any) -> Any:
    """Return a tensor as an array, which shares the memory of a contiguous tensor on the CPU.

    Raises:
        ValueError: if NumPy has no such array.

    Example:
        >>> as_array(torch.ones(2, dtype=torch.bfloat16)).dtype
        dtype(bfloat16)
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        kind = getattr(tensor, "layout", type(tensor).__name__)
        raise ValueError(
            f"a collective got a {kind}; expected a dense tensor. hvd.sparse_allreduce_async "
            "reduces sparse ones."
        )
    host = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if host.dtype == torch.bfloat16:
        return host.view(torch.int16).numpy().view(dtype_named("bfloat16"))
    try:
        return host.numpy()
    except (RuntimeError, TypeError) as exc:
        raise ValueError(
            f"a collective got a tensor of {tensor.dtype}, which NumPy does not have; convert it "
            "to another dtype."
        ) from exc


def as_tensor(array: Any) -> Any:
    """Return an array as a tensor on the CPU, which shares its memory.

    Example:
        >>> as_tensor(as_array(torch.ones(2, dtype=torch.bfloat16)))
        tensor([1., 1.], dtype=torch.bfloat16)
    """
    array = np.asarray(array, order="C")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def write(tensor: Any, array: Any) -> None:
    """Assign the values of an array to a tensor of the same shape and dtype."""
    # By `copy_` autograd notices that a tensor has changed which a backward pass needs.
    with torch.inference_mode(tensor.is_inference()):
        tensor.detach().copy_(as_tensor(array))
