"""Scalers that ask an optimizer for synchronised gradients, whatever their kind and whenever it is defined."""

import pytest
import torch
from torch.amp.grad_scaler import GradScaler

from coarse.torch.ddp.grad_scaler import teach_scalers


class Synchronising(torch.optim.SGD):
    """Counts how often it was asked."""

    def __init__(self) -> None:
        self.parameter = torch.nn.Parameter(torch.ones(2))
        self.parameter.grad = torch.ones(2)
        self.num_asked = 0
        super().__init__([self.parameter], lr=1.0)

    def synchronize_for_scaler(self) -> None:
        self.num_asked += 1


def kinds():
    """Kinds that are there once scalers have been taught, by who has defined their method."""
    teach_scalers()
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    class Own(GradScaler):
        def _unscale_grads_(self, *args):
            return {}

    class Inherited(GradScaler):
        pass

    return {"torch's": GradScaler, "FSDP's": ShardedGradScaler, "own": Own, "inherited": Inherited}


@pytest.mark.parametrize("name", ["torch's", "FSDP's", "own", "inherited"])
def test_a_scaler_asks_before_it_looks_at_gradients(name):
    scaler, optimizer = kinds()[name]("cpu"), Synchronising()
    scaler._unscale_grads_(optimizer, torch.full((1,), 0.5), torch.zeros(1), False)
    assert optimizer.num_asked == 1
    assert name == "own" or optimizer.parameter.grad.tolist() == [0.5, 0.5]
