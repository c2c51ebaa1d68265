"""One step of a sharded model, recorded in the thread that computes: FOLDER MODE COLLECTIVE.

Each worker writes in which order its units were gathered, computed and reduced, and how many bytes it has sent to other
nodes and read from its node's memory for each.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import coarse
import coarse.torch as ct
from coarse.torch.fsdp.fsdp2 import is_in_backward
from coarse.torch.fsdp.unit import ShardedUnit, units_of
from tests.support.transfer_log import COMPUTED, GATHER, REDUCE, REDUCED, Event

log: list[Event] = []


class Net(nn.Module):
    """Blocks, and around them layers that are the root's own."""

    def __init__(self, width: int, num_blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(width, width, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(num_blocks))
        self.head = nn.Linear(width, width, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(rows, width) -> the same shape."""
        inputs = self.embedding(inputs)
        for block in self.blocks:
            inputs = torch.tanh(block(inputs))
        return self.head(inputs)


def record() -> None:
    """What units gather and reduce, from now on."""
    gather, reduce = ShardedUnit.gather, ShardedUnit.reduce

    def recorded_gather(unit, out, own):
        log.append((GATHER, "backward" if is_in_backward() else "forward", unit.name))
        return gather(unit, out, own)

    def recorded_reduce(unit, out, full):
        log.append((REDUCE, "backward", unit.name))
        reduce(unit, out, full)
        log.append((REDUCED, "backward", unit.name))

    ShardedUnit.gather, ShardedUnit.reduce = recorded_gather, recorded_reduce


def watch(name: str, layer: nn.Module) -> None:
    """When a layer has computed."""

    def said(phase: str):
        return lambda *_: log.append((COMPUTED, phase, name))

    layer.register_forward_hook(said("forward"), prepend=True)
    layer.register_full_backward_hook(said("backward"))


def counted() -> dict[str, dict[str, int]]:
    """Bytes by unit and phase so far."""
    found = coarse.statistics()
    sent = {what: sent for what, (sent, _) in found["between_nodes"].items()}
    return {"between nodes": sent, "from the node": dict(found["from_node_memory"])}


def main() -> None:
    """The second step: in the first, no unit knows what follows it."""
    folder, mode, collective = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    width, num_blocks = json.loads((folder / "shape.json").read_text())
    coarse.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net(width, num_blocks)
    layers = {"embedding": model.embedding, "head": model.head}
    layers |= {f"blocks.{number}": block for number, block in enumerate(model.blocks)}
    ct.fully_shard(model, mode, collective=collective)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        inputs = torch.ones(2, width, requires_grad=True)  # else a backward hook of the first layer warns
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    record()
    for name, layer in layers.items():
        watch(name, layer)
    before = counted()
    step()
    nbytes = {
        kind: {what: count - before[kind].get(what, 0) for what, count in after.items()}
        for kind, after in counted().items()
    }
    units = {unit.name: unit.fsdp.gathered_nbytes() for unit in units_of(model)}
    found = {"log": log, "nbytes": nbytes, "units": units}
    (folder / f"{coarse.rank()}.json").write_text(json.dumps(found))
    coarse.shutdown()


if __name__ == "__main__":
    main()
