"""Your training on memory devices that are not here: real gradients and losses, in the time of the emulated machine.

    coarse run --workers 2 --machine cxl-cz120 examples/emulated.py
    coarse run --workers 2 --machine cxl-cz120 --modes coarse,dense examples/emulated.py
"""

import torch
from torch import nn

import coarse.torch as ct

ct.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.AdamW(model.parameters())
ct.broadcast_parameters(model.named_parameters(), root_rank=0)
optimizer = ct.DistributedOptimizer(optimizer, model.named_parameters())

torch.manual_seed(1 + ct.rank())
for _ in range(20):
    x = torch.randn(32, 256)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if ct.rank() == 0:
    print(f"loss {loss.item():.3f}")
