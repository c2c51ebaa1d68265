"""Workers that meet by torch.distributed alone: "gloo" is asked for, or "any" backend.

"gloo by a store": they meet at a store of their own, and end without a last word.
"""

import os
import sys

import torch
import torch.distributed as dist

how = sys.argv[1]
if how == "any":
    dist.init_process_group()
elif how == "gloo":
    dist.init_process_group("gloo")
else:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
total = torch.ones(3)
dist.all_reduce(total)
assert total.tolist() == [2.0] * 3
print(dist.get_backend_config(), flush=True)
dist.barrier()
dist.destroy_process_group()
if how == "gloo by a store":
    os._exit(0)
