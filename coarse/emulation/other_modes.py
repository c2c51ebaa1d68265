"""Steps of an emulated run, simulated in the modes that it did not run in."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from coarse.errors import ConfigError
from coarse.simulation.cluster import ModelledCluster
from coarse.simulation.job import Job
from coarse.simulation.profiling import measured_facts
from coarse.simulation.training import simulate
from coarse.strategy.builtin import Allreduce, Coarse, Dense
from coarse.strategy.rounds import By, Round
from coarse.strategy.strategy import Strategy

ClusterOf = Callable[[Strategy], ModelledCluster]
"""Function of a strategy to its ranks' places on the machine; ConfigError if it has none."""


def in_other_modes(steps: Sequence[Job], cluster_of: ClusterOf) -> Iterator[tuple[str, float]]:
    """Simulate steps whose gradients the devices sum, in place and in rings, or one device or the workers.

    Args:
        steps: Some, as they ran.
        cluster_of: Function that returns places.

    Yields:
        A mode, and its mean seconds of an iteration; none that the machine has no places for.
    """
    for name, strategy, by in (
        ("coarse in_place", Coarse(collective="in_place"), By.DEVICES),
        ("coarse ring", Coarse(collective="ring"), By.DEVICES),
        ("dense", Dense(), By.DEVICES),
        ("allreduce", Allreduce(), By.WORKERS),
    ):
        try:
            cluster = cluster_of(strategy)
        except ConfigError:
            continue
        site, placement = cluster.site(), cluster.placement
        is_measured = by is By.DEVICES and strategy.probes
        facts = measured_facts(site, placement.cluster, strategy) if is_measured else ((),) * steps[0].num_workers
        jobs = (
            replace(
                asked, site=site, placement=placement, facts=facts,
                round=Round(by=(by,) * len(asked.gradients), hold_back=False),
            )
            for asked in steps
        )  # fmt: skip
        yield name, fmean(simulate(job).iteration_s for job in jobs)
