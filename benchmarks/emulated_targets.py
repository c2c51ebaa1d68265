"""Targets of emulated trainings: beside simulation, under load, beside live runs, and beside a cluster in a box."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from benchmarks.emulated_box import MOST_OFF
from benchmarks.emulated_training import MOST_OF_LIVE, MOST_OF_MEAN, MOST_OF_ONE, MOST_UNDER_LOAD
from benchmarks.verdicts import Verdict, at_most, judge, percent_at_most

Result = Mapping[str, Any]
BESIDE_SIMULATION = "emulated trainings beside simulated ones, mean difference"


def judge_emulated_training(result: Result | None) -> list[Verdict]:
    """Emulated steps of small models beside the simulation of the same steps, and what other things do to them."""
    rows = result["rows"] if result else {}
    off = {key: 100 * abs(row["ratio"] - 1) for key, row in rows.items() if "ratio" in row}
    by_machine: dict[str, list[float]] = {}
    for key, difference in off.items():
        by_machine.setdefault(key.partition(",")[0], []).append(difference)
    means = {f"{name}, {len(found)} cells": fmean(found) for name, found in by_machine.items()}
    worst = {f"{name}, {len(found)} cells": max(found) for name, found in by_machine.items()}
    load = {"2 workers": 100 * abs(result["load"]["moved_by"])} if result else {}
    by_file = {"2 workers": 100 * abs(result["load"]["by_a_file_moved_by"])} if result else {}
    live = {"2 workers": result["live"]["ratio"]} if result else {}
    places = list(means) or ["three machines"]
    return [
        judge(BESIDE_SIMULATION, percent_at_most(MOST_OF_MEAN), means, places),
        judge("the same, largest difference", percent_at_most(MOST_OF_ONE), worst, places),
        judge("an emulated step beside two processes that fill memory", percent_at_most(MOST_UNDER_LOAD), load,
              ["2 workers"]),
        judge("the same by a file of compute times", percent_at_most(0.0), by_file, ["2 workers"]),
        judge("wall time of an emulated training, in that of a live one", at_most(MOST_OF_LIVE), live, ["2 workers"]),
    ]  # fmt: skip


def judge_emulated_box(result: Result | None) -> list[Verdict]:
    """Emulated steps beside measured ones on real links."""
    rows = result["rows"] if result else {}
    off = {mode: 100 * abs(row["ratio"] - 1) for mode, row in rows.items()}
    return [
        judge("emulated steps beside those in a box at 100 Mbit/s", percent_at_most(MOST_OFF), off,
              list(off) or ["all modes"]),
    ]  # fmt: skip
