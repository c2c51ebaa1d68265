"""LoRA under FCDP: frozen weights cross the network once, adapters each step.

    coarse run --workers 2 --devices 1 examples/fcdp_lora.py
"""

import torch
from torch import nn

import coarse
import coarse.torch as ct


class Lora(nn.Module):
    """Linear layer with frozen weights and an adapter of rank 8."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 8, bias=False), nn.Linear(8, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.frozen(x) + self.up(self.down(x)))


torch.manual_seed(0)
model = ct.fully_shard(nn.Sequential(*(Lora(256) for _ in range(4))), mode="fcdp")
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
for _ in range(10):
    x = torch.randn(16, 256)
    (model(x) - x.flip(1)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"worker {ct.rank()}: {trainable} of {sum(p.numel() for p in model.parameters())} parameters train")
read = sum(coarse.statistics()["from_node_memory"].values())
print(f"worker {ct.rank()}: {read} bytes of gathers came from the node's memory, not from the network")
