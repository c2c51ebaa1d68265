"""Ratios between the rows of `throughput.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.sharded_contenders import UNTHROTTLED

Rows = Sequence[Mapping[str, Any]]


def retention(rows: Rows, contender: str, rate: str) -> float | None:
    """The share of its own unthrottled speed that a contender keeps at a rate; None where one is missing."""
    return _ratio(median_step_s(rows, contender, UNTHROTTLED), median_step_s(rows, contender, rate))


def times_faster(rows: Rows, contender: str, peer: str, rate: str) -> float | None:
    """How many times as many steps per second as a peer at the same rate; None where one is missing."""
    return _ratio(median_step_s(rows, peer, rate), median_step_s(rows, contender, rate))


def median_step_s(rows: Rows, contender: str, rate: str) -> float | None:
    """Seconds of a step; None where it was not measured."""
    found = [float(row["median_step_s"]) for row in rows if (row["contender"], row["rate"]) == (contender, rate)]
    return found[0] if found else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below
