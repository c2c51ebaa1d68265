"""What `wire.py` and `throughput.py` should reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.sharded_contenders import PEER, UNTHROTTLED
from benchmarks.sharded_ratios import retention, times_faster
from benchmarks.verdicts import Limit, Verdict, at_least, judge, percent_at_most

MOST_EXCESS = 0.02
"""Bytes beyond the formula's, without packet headers."""
LEAST_SAVED = 0.99
"""Of what ZeRO-3 moves for LoRA, by FCDP."""
LEAST_OVER_FSDP, LEAST_OVER_RING, LEAST_KEPT = 1.3, 20, 0.85
MOST_STEP_S = 0.3
"""Of an unthrottled step."""
SLOW_RATE = "100mbit"
_OURS, _RING = "fcdp-hierarchical-lora", "fsdp-ring-lora"

Result = Mapping[str, Any]
"""A file of benchmarks/results."""


def judge_wire(result: Result | None) -> list[Verdict]:
    """Bytes between nodes against the formulas of FCDP's Table I, VI-B and VI-C."""
    rows = {row["contender"]: row for row in (result["rows"] if result else ())}
    total = {name: row["forward_payload_bytes"] + row["backward_payload_bytes"] for name, row in rows.items()}
    excess = {name: abs(row["excess"]) * 100 for name, row in rows.items()}
    full = {name: excess[name] for name in rows if not _is_small(rows[name])}
    saved = {
        name: 100 * (1 - total[name] / total[peer])
        for name in rows
        if name.startswith("fcdp") and name.endswith("lora") and (peer := name.replace("fcdp", "fsdp")) in rows
    }
    most = percent_at_most(MOST_EXCESS)
    least = Limit(bound=LEAST_SAVED * 100, unit=" %", is_least=True)
    return [
        judge("bytes between nodes against the formula", most, full, list(full) or ["all modes"]),
        judge("LoRA: bytes between nodes that fcdp saves of fsdp's", least, saved, list(saved) or ["fcdp"]),
    ]


def _is_small(row: Mapping[str, Any]) -> bool:
    """Whether a step moves so little that barriers and acknowledgements count beside it."""
    return bool(row["formula_forward_bytes"] + row["formula_backward_bytes"] < 10e6)


def judge_throughput(result: Result | None) -> list[Verdict]:
    """Steps per second over slow links, against fsdp and against each mode's own unthrottled speed."""
    rows = result["rows"] if result else ()
    over_fsdp = _present(f"{SLOW_RATE}, full", times_faster(rows, "fcdp-hierarchical", "fsdp-hierarchical", SLOW_RATE))
    over_ring = _present(f"{SLOW_RATE}, LoRA", times_faster(rows, _OURS, _RING, SLOW_RATE))
    kept = retention(rows, _OURS, SLOW_RATE)
    share = _present(f"{SLOW_RATE} of {UNTHROTTLED}, LoRA", None if kept is None else kept * 100)
    steps = {row["contender"]: row["median_step_s"] for row in rows if row["rate"] == UNTHROTTLED}
    ours = {name: step_s for name, step_s in steps.items() if not name.startswith(PEER)}
    least_kept = Limit(bound=LEAST_KEPT * 100, unit=" %", is_least=True)
    return [
        judge("fcdp: faster than fsdp, same collective", at_least(LEAST_OVER_FSDP), over_fsdp, [f"{SLOW_RATE}, full"]),
        judge("fcdp: faster than fsdp on the ring", at_least(LEAST_OVER_RING), over_ring, [f"{SLOW_RATE}, LoRA"]),
        judge("fcdp: keeps of its own speed", least_kept, share, [f"{SLOW_RATE} of {UNTHROTTLED}, LoRA"]),
        judge("an unthrottled step", Limit(bound=MOST_STEP_S, unit=" s", is_least=False), ours, list(ours) or ["all"]),
    ]


def _present(place: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {place: value}
