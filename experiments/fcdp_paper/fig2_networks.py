"""FCDP figure 2 and Tables II and III: ZeRO-3 on slow networks, and the networks themselves.

    python -m experiments.fcdp_paper.fig2_networks --out results/fcdp-fig2

Input: the networks' goodputs, of which Table III comes out unchanged; compute. Outcome: samples per second.
"""

from collections.abc import Iterator
from pathlib import Path

from coarse.simulation.engine import Engine
from coarse.simulation.sharded.routes import Phase, Routes
from experiments.fcdp_paper.cells import GPUS_PER_NODE, Cell, report_of, samples_per_s
from experiments.fcdp_paper.inputs import TITLE, Network
from experiments.validation.bars import Bar, Panel, draw_bars
from experiments.validation.claims import ClaimRow, Given, Number, Unit, claim_row
from experiments.validation.script import main

STATED = {
    2: {Network.RDMA: 14.1, Network.IPOIB: 4.1, Network.ETHERNET_10: 2.4},
    4: {Network.RDMA: 23.2, Network.IPOIB: 7.3, Network.ETHERNET_10: 4.6},
}
"""Nodes -> samples per second."""
FITTED = (Network.RDMA, 2)
"""The one row that an input was fitted to."""
TOLERANCE = 0.08
TRANSFERRED = 16 * 10**9
STATED_S = {Network.RDMA: 0.949, Network.IPOIB: 3.963, Network.ETHERNET_10: 6.745, Network.ETHERNET_1: 67.66}
INPUTS = ("network", "border", "ring", "shapes", "compute", "in flight")
_INPUT_WHY = "our machine was made from it"


def rows() -> list[ClaimRow]:
    """Figure 2, Tables II and III."""
    return [*_figure(), *_slow_downs(), *_tables()]


def _figure() -> Iterator[ClaimRow]:
    for num_nodes, by_network in STATED.items():
        for network, stated in by_network.items():
            cell = Cell(network=network, num_nodes=num_nodes)
            is_fitted = (network, num_nodes) == FITTED
            yield claim_row(
                f"ZeRO-3, GPT-10B, batch 8, {num_nodes} nodes, {network}",
                "III-A, Fig. 2",
                f"{stated} samples/s",
                Given() if is_fitted else Number(stated, stated, tolerance=TOLERANCE),
                [samples_per_s(cell)],
                Unit.SAMPLES_PER_S,
                inputs=INPUTS,
                why="what a ring's step over a border takes was fitted to it" if is_fitted else _why(cell, stated),
            )


def _why(cell: Cell, stated: float) -> str:
    report, needed_s = report_of(cell), cell.batch * cell.num_gpus / stated
    crossing = report.crossing_nbytes() / cell.num_nodes
    rate = _rate(cell.network)
    return (
        f"the stated rate is an iteration of {needed_s:.2f} s, ours is {report.iteration_s:.2f} s, of which the "
        f"{crossing / 1e9:.1f} GB that leave each node take all but {report.iteration_s - crossing / rate:.2f} s, "
        f"and compute of {report.compute_s:.2f} s hides beneath them. {needed_s - report.iteration_s:.2f} s more are "
        f"exposed there, or gathers unit by unit reach {crossing / needed_s / rate:.0%} of the goodput of Table III's "
        "one transfer"
    )


def _rate(network: Network) -> float:
    wire = network.machine.network
    assert wire is not None
    return wire.bytes_per_s


def _slow_downs() -> Iterator[ClaimRow]:
    for num_nodes, stated in ((2, (3.4, 5.9)), (4, (3.2, 5.0))):
        fast = samples_per_s(Cell(network=Network.RDMA, num_nodes=num_nodes))
        for network, times in zip((Network.IPOIB, Network.ETHERNET_10), stated, strict=True):
            slow = samples_per_s(Cell(network=network, num_nodes=num_nodes))
            yield claim_row(
                f"ZeRO-3, GPT-10B, {num_nodes} nodes: RDMA over {network}",
                "III-A, Fig. 2",
                f"{times}x",
                Number(times, times),
                [fast / slow],
                Unit.TIMES,
                inputs=INPUTS,
                why=f"{network} comes out, and RDMA is too fast: see there",
            )


def _tables() -> Iterator[ClaimRow]:
    yield claim_row(
        "host to GPU, a GPU pair, and the network, relative to the network", "II-B, Table II", "2.5x, 16x, 1x (theory)",
        Given(), [rate / _rate(Network.RDMA) for rate in (26.1e9, 56.25e9, 8.43e9)], Unit.TIMES,
        inputs=("ports", "network"),
        why="ours are Table III's measured rates and the A40's data sheet: its bridge has 56.25 GB/s each way, not 200",
    )  # fmt: skip
    port = Routes(machine=Network.RDMA.machine, num_nodes=1, gpus_per_node=1)
    yield _table3_row("16 GB from host to GPU", 0.613, _alone_s(port, port.host_copies(TRANSFERRED, to_host=False)))
    for network, stated in STATED_S.items():
        routes = Routes(machine=network.machine, num_nodes=2, gpus_per_node=GPUS_PER_NODE)
        rails_s = _alone_s(routes, routes.rails(TRANSFERRED))
        yield _table3_row(f"16 GB gathered over 2 nodes of 8 GPUs, {network}", stated, rails_s)


def _table3_row(claim: str, stated: float, ours_s: float) -> ClaimRow:
    return claim_row(
        claim, "III-C, Table III", f"{stated} s", Given(), [ours_s], Unit.SECONDS, inputs=("ports", "network"),
        why=_INPUT_WHY,
    )  # fmt: skip


def _alone_s(routes: Routes, phase: Phase) -> float:
    """Seconds that a collective takes by itself."""
    engine = Engine(routes.machine.links)
    for number, flow in enumerate(phase):
        engine.move_in_turns(number, flow.path, flow.nbytes, flow.num_turns, lambda: None)
    engine.run()
    return engine.now_s


def draw(folder: Path) -> None:
    """Samples per second as bars."""
    panels = [
        Panel(
            f"Fig. 2: ZeRO-3, GPT-10B, {num_nodes} nodes",
            [
                Bar(network, {"ours": samples_per_s(Cell(network=network, num_nodes=num_nodes))}, {"ours": stated})
                for network, stated in by_network.items()
            ],
        )
        for num_nodes, by_network in STATED.items()
    ]
    draw_bars(panels, ylabel="samples/s", path=folder / "fig2.png")


if __name__ == "__main__":
    main(rows, draw, __doc__, title=TITLE)
