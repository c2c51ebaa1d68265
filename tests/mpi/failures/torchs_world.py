"""Workers that meet by torch.distributed alone: "gloo" is asked for, or "any" backend."""

import sys

import torch
import torch.distributed as dist

how = sys.argv[1]
if how == "any":
    dist.init_process_group()
else:
    dist.init_process_group("gloo")
total = torch.ones(3)
dist.all_reduce(total)
assert total.tolist() == [2.0] * 3
print(dist.get_backend_config(), flush=True)
dist.destroy_process_group()
