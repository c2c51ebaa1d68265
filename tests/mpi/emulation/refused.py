"""Asks an emulated job for what it has no times of; prints what it says."""

import sys

import torch

import coarse
import coarse.torch as ct
from coarse.errors import UnsupportedError

ct.init()
state = coarse.state_array("state", (8,), "float32")
asked = {
    "process set": lambda: ct.allreduce(torch.ones(3), process_set=ct.add_process_set([0, 1])),
    "fsdp": lambda: ct.fully_shard(torch.nn.Linear(8, 8))(torch.ones(2, 8)),
    "snapshots": lambda: coarse.snapshot("nowhere", step=0),
}
try:
    asked[sys.argv[1]]()
except UnsupportedError as error:
    print(f"refused: {error}", flush=True)
coarse.barrier()
