# Pure: no MPI, threads, clock or environment.
"""Strategies that come with coarse: one parameter server, the workers' own all-reduce, and COARSE in three policies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

from coarse.errors import ConfigError
from coarse.protocol import override
from coarse.protocol.config import LIVE_COLLECTIVE, FixedRouting, MeasuredRouting
from coarse.protocol.plan import Cluster, Facts, Plan, Tensor
from coarse.protocol.units import KIB
from coarse.strategy.dual_sync import IterationTimes, best_proxy_bytes, split_keys
from coarse.strategy.plans import central, on_each_node, ring_of_all
from coarse.strategy.rounds import By, Round, first_to_devices
from coarse.strategy.routing import ProxyProfile, RoutingTable, derive_table, local_tables, proxy_for
from coarse.strategy.strategy import Access, Strategy, View

SMALLEST_BYTES = 4 * KIB
"""Smallest measured copy in bytes: the size at which two proxies cross may lie far below the size of a shard."""


@dataclass(frozen=True, kw_only=True)
class Dense(Strategy):
    """One memory device keeps and sums everything, whole tensors at a time, behind loads and stores (COARSE III-B)."""

    access: ClassVar[Access] = Access.COHERENT

    @override
    def num_devices(self, asked: int, num_workers: int) -> int:
        return 1

    @override
    def check(self, cluster: Cluster) -> None:
        if len(cluster.nodes) > 1:
            raise ConfigError(
                f'mode "dense" wants all ranks on one node, got {len(cluster.nodes)}: every worker loads from and '
                "stores to one memory device, and no coherent link joins the memory of two nodes here; use mode "
                '"coarse", or see `coarse predict` for machines with such links',
                key="mode",
            )

    @property
    @override
    def meets_within_nodes(self) -> bool:
        return False

    @override
    def plan(self, tensor: Tensor, cluster: Cluster, facts: tuple[Facts, ...]) -> Plan:
        return central(cluster)


@dataclass(frozen=True, kw_only=True)
class Coarse(Strategy):
    """Measured routes, partitions and sync cores (COARSE III-E, IV-A); the devices sum everything: policy "devices"."""

    routing: MeasuredRouting | FixedRouting = field(default_factory=MeasuredRouting)
    """Rule that derives routing tables from measurements, or the table that the user states."""
    collective: str = LIVE_COLLECTIVE
    """"in_place": a node's devices add where its workers' regions lie; "ring": each adds what lies on it."""
    hold_back: bool = True
    """True if buckets that the workers sum wait for the end of backward (COARSE III-F)."""

    def check(self, cluster: Cluster) -> None:
        """Refuse fixed routes to devices that a worker cannot reach through mapped memory."""
        if not isinstance(self.routing, FixedRouting):
            return
        for key in ("latency_proxy", "bandwidth_proxy"):
            proxy = getattr(self.routing, key)
            for node in cluster.nodes:
                near = cluster.devices_on(node)
                if proxy is not None and proxy not in near:
                    raise ConfigError(
                        f"routing.{key} must be a memory device of every worker's node, one of {near} for "
                        f"worker {cluster.workers_on(node)[0]}, got {proxy}; leave it out for the local one",
                        key=key,
                    )

    @property
    @override
    def profile_every_steps(self) -> int | None:
        return None if isinstance(self.routing, FixedRouting) else self.routing.profile_every_steps

    @property
    @override
    def meets_within_nodes(self) -> bool:
        return self.collective == "ring" or type(self).plan is not Coarse.plan

    @property
    def probes(self) -> tuple[int, ...]:
        """Bytes, doubling from 4 KiB to the largest partition; () where routes are stated."""
        if isinstance(self.routing, FixedRouting):
            return ()
        sizes = [min(SMALLEST_BYTES, self.routing.min_partition_bytes)]
        while sizes[-1] * 2 <= self.routing.max_partition_bytes:
            sizes.append(sizes[-1] * 2)
        return tuple(sizes)

    @override
    def facts(self, worker: int, ways: Sequence[ProxyProfile], cluster: Cluster) -> RoutingTable:
        routing, local = self.routing, cluster.local_devices[worker]
        if isinstance(routing, FixedRouting):
            latency, bandwidth = routing.latency_proxy, routing.bandwidth_proxy
            return RoutingTable(
                threshold_bytes=routing.threshold_bytes,
                latency_proxy=local if latency is None else latency,
                bandwidth_proxy=local if bandwidth is None else bandwidth,
                partition_bytes=routing.partition_bytes,
            )
        return derive_table(
            ways,
            tie_tolerance=routing.tie_tolerance,
            min_partition_bytes=routing.min_partition_bytes,
            max_partition_bytes=routing.max_partition_bytes,
        )

    def is_settled(self, facts: Facts, worker: int, cluster: Cluster) -> bool:
        """Return whether all tensors are local.

        A device that is farther away has to win by the best of several rounds of measurements.
        """
        if type(self).facts is not Coarse.facts:
            return False
        _, latency, bandwidth, _ = facts
        return latency == bandwidth == cluster.local_devices[worker]

    def measured_again(
        self, used: tuple[Facts, ...], measured: tuple[Facts, ...], cluster: Cluster
    ) -> tuple[Facts, ...]:
        """Return local routes where local ones are in use (see `Auto`); the rest of the tables is as measured."""
        if type(self).facts is not Coarse.facts:
            return measured
        local = local_tables(tables_of(used), cluster.local_devices)
        return local_tables(tables_of(measured), cluster.local_devices) if used == local else measured

    @override
    def plan(self, tensor: Tensor, cluster: Cluster, facts: tuple[Facts, ...]) -> Plan:
        tables, nbytes = tables_of(facts), tensor.nbytes
        homes = [proxy_for(nbytes, table) for table in tables]
        cut_bytes = max(table.partition_bytes for table in tables)
        build = ring_of_all if self.collective == "ring" else on_each_node
        return build(tensor, cluster, homes, cut_bytes)


def name_of(strategy: Strategy) -> str:
    """Return the name of a strategy: that of a policy, or of its class."""
    return next((name for name, kind in POLICY_STRATEGIES.items() if type(strategy) is kind), type(strategy).__name__)


@lru_cache(maxsize=16)
def tables_of(facts: tuple[Facts, ...]) -> tuple[RoutingTable, ...]:
    """Return the routing tables that facts of `Coarse` are."""
    return tuple(RoutingTable(*row) for row in facts)


@dataclass(frozen=True, kw_only=True)
class Allreduce(Coarse):
    """The workers sum buckets themselves, beside backward as DDP does; arrays of the script go by devices."""

    hold_back: bool = False
    """True for COARSE's baseline, whose all-reduce begins when backward has ended (II-B)."""

    uses_devices: ClassVar[bool] = False

    @override
    def decide(self, view: View) -> Round:
        return Round(by=(By.WORKERS,) * len(view.nbytes), hold_back=self.hold_back)


