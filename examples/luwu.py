"""LuWu: parameters and optimizer states stay with memory devices; workers hold the layer that they compute.

    coarse run --workers 2 --devices 1 examples/luwu.py
"""

import torch
from torch import nn

import coarse.torch as ct

torch.manual_seed(0)
network = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(4)))
model, optimizer = ct.model_in_network(
    network, torch.optim.AdamW, lr=1e-3, storage=None  # in memory; ["/nvme0/run"] is a folder of the device's host
)  # fmt: skip

torch.manual_seed(1 + ct.rank())
for _ in range(10):
    x = torch.randn(8, 16, 64)
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()  # returns at once: units are updated behind the next forward
    optimizer.zero_grad()
print(f"worker {ct.rank()}: {optimizer.steps} steps, loss {loss.item():.3f}")
