"""COARSE figure 17: communication that blocks training, of all-reduce and COARSE.

    python -m experiments.coarse_paper.fig17_blocked_time --out results/fig17

Blocked is what no compute hides: from the end of backward until all gradients are synchronised, per iteration.
Normalised to DENSE on one node (a-d) and to all-reduce on one and two nodes (e, f). Inputs as in figure 16.
"""

from collections.abc import Iterator
from pathlib import Path

from coarse.simulation.scenario import Mode, Policy
from experiments.coarse_paper.bars import Bar, bar_label, draw_bars
from experiments.coarse_paper.cells import Cell, outcome
from experiments.coarse_paper.claims import ClaimRow, Unit, number_row
from experiments.coarse_paper.fig16_speedup import (
    DENSE_INPUTS,
    PANELS,
    RING_INPUTS,
    cells,
    node_cells,
    v100_cells,
)
from experiments.coarse_paper.inputs import Platform
from experiments.coarse_paper.script import main
from experiments.coarse_paper.settings import Setting, allreduce, blocked_ratio, dense, settings

__all__ = ["cells", "draw", "rows"]

BELOW = (0.0, 0.10)
"""The paper: under 10 % of DENSE's."""
STATED_CHANGES = {"b": ("+18 % to +20 %", (1.18, 1.20)), "c": ("-28 %", (0.72, 0.72))}


def rows() -> list[ClaimRow]:
    """Figure 17's claims."""
    found = [row for panel in PANELS for way in settings(panel.base.platform) for row in panel_rows(panel.letter, way)]
    for way in settings(Platform.V100):
        members = v100_cells(way)
        found += below_rows("V100 bert-large", "d", members, way)
        found.append(change_row("V100 bert-large", "d", "-20 % to -42 %", (0.58, 0.80), members, way, is_set=True))
    for way in settings(Platform.V100):
        name = "V100 bert-large, 1 and 2 nodes, batch 2 and 4"
        found.append(node_row(name, node_cells(way), way))
    return found


def panel_rows(letter: str, setting: Setting) -> Iterator[ClaimRow]:
    """Panels a-c."""
    panel = next(panel for panel in PANELS if panel.letter == letter)
    name = f"{panel.base.platform.name} {panel.base.model}"
    members = panel.cells(setting)
    yield from below_rows(name, letter, members, setting)
    if letter in STATED_CHANGES:
        paper, stated = STATED_CHANGES[letter]
        yield change_row(name, letter, paper, stated, members, setting, is_set=len(members) > 1)


def below_rows(name: str, letter: str, members: list[Cell], setting: Setting) -> Iterator[ClaimRow]:
    """COARSE's blocked time as a share of DENSE's, and all-reduce's, which no policy changes, once."""
    yield below_row(f"{name}: blocked time of COARSE over DENSE ({setting.label})", letter, members, members)
    if setting.policy is Policy.PAPER:
        rings = [cell.baseline(Mode.ALLREDUCE) for cell in members]
        nvlink = setting.label.partition(", ")[2]
        label = f" ({nvlink})" if nvlink else ""
        yield below_row(f"{name}: blocked time of all-reduce over DENSE{label}", letter, rings, members)


def below_row(claim: str, letter: str, ours: list[Cell], members: list[Cell]) -> ClaimRow:
    """Some cells' blocked time over that of DENSE in their place."""
    pairs = [(outcome(cell).exposed_s, dense(member).exposed_s) for cell, member in zip(ours, members, strict=True)]
    ours_s, dense_s = max(pairs, key=lambda pair: pair[0] / pair[1])
    return number_row(
        claim,
        f"V-E, Fig. 17{letter}",
        "below 10 %",
        BELOW,
        [blocked_s / base_s for blocked_s, base_s in pairs],
        Unit.SHARE,
        inputs=(*DENSE_INPUTS, "blocking ring"),
        why=f"{ours_s:.3f} s are blocked where 10 % allow {dense_s / 10:.3f} s: DENSE itself blocks for "
        f"{dense_s:.3f} s at the prototype's rates",
    )


def change_row(
    name: str,
    letter: str,
    paper: str,
    stated: tuple[float, float],
    members: list[Cell],
    setting: Setting,
    *,
    is_set: bool,
) -> ClaimRow:
    """COARSE's blocked time against all-reduce's."""
    return number_row(
        f"{name}: blocked time of COARSE against all-reduce ({setting.label})",
        f"V-E, Fig. 17{letter}",
        paper,
        stated,
        [blocked_ratio(cell) for cell in members],
        Unit.CHANGE,
        inputs=RING_INPUTS,
        why=seconds_why(members),
        is_range_of_set=is_set,
    )


def node_row(name: str, members: list[Cell], setting: Setting) -> ClaimRow:
    """17e and f: against all-reduce of batch 2 on as many nodes."""
    one2, _, two2, _ = members
    base = {1: allreduce(one2).exposed_s, 2: allreduce(two2).exposed_s}
    return number_row(
        f"{name}: blocked time of COARSE against all-reduce ({setting.label})",
        "V-E, Fig. 17e-f",
        "-23 % to -46 %",
        (0.54, 0.77),
        [outcome(cell).exposed_s / base[cell.num_nodes] for cell in members],
        Unit.CHANGE,
        inputs=RING_INPUTS,
        why=seconds_why(members),
        is_range_of_set=True,
    )


def seconds_why(members: list[Cell]) -> str:
    """The seconds behind a ratio, and the share of bytes that went to the devices."""
    parts = [
        f"{cell.num_workers}+{cell.num_devices or cell.num_workers}"
        f"{f' batch {cell.batch}' if cell.batch != 2 else ''}: {outcome(cell).exposed_s:.3f} s "
        f"({outcome(cell).proxy_share:.0%} of bytes by devices) against {allreduce(cell).exposed_s:.3f} s"
        for cell in members
    ]
    return "; ".join(parts)


def draw(folder: Path) -> None:
    """Bars normalised to DENSE, and to all-reduce."""
    panels: dict[str, list[Bar]] = {}
    for panel in PANELS:
        title = f"17{panel.letter}: {panel.base.platform.name} {panel.base.model}"
        panels[title] = [bar(cell, way) for way in settings(panel.base.platform) for cell in panel.cells(way)]
    panels["17d: V100 bert-large"] = [bar(cell, way) for way in settings(Platform.V100) for cell in v100_cells(way)]
    draw_bars(panels, ylabel="blocked time over DENSE", path=folder / "fig17.png")


def bar(cell: Cell, setting: Setting) -> Bar:
    """Both shares of DENSE's blocked time."""
    slow_s = dense(cell).exposed_s
    shares = {"all-reduce": allreduce(cell).exposed_s / slow_s, "COARSE": outcome(cell).exposed_s / slow_s}
    return Bar(bar_label(cell, setting), shares)


if __name__ == "__main__":
    main(rows, draw, __doc__)
