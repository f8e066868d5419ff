"""Runs in the training process. The dtype in which floating-point values travel."""

from typing import Any

import torch


class _Plain:
    """Values travel in their own dtype."""

    wire_dtype: Any = None

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor as it travels, and what `decompress` needs."""
        is_cast = cls.wire_dtype is not None and tensor.dtype.is_floating_point
        return (tensor.to(cls.wire_dtype) if is_cast else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return the tensor in the dtype that it had before `compress`."""
        return tensor.to(ctx)


class _Float16(_Plain):
    """Floating-point values travel as float16."""

    wire_dtype = torch.float16


class _BFloat16(_Plain):
    """Floating-point values travel as bfloat16, which has the range of float32."""

    wire_dtype = torch.bfloat16


class Compression:
    """The dtype in which floating-point values travel: their own, or one of 16 bits.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> sent, dtype = hvd.Compression.fp16.compress(torch.tensor(0.5))
        >>> sent.dtype, hvd.Compression.fp16.decompress(sent, dtype).dtype
        (torch.float16, torch.float32)
    """

    none = _Plain
    fp16 = _Float16
    bf16 = _BFloat16
