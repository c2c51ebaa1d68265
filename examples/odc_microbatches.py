"""On-demand communication (ODC): workers with unlike numbers of microbatches meet once a minibatch.

    coarse run --workers 2 --devices 1 examples/odc_microbatches.py
"""

import torch
from torch import nn

import coarse.torch as ct

torch.manual_seed(0)
model = ct.fully_shard(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), mode="odc")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

torch.manual_seed(1 + ct.rank())
for minibatch in range(5):
    num_microbatches = 1 + 3 * ct.rank()  # worker 1 has four times the work; none is legal, too
    num_rows = 0
    for _ in range(num_microbatches):
        x = torch.randn(16, 64)
        loss = (model(x) - x).square().sum()  # a sum: the rows of all workers divide it once, at the end
        loss.backward()
        num_rows += len(x)
    ct.end_minibatch(model, num_tokens=num_rows)
    optimizer.step()
    optimizer.zero_grad()
    print(f"worker {ct.rank()}: minibatch {minibatch}, {num_rows} rows, loss {loss.item() / len(x):.2f}", flush=True)
