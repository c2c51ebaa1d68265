"""A small training that commits each step; the last worker prints at some of them in which network namespace it is."""

import hashlib
import os
import time

import torch

import coarse
import coarse.torch as ct

torch.manual_seed(3)
torch.set_num_threads(1)
ct.init()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = ct.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=1e-3), named_parameters=model.named_parameters()
)
torch.manual_seed(coarse.rank())
state = ct.Resumable(model=model, optimizer=optimizer)
for step in state.steps(60):
    rows = torch.randn(8, 16)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(rows), rows[:, :4].argmax(1)).backward()
    optimizer.step()
    state.commit()
    if step % 5 == 0 and coarse.rank() == coarse.size() - 1:
        print(f"second node in {os.readlink('/proc/self/ns/net')} at step {step}", flush=True)
    time.sleep(0.02)
print(f"worker {coarse.rank()} has", hashlib.sha256(
    b"".join(p.detach().numpy().tobytes() for p in model.parameters())
).hexdigest(), flush=True)  # fmt: skip
ct.shutdown()
