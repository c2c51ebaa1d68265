"""FSDP2 of PyTorch, each worker with its shards alone: the import is the one line that changes.

    coarse run --workers 2 --devices 1 examples/fsdp2.py
    coarse run --workers 2 --devices 1 --mode zeropp examples/fsdp2.py
"""

import torch
from torch import nn

import coarse.torch as ct
from coarse.torch import fully_shard  # was: from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
model = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(4)))
for block in model:
    fully_shard(block)
fully_shard(model)  # ZeRO-3, or the mode of COARSE_MODE or of the configuration
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

torch.manual_seed(1 + ct.rank())
for _ in range(10):
    x = torch.randn(8, 16, 64)
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

own = sum(parameter.to_local().numel() for parameter in model.parameters())
whole = sum(parameter.numel() for parameter in model.parameters())
print(f"worker {ct.rank()} of {ct.size()}: loss {loss.item():.3f}, {own} of {whole} parameters are here")
