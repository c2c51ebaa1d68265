"""What stands for a gradient before its minibatch has ended: it says its shape, and refuses all else by name."""

import pytest
import torch

from coarse.errors import ConfigError
from coarse.odc.torch.placeholder import GradientPlaceholder


@pytest.fixture
def parameter():
    made = torch.nn.Parameter(torch.ones(2, 3))
    made.grad = GradientPlaceholder(made)
    return made


def test_it_says_what_it_stands_for(parameter):
    assert parameter.grad.shape == (2, 3)
    assert (parameter.grad.dtype, parameter.grad.device.type, parameter.grad.numel()) == (torch.float32, "cpu", 6)
    assert "end_minibatch" in repr(parameter.grad)


@pytest.mark.parametrize("use", [
    lambda p: p.grad.norm(), lambda p: p.grad.mul_(2), lambda p: p.grad + 1, lambda p: 1 + p.grad,
    lambda p: torch.nn.utils.clip_grad_norm_([p], 1.0), lambda p: torch.nn.utils.clip_grad_value_([p], 1.0),
    lambda p: float(p.grad[0, 0]), lambda p: p.grad.numpy(), lambda p: p.grad.tolist(), lambda p: p.grad.data,
    lambda p: torch.optim.SGD([p], lr=0.1).step(), lambda p: torch.stack([p.grad]), lambda p: p.grad.clone(),
    lambda p: torch.optim.SGD([p], lr=0.1).zero_grad(set_to_none=False),
])  # fmt: skip
def test_its_values_are_refused_by_name(parameter, use):
    with pytest.raises(ConfigError, match="end_minibatch"):
        use(parameter)


def test_it_may_be_set_to_none(parameter):
    torch.optim.SGD([parameter], lr=0.1).zero_grad()
    assert parameter.grad is None
