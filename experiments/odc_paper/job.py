"""Minibatches of post-training on a stated cluster, on a virtual clock: mode odc by the live machines, and FSDP.

The claims of the paper and the benchmarks of mode odc share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coarse.odc.layout import EVERYTHING, OdcDeclaration, OdcUnit
from coarse.odc.simulation.machines import Microbatch, SimulatedOdc
from coarse.odc.simulation.sites import bare_site
from coarse.parallel.packing.costs import Cost
from coarse.parallel.packing.plans import MinibatchPlan
from coarse.parallel.packing.sampler import Sampling
from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Placement
from coarse.simulation.lockstep import LockstepTimes, lockstep_s
from coarse.strategy.builtin import Coarse
from coarse.strategy.sharding import Sum

FORWARD_SHARE = 1 / 3
NO_TIME = 1e15
"""Bytes/s of a link that takes no time."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Workers on nodes, a model in units of one size, and what a sample costs."""

    num_workers: int
    workers_of_node: int
    cost: Cost
    num_units: int = 1
    unit_elements: int = 64
    """Rounded down to a multiple of the workers."""
    gathered_bytes: int = 4
    """Of an element."""
    gradient_type: DType = DType.FLOAT32
    node_bytes_per_s: float = NO_TIME
    """Of a node's link, each way."""

    @property
    def num_nodes(self) -> int:
        """Each has one memory device."""
        return -(-self.num_workers // self.workers_of_node)

    @property
    def shard_elements(self) -> int:
        """Of a worker and unit."""
        return max(1, self.unit_elements // self.num_workers)

    def balanced(
        self, balance: str, cap: int, lengths: Sequence[Sequence[int]], *, equal_samples: bool = False
    ) -> list[MinibatchPlan]:
        """A plan for each minibatch."""
        sampling = Sampling(
            minibatch=len(lengths[0]), num_ranks=self.num_workers, balance=balance, cap=cap, cost=self.cost,
            pad=balance != "lb_mini", equal_samples=equal_samples,
        )  # fmt: skip
        return [sampling.plan(some) for some in lengths]

    def costs(self, plans: Sequence[MinibatchPlan], lengths: Sequence[Sequence[int]]) -> list[list[list[float]]]:
        """Seconds by minibatch, worker and microbatch."""
        return [plan.costs(some, self.cost) for plan, some in zip(plans, lengths, strict=True)]

    def odc_s(
        self, costs: Sequence[Sequence[Sequence[float]]], *, cache: bool = False, sums: Sum = Sum.INT64
    ) -> tuple[float, float]:
        """(Seconds, idle share) in mode odc."""
        workers = tuple(range(self.num_workers))
        nodes = tuple(worker // self.workers_of_node for worker in workers)
        unit = OdcUnit(self.gathered_bytes * self.shard_elements, (self.shard_elements,), int(self.gradient_type))
        declaration = OdcDeclaration(
            members=workers, units=(unit,) * self.num_units, sum=sums, cache_bytes=EVERYTHING if cache else 0,
            top=18, num_slots=4,
        )  # fmt: skip
        placement = Placement(
            client_nodes=nodes, device_nodes=tuple(range(self.num_nodes)), local_proxies=nodes,
            ranks=tuple(range(self.num_workers + self.num_nodes)), planner=Coarse(), num_sync_groups=1,
        )  # fmt: skip
        forward, backward = FORWARD_SHARE / self.num_units, (1 - FORWARD_SHARE) / self.num_units
        work = [
            [[Microbatch(forward * seconds, backward * seconds) for seconds in own] for own in minibatch]
            for minibatch in costs
        ]
        site = bare_site(placement, node_bytes_per_s=self.node_bytes_per_s)
        run = SimulatedOdc(placement, declaration, site).run(work)
        return run.ended_s[-1], run.idle_share

    def fsdp_s(
        self, costs: Sequence[Sequence[Sequence[float]]], *, is_reduce_awaited: bool = False
    ) -> tuple[float, float]:
        """(Seconds, idle share) in mode fsdp, whose gathers send each byte once to a node."""
        far = (self.num_nodes - 1) / self.num_nodes * self.shard_elements * self.num_workers / self.node_bytes_per_s
        times = LockstepTimes(
            gather_s=far * self.gathered_bytes, reduce_s=far * self.gradient_type.itemsize,
            is_reduce_awaited=is_reduce_awaited,
        )  # fmt: skip
        took_s = sum(lockstep_s(minibatch, self.num_units, FORWARD_SHARE, times) for minibatch in costs)
        busy_s = sum(sum(map(sum, minibatch)) for minibatch in costs)
        return took_s, 1 - busy_s / (self.num_workers * took_s)
