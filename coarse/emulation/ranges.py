"""Range of an emulated run's steps over the intervals of the machine's numbers: least and most."""

from collections.abc import Callable
from dataclasses import replace

from coarse.emulation.account import OwnStep
from coarse.hardware.compute import share_factors
from coarse.hardware.intervals import COMPUTE, FACTORS, RING, draws, intervals_of, machine_at
from coarse.hardware.machine import Machine
from coarse.hardware.presets import machine_path
from coarse.protocol.toml import TomlFile
from coarse.simulation.cluster import ModelledCluster
from coarse.simulation.job import Job

_NUM_SAMPLES = 6
"""Points that are drawn beside the two ends."""
_MOST_WORKERS = 16
"""Most workers of which ranges are made: with more, simulations take long."""
Replay = Callable[[Job, float], "OwnStep | str"]
"""Function of (job, factor on all compute) to its last steps, or the reason why there are none."""


def with_range(
    own: OwnStep, job: Job, replay: Replay, machine: str, cluster_on: Callable[[Machine], ModelledCluster], *,
    is_share_assumed: bool, slows_rings: bool,
) -> OwnStep:  # fmt: skip
    """Add the seconds of the same steps at other points of the machine's intervals.

    Args:
        own: They at the machine's own numbers.
        job: Links and places.
        replay: Simulates some of them.
        machine: Preset or file.
        cluster_on: Function that returns the ranks' places on such a machine.
        is_share_assumed: Whether the accelerator's share of its peak is, so that compute may be what was published.
        slows_rings: Whether the simulation slows compute beside a ring of the workers.
    """
    if job.num_workers > _MOST_WORKERS:
        return own
    toml, assumed = TomlFile.read(machine_path(machine)), share_factors(None)
    factors = {COMPUTE: assumed} if is_share_assumed and assumed is not None else None
    intervals = [each for each in intervals_of(toml, {}, factors) if slows_rings or each.key != RING]
    central, found = replay(job, 1.0), []
    if isinstance(central, str) or not central.simulated_s:
        return own
    for values in draws(intervals, _NUM_SAMPLES):
        cluster = cluster_on(machine_at(toml, values))
        asked = replace(job, site=cluster.site(), ring_slow_down=values.get(RING, 1.0))
        step = replay(asked, values.get(COMPUTE, 1.0))
        if isinstance(step, str):
            return own
        found.append(own.simulated_s * step.simulated_s / central.simulated_s)
    of_all = [each for each in intervals if each.key in FACTORS]
    stated = ", ".join(f"{each.key} {each.low:.2g} to {each.high:.2g} times" for each in of_all)
    if len(of_all) < len(intervals):
        stated += f", {len(intervals) - len(of_all)} intervals of its file"
    return own._replace(range_s=(min(own.simulated_s, *found), max(own.simulated_s, *found)), varied=stated)
