"""What the modes say of three workers of whom two share a node, and what works there nevertheless."""

import sys

import torch
from torch import nn

import coarse.torch as ct
from coarse.errors import ConfigError
from tests.support.claims import raises, report_claims


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def modes_that_treat_nodes_alike_are_refused() -> None:
    for mode in ("hybrid", "zeropp"):
        with raises(ConfigError, "2, 1 workers", "'ring'"):
            ct.fully_shard(model(), mode, collective="ring")
    for mode in ("fsdp", "fcdp"):
        with raises(ConfigError, "2, 1", "ring"):
            ct.fully_shard(model(), mode)


def a_ring_trains_as_one_process_does() -> None:
    for mode in ("fsdp", "fcdp"):
        alone, sharded = model(), ct.fully_shard(model(), mode, collective="ring")
        for step in range(3):
            inputs = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(step)).double()
            alone(inputs.flatten(0, 1)).square().mean().backward()
            sharded(inputs[ct.rank()]).square().mean().backward()
            for net in (alone, sharded):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                optimizer.step()
                optimizer.zero_grad()
        for wanted, found in zip(alone.parameters(), sharded.parameters(), strict=True):
            torch.testing.assert_close(found.full_tensor(), wanted, rtol=1e-12, atol=1e-12)


CLAIMS = [modes_that_treat_nodes_alike_are_refused, a_ring_trains_as_one_process_does]

if __name__ == "__main__":
    torch.set_num_threads(1)
    ct.init()
    report_claims(CLAIMS, sys.argv[1])
    ct.shutdown()
