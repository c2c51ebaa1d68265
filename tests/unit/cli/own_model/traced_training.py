"""Trainings that torch.profiler traces, with what hooks saw of them; run by itself, two ranks over Gloo.

    python traced_training.py FOLDER            # leaves shapes.RANK.json, plain.RANK.json and hooks.RANK.json
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 3


class Small(nn.Module):
    """An embedding, attention, a convolution, normalisations and a bias-free linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.convolution = nn.Conv1d(32, 16, 3)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 10, bias=False)

    def forward(self, ids):
        hidden = self.block(self.embedding(ids)).transpose(1, 2)
        return self.head(torch.relu(self.norm(self.convolution(hidden))).mean(2))


class Residual(nn.Module):
    """Two convolutions around which the input passes, as in a ResNet."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, images):
        stem = self.stem(images)
        return self.head((stem + self.second(torch.relu(self.first(stem)))).mean((2, 3)))


def small():
    """For `own_model`."""
    return Small(), {"ids": torch.zeros(4, 16, dtype=torch.int64)}


def residual():
    """For `own_model`."""
    return Residual(), (4, 3, 12, 12)


def batch_of(name):
    """What the model reads."""
    return torch.randint(0, 50, (4, 16)) if name == "small" else torch.randn(4, 3, 12, 12)


def watched(module):
    """A list to which hooks append each parameter whose gradient is there, as its shape and name."""
    order = []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: order.append((name, list(p.shape))))
    return order


def trace(module, batches, path, *, num_passes=1, has_marks=True, trains=True, **settings):
    """Train a few steps under the profiler; the gradients of the last, in the order in which hooks saw them.

    Where steps have marks, those traced are ProfilerStep#1 to #3; the profiler warms up with the first.
    """
    order = watched(module) if trains else []
    optimizer = torch.optim.SGD(module.parameters(), 0.01) if trains else None
    if has_marks:
        settings["schedule"] = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
        settings["on_trace_ready"] = lambda profiler: profiler.export_chrome_trace(str(path))
    with profile(activities=[ProfilerActivity.CPU], **settings) as profiler, torch.set_grad_enabled(trains):
        for _ in range(STEPS + has_marks):
            for _ in range(num_passes):
                outcome = module(batches)
                if trains:
                    order.clear()
                    outcome.square().mean().backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
            if has_marks:
                profiler.step()
    if not has_marks:
        profiler.export_chrome_trace(str(path))
    return [tuple(each) for each in order]


def train_by_ddp(folder, rank):
    """One of two ranks: DDP over Gloo, in buckets of which there are several."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    module = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.05)
    batches = torch.randn(8, 64)
    order = trace(module, batches, folder / f"shapes.{rank}.json", record_shapes=True)
    trace(module, batches, folder / f"plain.{rank}.json")
    (folder / f"hooks.{rank}.json").write_text(json.dumps(order))
    torch.distributed.destroy_process_group()


def main():
    """Both ranks, of which one is forked where torch is imported; it fails with either."""
    folder, child = Path(sys.argv[1]), os.fork()
    train_by_ddp(folder, int(child == 0))
    if child:
        _, status = os.waitpid(child, 0)
        sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
