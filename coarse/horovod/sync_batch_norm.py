"""SyncBatchNorm: batch statistics over all workers' batches."""

import torch
from torch import nn

from coarse.horovod.rows import gathered
from coarse.protocol.dtypes import Op
from coarse.torch.groups.process_sets import global_process_set


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm as torch.nn.BatchNorm1d, 2d and 3d, in training with moments of all workers' values.

    Workers' batches may differ in size, and one may be empty. Gradients are those of the whole batch. In evaluation,
    and with one worker, it is torch's own batch norm.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm wants at least 2 dimensions (batch, channels, ...), got {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise (n, c, ...), and return the same shape and type."""
        self._check_input_dim(input)
        has_running = self.running_mean is not None
        if not (self.training or not has_running) or global_process_set.size() == 1:
            return super().forward(input)
        mean, variance, count = _moments_of_all(input)
        if has_running and self.training:
            self._follow(mean.detach(), variance.detach(), count.item())
        shape = [1, -1, *[1] * (input.dim() - 2)]
        normal = (input - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    def _follow(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        with torch.no_grad():
            factor = self.momentum
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                if factor is None:
                    factor = 1.0 / float(self.num_batches_tracked)
            weight = 0.0 if factor is None else factor
            unbiased = variance * (count / max(count - 1.0, 1.0))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)


def _moments_of_all(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return mean and biased variance by channel (c,) of all workers' values (n, c, ...), and the count.

    One allgather of each worker's count, mean and sum of squared deviations; halves are summed in float32.
    """
    channels = values.shape[1]
    wide = values if values.dtype in (torch.float32, torch.float64) else values.float()
    flat = wide.transpose(0, 1).reshape(channels, -1)
    count = flat.shape[1]
    mean = flat.sum(1) / max(count, 1)
    squares = (flat - mean.view(-1, 1)).square().sum(1)
    own = torch.cat([mean.new_full((1,), count), mean, squares]).view(1, -1)
    every = gathered([own], None, global_process_set, Op.SUM)[0]
    counts, means, all_squares = every[:, :1], every[:, 1 : 1 + channels], every[:, 1 + channels :]
    total = counts.sum()
    if not total.item():
        raise ValueError("SyncBatchNorm: no worker has any value in this batch; give at least one of them a row")
    overall = (counts * means).sum(0) / total
    between = (counts * (means - overall).square()).sum(0)
    return overall, (all_squares.sum(0) + between) / total, total
