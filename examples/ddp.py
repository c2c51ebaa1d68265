"""DistributedDataParallel of PyTorch over memory devices: the backend is the one line that changes.

    coarse run --workers 2 --devices 1 examples/ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("coarse")  # was "gloo" or "nccl"
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

torch.manual_seed(1 + dist.get_rank())  # each worker has rows of its own
for step in range(61):
    x = torch.randn(64, 32)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()  # gradients are averaged over all workers meanwhile
    optimizer.step()
    if step % 20 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.2f}", flush=True)

weight = model.module[0].weight.detach()
others = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
dist.all_gather(others, weight)
print(f"worker {dist.get_rank()}: weights equal on all workers: {all(weight.equal(other) for other in others)}")
dist.destroy_process_group()
