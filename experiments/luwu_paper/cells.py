"""LuWu and its baselines on the paper's cluster, as figures need them: steps, peaks, and the largest models."""

from dataclasses import replace
from functools import cache

from coarse.hardware.machine import Machine
from coarse.hardware.presets import machine_named
from coarse.luwu.simulation.baselines import BaselineStep, simulate_baseline
from coarse.luwu.simulation.capacity import LUWU
from coarse.luwu.simulation.moves import Baseline
from coarse.luwu.simulation.scenario import ModeStep, PagedScenario
from experiments.luwu_paper.inputs import BATCHES, NUM_WORKERS, inputs_now

SMALL_SHARE = 145 / 312
"""Input: what a worker attains with OPT-1.3B (figure 11b), where compute bounds luwu."""
ZERO_INFINITY_MOST = {"opt-66b": 16, "opt-175b": 16}
"""Input: its largest micro-batches (2.1, and 4.6, by which 30B is the largest model that takes 32)."""


def scenario_of(
    model: str, batch: int, num_workers: int = NUM_WORKERS, *, disks_of_worker: float = 0.0
) -> PagedScenario:
    """On the paper's cluster; `disks_of_worker`: bytes a second each way, where they are others."""
    machine: Machine = machine_named("luwu")
    if disks_of_worker:
        assert machine.disks is not None
        machine = replace(machine, disks=replace(machine.disks, worker_bytes_per_s=disks_of_worker))
    inputs = inputs_now()
    made = PagedScenario(
        machine=machine, model_name=model, num_workers=num_workers, batch=batch, prefetch=inputs.prefetch,
        float32_share=inputs.float32_share, disk_share=inputs.disk_share,
    )  # fmt: skip
    return replace(made, peak_share=SMALL_SHARE) if model == "opt-1.3b" else made


@cache
def luwu_step(model: str, batch: int) -> ModeStep:
    """For any number of workers."""
    return scenario_of(model, batch).step(LUWU)


def step_of(mode: str, scenario: PagedScenario) -> ModeStep:
    """A step of a mode."""
    return luwu_step(scenario.model_name, scenario.batch) if mode == LUWU else scenario.step(mode)


def peak(mode: str, model: str) -> ModeStep | None:
    """The step with the most FLOPS of a worker, over micro-batches that fit; None where none does."""
    most = inputs_now().most_batch
    if mode == "zero-infinity":
        most = min(most, ZERO_INFINITY_MOST.get(model, most))
    scenarios = [scenario_of(model, batch) for batch in BATCHES if batch <= most]
    steps = [step_of(mode, each) for each in scenarios if each.capacity.fits(mode, each.model, each.batch)]
    return max(steps, key=lambda step: step.flops_per_s, default=None)


def lead(model: str, mode: str) -> float | None:
    """LuWu's peak over another's; None where the other has no room."""
    ours, theirs = peak(LUWU, model), peak(mode, model)
    assert ours is not None
    return ours.flops_per_s / theirs.flops_per_s if theirs else None


def zero_infinity(scenario: PagedScenario) -> BaselineStep:
    """Its step, with when each part ended."""
    return simulate_baseline(Baseline.ZERO_INFINITY, scenario.baseline_cluster, scenario.training)


def billions(name: str) -> float:
    """Of an OPT, by its name."""
    return float(name.removeprefix("opt-").rstrip("bt")) * (1000 if name.endswith("t") else 1)


def gains(mode: str, batch: int) -> dict[int, float]:
    """FLOPS of all workers with OPT-30B, by their number, over those of one."""
    counts = (1, 2, 4, 8)
    if mode == LUWU:
        return {count: float(count) for count in counts}  # a switch adds: its step knows no number of workers
    steps = {count: scenario_of("opt-30b", batch, count).step(mode) for count in counts}
    return {count: count * step.flops_per_s / steps[1].flops_per_s for count, step in steps.items()}
