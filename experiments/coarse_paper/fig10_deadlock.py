"""COARSE figure 10: first come first served deadlocks, queues never do.

    python -m experiments.coarse_paper.fig10_deadlock --out results/fig10

Input: the two clients' orders of pushes in the figure. Outcome: who is stuck, with the proxies of live training.
`python -m experiments.coarse_deadlock` goes through every order under every routing, which takes a minute.
"""

from pathlib import Path

from experiments.coarse_deadlock import NUM_CLIENTS, NUM_TENSORS, SHARED_PROXY, explored, figure_rows
from experiments.validation.bars import Bar, Panel, draw_bars
from experiments.validation.claims import ClaimRow, Order, Unit, claim_row
from experiments.validation.script import main

INPUTS: tuple[str, ...] = ()


def stuck_by_rule() -> dict[str, int]:
    """Figure 10's case: rule -> deadlocks."""
    return {row["rule"]: row["stuck"] for row in figure_rows()}


def rows() -> list[ClaimRow]:
    """Figure 10's claims."""
    found = stuck_by_rule()
    num_orders, num_stuck = explored(SHARED_PROXY, fcfs=False, internal=False)
    case = "2 clients push 2 tensors in opposite orders"
    return [
        claim_row(
            f"{case}: deadlocks, first come first served", "III-F, Fig. 10", "deadlock",
            Order(found["first come first served"] == 1), [found["first come first served"]], Unit.COUNT, inputs=INPUTS,
        ),
        claim_row(
            f"{case}: deadlocks, a queue per client", "III-F, Fig. 10", "none", Order(found["queues"] == 0),
            [found["queues"]], Unit.COUNT, inputs=INPUTS,
        ),
        claim_row(
            f"{NUM_CLIENTS} clients, {NUM_TENSORS} tensors, a shared proxy, {num_orders} orders of pushes: deadlocks",
            "III-F", "none", Order(num_stuck == 0), [num_stuck], Unit.COUNT, inputs=INPUTS,
        ),
    ]  # fmt: skip


def draw(folder: Path) -> None:
    """Deadlocks by rule."""
    first = "first come first served"
    bars = [
        Bar(rule, {"stuck": float(stuck)}, stated={"stuck": float(rule == first)})
        for rule, stuck in stuck_by_rule().items()
    ]
    panel = Panel("Fig. 10: its case, 2 clients and 2 proxies", bars)
    draw_bars([panel], ylabel="deadlocks", path=folder / "fig10.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
