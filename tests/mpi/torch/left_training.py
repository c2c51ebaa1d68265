"""Worker 1 leaves amid training, by sys.exit(0); the others, who need it, write the error they get.

Arguments: the folder, and how workers train: by all-reduce, by DistributedDataParallel or with FSDP's sharding.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import coarse
import coarse.torch as ct
from tests.mpi.torch.training import Mlp, batch, loss_of, sgd
from tests.support.claims import report_error

folder, way = Path(sys.argv[1]), sys.argv[2]
coarse.init({"mode": "allreduce" if way == "allreduce" else "coarse"})
model: nn.Module = Mlp()
if way != "allreduce":
    dist.init_process_group("coarse")
if way == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif way == "fsdp":
    ct.fully_shard(model, mode="fsdp")
optimizer: torch.optim.Optimizer = sgd(list(model.parameters()))
if way == "allreduce":
    optimizer = ct.DistributedOptimizer(optimizer, model.named_parameters())
try:
    for step in range(100):
        if ct.rank() == 1 and step == 3:
            sys.exit(0)
        began_s = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model, batch(step, ct.rank())).backward()
        optimizer.step()
except (coarse.CoarseError, RuntimeError) as error:
    report_error(folder, ct.rank(), time.perf_counter() - began_s, error)
