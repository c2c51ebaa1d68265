"""FCDP figures 5 and 6: full fine-tuning at batch 8 per GPU, and at each system's largest batch.

    python -m experiments.fcdp_paper.fig5_fig6_full --out results/fcdp-fig5

The paper doesn't name the network of these figures; see Inputs.full_on_ipoib. "Up to" is our largest over
the cells whose batch fits, by the account of memory.
"""

from collections.abc import Iterator
from pathlib import Path

from experiments.fcdp_paper.cells import (
    MODELS,
    Cell,
    System,
    gain,
    gain_at_largest_batches,
    samples_per_s,
    taken_inputs,
    that_fit,
)
from experiments.fcdp_paper.inputs import TITLE, Network
from experiments.validation.bars import Bar, Panel, draw_bars
from experiments.validation.claims import ClaimRow, Number, Order, Unit, claim_row
from experiments.validation.script import main

NODES = (2, 4)
INPUTS = ("network", "network of figures 5 to 8", "border", "ring", "shapes", "compute", "memory", "activations",
          "in flight", "tau")  # fmt: skip
PARITY = 0.05


def rows() -> list[ClaimRow]:
    """Results 1 to 4."""
    network = network_now()
    return [*_fixed_batch(network), *_largest_batch(network), *_memory()]


def network_now() -> Network:
    """By the inputs that are taken now."""
    return Network.IPOIB if taken_inputs().full_on_ipoib else Network.RDMA


def cells(network: Network, system: System = System.FCDP) -> list[Cell]:
    """All models on two and four nodes."""
    return [
        Cell(model=model, network=network, num_nodes=nodes, system=system) for nodes in NODES for model in MODELS
    ]


def _fixed_batch(network: Network) -> Iterator[ClaimRow]:
    fit = that_fit(cells(network), System.ZERO3)
    gains = [gain(cell, System.ZERO3) for cell in fit]
    yield claim_row(
        f"FCDP over ZeRO-3, batch 8, largest over models and nodes, {network}", "V-B, Fig. 5, R1", "up to +40.2 %",
        Number(1.402, 1.402), [max(gains)], Unit.CHANGE, inputs=INPUTS, why=_bound(network),
    )  # fmt: skip
    yield claim_row(
        f"FCDP over ZeRO-3, batch 8, all models and nodes, {network}", "V-B, Fig. 5, R1", "higher throughout",
        Order(min(gains) > 1), gains, Unit.CHANGE, inputs=INPUTS,
    )  # fmt: skip
    small = [Cell(model=model, network=network, num_nodes=4, system=System.FCDP) for model in MODELS[:3]]
    parity = [gain(cell, System.ZEROPP) for cell in small]
    yield claim_row(
        f"FCDP over ZeRO++, batch 8, GPT-10B to 20B on 32 GPUs, {network}", "V-B, Fig. 5, R2", "comparable",
        Order(max(abs(one - 1) for one in parity) < PARITY), parity, Unit.CHANGE, inputs=INPUTS,
    )  # fmt: skip


def _bound(network: Network) -> str:
    if network is Network.RDMA:
        return "compute is no longer hidden beneath the gathers, so that fewer gathers gain less"
    return f"on {network} the network bounds both, and 3W over 2W is +50 %; whatever else is exposed makes less of it"


def _largest_batch(network: Network) -> Iterator[ClaimRow]:
    biggest = Cell(model="gpt-10b", network=network, num_nodes=4, system=System.FCDP)
    gains = {cell: gain_at_largest_batches(cell, System.ZERO3) for cell in cells(network)}
    ours = gains[biggest]
    assert ours is not None
    yield claim_row(
        f"FCDP over ZeRO-3 at the largest batch, GPT-10B on 32 GPUs, {network}", "V-C, Fig. 6, R3", "up to +41.3 %",
        Number(1.413, 1.413), [ours], Unit.CHANGE, inputs=INPUTS, why=_bound(network),
    )  # fmt: skip
    double = gain_at_largest_batches(
        Cell(model="gpt-30b", network=network, num_nodes=4, system=System.FCDP), System.ZEROPP
    )
    assert double is not None
    yield claim_row(
        f"FCDP over ZeRO++ at the largest batch, GPT-30B on 32 GPUs, {network}", "V-C, Fig. 6, R4", "up to 2x",
        Number(2.0, 2.0), [double], Unit.TIMES, inputs=(*INPUTS, "secondary shards"),
        why="ZeRO++'s batch is half as large, which costs half of the throughput only where the network bounds it",
    )  # fmt: skip


def _memory() -> Iterator[ClaimRow]:
    for model, nodes in (("gpt-20b", 2), ("gpt-30b", 4)):
        cell = Cell(model=model, num_nodes=nodes, system=System.FCDP)
        fits = [one.largest_batch for one in (cell.of(System.ZEROPP), cell)]
        yield claim_row(
            f"{model}, {nodes} nodes: largest batch per GPU of ZeRO++ and of FCDP", "V-B, Fig. 5, R2",
            "ZeRO++ has no room for 8, FCDP has", Order(fits[0] < 8 <= fits[1]), fits, Unit.COUNT,
            inputs=("memory", "activations", "secondary shards"),
        )  # fmt: skip
    cell = Cell(model="gpt-30b", num_nodes=2, system=System.FCDP)
    fits = [one.largest_batch for one in (cell.of(System.ZEROPP), cell)]
    yield claim_row(
        "gpt-30b, 2 nodes: largest batch per GPU of ZeRO++ and of FCDP", "V-C, R4", "ZeRO++ fails, FCDP runs",
        Order(fits[0] == 0 < fits[1]), fits, Unit.COUNT, inputs=("memory", "activations", "secondary shards"),
    )  # fmt: skip


def draw(folder: Path) -> None:
    """Samples per second of the three systems, batch 8, on the network of the rows."""
    panels = []
    network = network_now()
    for nodes in NODES:
        bars = []
        for model in MODELS:
            cell = Cell(model=model, network=network, num_nodes=nodes)
            systems = [cell.of(system) for system in (System.ZERO3, System.ZEROPP, System.FCDP)]
            bars.append(Bar(model, {str(one.system): samples_per_s(one) if one.fits else 0.0 for one in systems}))
        panels.append(Panel(f"Fig. 5: batch 8, {nodes} nodes, {network}; none where memory does not suffice", bars))
    draw_bars(panels, ylabel="samples/s", path=folder / "fig5.png")


if __name__ == "__main__":
    main(rows, draw, __doc__, title=TITLE)
