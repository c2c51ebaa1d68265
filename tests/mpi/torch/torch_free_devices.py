"""Worker 0 says of each device rank whether it has mapped torch, after a snapshot of a model."""

import sys
from pathlib import Path

import psutil
import torch

import coarse.torch as ct

ct.init()
model = torch.nn.Linear(10, 10)
ct.broadcast_parameters(model.named_parameters())
ct.snapshot(Path(sys.argv[1]) / "model", model=model, step=0).wait()
if ct.rank() == 0:
    mpirun = psutil.Process().parents()[1]
    for process in (rank for watcher in mpirun.children() for rank in watcher.children()):
        if "coarse.launch.device" in process.cmdline():
            has_torch = "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
            print(f"device {'with' if has_torch else 'without'} torch")
ct.barrier()