@dataclass(frozen=True, kw_only=True)
class Paper(Coarse):
    """Dual synchronisation by T_train, which leaves out push and pull (COARSE III-F)."""

    @override
    def decide(self, view: View) -> Round:
        times = IterationTimes(forward_s=view.step.forward_s, backward_s=view.step.backward_s)
        best_bytes = best_proxy_bytes(sum(view.nbytes), times, view.rates)
        return first_to_devices(
            split_keys(view.nbytes, best_bytes), len(view.nbytes), hold_back=self.hold_back
        )


@dataclass(frozen=True, kw_only=True)
class Auto(Coarse):
    """Dual synchronisation by simulating the iteration; tensors take measured routes, or all stay local.

    The devices keep everything where the gain is within what measurements tell (see `View.least_gain`).
    """

    tries: ClassVar[bool] = True

    @override
    def decide(self, view: View) -> Round:
        from coarse.strategy.split_search import best_round  # who decides needs it, and no memory device

        count, worth_s = len(view.nbytes), 0.0
        everything = first_to_devices(count, count)
        if view.least_gain:
            worth_s = view.iteration_s(everything) * (1 - view.least_gain)
            if view.least_shared_s >= worth_s:
                return everything
        local = local_tables(tables_of(view.facts), view.cluster.local_devices)
        best = best_round(view, [None] if local == view.facts else [None, local], hold_back=self.hold_back)
        return everything if view.least_gain and view.iteration_s(best) > worth_s else best


POLICY_STRATEGIES: dict[str, type[Coarse]] = {"auto": Auto, "paper": Paper, "devices": Coarse}
"""Strategies of the mode coarse, by the name of their policy."""
