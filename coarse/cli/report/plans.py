# Pure: no MPI, threads, clock or environment.
"""Answer of `coarse shard --search`: plans of FSDP, the fastest first."""

from dataclasses import asdict, dataclass
from typing import Any

from coarse.protocol.units import GIB
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.simulation.sharded.search import FoundPlan, Searched, ShardedPlan

PLAN_HEAD = ("blocks", "F", "frees", "prefetch", "batch", "samples/s", "total s", "exposed s", "GB", "GPU GiB")
"""Heads of the table's columns."""
_NEAR = 1.05
"""Ratio of samples/s below which inputs decide between two plans."""


@dataclass(frozen=True, kw_only=True)
class Plans:
    """Search of plans, and its question."""

    searched: Searched
    asked: ShardedScenario


def plan_cells(plans: Plans, found: FoundPlan) -> list[str]:
    """Return a row of the table."""
    plan, report = found.plan, found.report
    crossed = report.crossing_nbytes() / plans.asked.num_nodes / 1e9
    return [
        str(plan.blocks_per_unit or "all"), str(plan.factor), "yes" if plan.reshards else "no", plan.prefetch.value,
        str(found.batch), f"{found.samples_per_s:.4g}", f"{report.iteration_s:.3g}", f"{report.exposed_s:.3g}",
        f"{crossed:.3g}", f"{found.memory_bytes / GIB:.1f}",
    ]  # fmt: skip


def plan_sentences(plans: Plans) -> list[str]:
    """Return sentences on the fastest plan, its lead, and the plans left out."""
    searched = plans.searched
    first, num_plans = searched.found[0], sum(1 + len(each.alike) for each in searched.found)
    found = [f"Fastest of {num_plans} plans that fit: {plan_text(plans.asked, first.plan)}, batch {first.batch}."]
    if len(searched.found) > 1:
        ahead = searched.ahead
        near = " Inputs that are a little off may turn the two round." if ahead < _NEAR else ""
        found.append(f"It has {ahead:.3f} times the samples/s of the second.{near}")
    if first.alike:
        found.append(f"{len(first.alike)} other plans take the same time, and as much memory or more.")
    if searched.num_too_large:
        found.append(f"{searched.num_too_large} plans do not fit.")
    return found


def plan_text(asked: ShardedScenario, plan: ShardedPlan) -> str:
    """Return a plan in words, with the settings that select it live."""
    whole = "the whole model as one unit (units=[])"
    blocks = {0: whole, 1: "each block a unit"}.get(plan.blocks_per_unit, f"units of {plan.blocks_per_unit} blocks")
    mode = "mode fsdp" if plan.factor == asked.num_gpus else f"mode hybrid, factor {plan.factor}"
    freed = "" if plan.reshards else ", kept gathered from forward to backward (reshard_after_forward=False)"
    return f"{blocks}, {mode}{freed}, prefetch {plan.prefetch}"


def plans_document(plans: Plans, inputs: dict[str, str]) -> dict[str, Any]:
    """Return all plans, the fastest first, as values for JSON."""
    rows = [
        {
            **asdict(each.plan), "batch": each.batch, "samples_per_s": each.samples_per_s,
            "iteration_s": each.report.iteration_s, "compute_s": each.report.compute_s,
            "exposed_s": each.report.exposed_s, "memory_gib": each.memory_bytes / GIB, "kind": "simulated",
            "alike": [asdict(other) for other in each.alike],
        }
        for each in plans.searched.found
    ]  # fmt: skip
    return {
        "kind": "simulated", "inputs": inputs, "rows": rows, "num_too_large": plans.searched.num_too_large,
        "ahead": plans.searched.ahead,
    }  # fmt: skip
