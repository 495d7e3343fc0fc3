"""BatchNorm over the samples of all ranks, so that it does not depend on how many there are.

torch's own SyncBatchNorm runs on accelerators only (2.13: "expected input tensor to be on GPU"); on processors the
same sums are made here with collectives that autograd knows. Ranks may have different numbers of samples, or none:
sums and counts are added, never means averaged (pytorch#22192). Running statistics are then alike on all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.nn import functional as collectives
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm


class SyncOnProcessors(_BatchNorm):
    """``y = (x - mean)/sqrt(var + eps) w + b`` with mean and variance over the samples of every rank.

    Not a SyncBatchNorm to torch, whose DDP refuses those on processors.
    """

    synchronised = True

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Any number of dimensions from 2 on."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Sums over the ranks in training; in evaluation the running statistics, as ever."""
        running = not self.training and self.running_mean is not None
        if running or not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(input) if running else _alone(self, input)
        shape = [1, -1, *([1] * (input.dim() - 2))]
        axes = [axis for axis in range(input.dim()) if axis != 1]
        count = torch.tensor(float(input.numel() // input.shape[1]), dtype=input.dtype, device=input.device)
        dist.all_reduce(count)
        mean = _added(input.sum(axes)) / count
        centred = input - mean.view(shape)
        variance = _added((centred * centred).sum(axes)) / count
        if self.track_running_stats:
            self._follow(mean.detach(), variance.detach() * count / (count - 1.0).clamp(min=1.0))
        out = centred * torch.rsqrt(variance + self.eps).view(shape)
        return out * self.weight.view(shape) + self.bias.view(shape) if self.affine else out

    def _follow(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def _added(values: torch.Tensor) -> torch.Tensor:
    """Over the ranks; the gradient is added over them too."""
    total: torch.Tensor = collectives.all_reduce(values)  # type: ignore[no-untyped-call]
    return total


def _alone(module: _BatchNorm, values: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _BatchNorm.forward(module, values)
    return out


def convert(model: Any, on_processors: bool) -> Any:
    """The model with each BatchNorm of it synchronised, the same parameters and statistics; others stay."""
    if not on_processors:
        return SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            module.__class__ = SyncOnProcessors
    return model
