"""Emulated runs on a machine that others use too: a claim is about links that kept up."""

from collections.abc import Callable
from dataclasses import replace

from coarse.emulation.launch import ALLOWED_OVERRUN_SHARE, EmulatedResult, run_order
from coarse.emulation.order import RunOrder

SLOWER = 2.5
"""How much more dilation the next try gets."""
TRIES = 4


def require_of_run(order: RunOrder, holds: Callable[[EmulatedResult], None]) -> None:
    """Raise the AssertionError of `holds` for a run whose links kept up.

    Where the claim fails and more transfers were late than `coarse emulate` would let pass, that run says nothing, and
    another is slower.
    """
    for number in range(TRIES):
        result = run_order(replace(order, dilation=order.dilation * SLOWER**number))
        try:
            return holds(result)
        except AssertionError:
            if result.overrun_share <= ALLOWED_OVERRUN_SHARE or number == TRIES - 1:
                raise
