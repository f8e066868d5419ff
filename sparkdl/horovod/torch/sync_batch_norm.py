"""Runs in the training process. Batch normalization over the batches of all ranks."""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from sparkdl.horovod.reduction_ops import Sum
from sparkdl.horovod.torch.collectives import allreduce


class SyncBatchNorm(_BatchNorm):  # type: ignore[misc]
    """`torch.nn.BatchNorm` with the mean and variance of the batches of all ranks, while training.

    Ranks may have batches of different sizes. Unlike Horovod's, it works on the CPU too.

    Args:
        num_features, eps, momentum, affine, track_running_stats: see `torch.nn.BatchNorm2d`.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> hvd.SyncBatchNorm(3)(torch.randn(8, 3)).mean().abs() < 1e-6
        tensor(True)
    """

    def _check_input_dim(self, batch: Any) -> None:
        if batch.dim() < 2:
            raise ValueError(
                f"SyncBatchNorm got a batch of the shape {list(batch.shape)}; expected at least "
                "two dimensions: rows and features."
            )

    def forward(self, batch: Any) -> Any:
        """Return the normalized batch.

        Args:
            batch: tensor of the shape (rows, features, ...).
        """
        if not (self.training or self.running_mean is None):
            return super().forward(batch)
        self._check_input_dim(batch)
        wide = batch if batch.dtype == torch.float64 else batch.float()
        dims = [d for d in range(batch.dim()) if d != 1]
        shape = [1, -1] + [1] * (batch.dim() - 2)
        count = wide.new_tensor([wide.numel() // wide.size(1)])
        sums = allreduce(torch.cat([wide.sum(dims), count]), op=Sum)
        mean = sums[:-1] / sums[-1]
        count = sums[-1].detach()
        centered = wide - mean.view(shape)
        variance = allreduce((centered**2).sum(dims), op=Sum) / count
        if self.running_mean is not None:
            self._update(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        result = centered * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(batch.dtype)

    def _update(self, mean: Any, variance: Any) -> None:
        self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:  # The average over all batches.
            factor = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor)
