"""Trains a small model, and prints a digest of its weights: trained.py FILE"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch

import coarse.torch as ct

ct.init()
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 8))
optimizer = ct.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named_parameters=model.named_parameters()
)
ct.broadcast_parameters(model.state_dict(), root_rank=0)
for step in range(6):
    if step == 3 and os.environ.get("DIES") == str(ct.rank()):
        os.kill(os.getpid(), signal.SIGKILL)
    torch.manual_seed(10 * step + ct.rank())
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
if ct.rank() == 0:
    Path(sys.argv[1]).write_text(digest.hexdigest())
