"""COARSE figure 15: one client's way to its local and to its remote proxies, and the routing tables that follow.

    python -m experiments.coarse_paper.fig15_routing --out results/fig15

Input: links by size, and on the V100 machine how much later a remote proxy answers. Outcome: the tables that the
profiler derives by the rule of live training, from push and pull at once.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from coarse.hardware.machine import Machine
from coarse.hardware.placement import place
from coarse.protocol.config import MeasuredRouting
from coarse.protocol.plan import Cluster
from coarse.protocol.units import KIB, MIB
from coarse.simulation.profiling import measured_facts, profile_proxy
from coarse.simulation.sites import coarse_site
from coarse.strategy.builtin import Coarse
from coarse.strategy.routing import NEVER_BYTES, ProxyProfile, RoutingTable
from experiments.coarse_paper.fig8_pairs import T4_WHY
from experiments.coarse_paper.inputs import CENTRAL, Platform
from experiments.validation.bars import Plot, draw_curves
from experiments.validation.claims import ClaimRow, Given, Order, Unit, claim_row
from experiments.validation.script import main

SIZES = tuple(4 * KIB * 2**power for power in range(12))
"""4 KiB to 8 MiB."""
LATENCIES_S = (0.0, 0.5e-6, 1e-6, 2e-6, 4e-6, 8e-6)
"""Of crossing the V100 machine's root complex, which is an assumption: how the threshold moves with it."""
ROUTING = MeasuredRouting(tie_tolerance=0.0)
"""For the V100's sensitivity alone: a difference of latency under 10 % would count as a tie."""


@dataclass(frozen=True, kw_only=True)
class Routed:
    """What the first client finds."""

    table: RoutingTable
    profiles: tuple[ProxyProfile, ...]

    @property
    def is_local(self) -> bool:
        """Whether all its tensors go to the proxy under its switch."""
        return self.table.latency_proxy == self.table.bandwidth_proxy == 0

    @property
    def is_split(self) -> bool:
        """Whether small tensors go there and large ones elsewhere."""
        return self.table.latency_proxy == 0 != self.table.bandwidth_proxy and 0 < self.threshold_bytes < NEVER_BYTES

    @property
    def threshold_bytes(self) -> int:
        """Up to which tensors go to the latency proxy."""
        return self.table.threshold_bytes


def routed(machine: Machine, routing: MeasuredRouting | None = None) -> Routed:
    """Profile a machine's first client."""
    num_pairs = len(machine.gpus) // 2
    places = place(machine, num_workers=num_pairs, num_devices=num_pairs)
    site = coarse_site(machine, places, device_ring="auto", worker_ring="auto")
    devices = tuple(range(num_pairs))
    strategy = Coarse(routing=routing or MeasuredRouting())
    cluster = Cluster(worker_nodes=(0,), device_nodes=(0,) * num_pairs, local_devices=places.local_devices[:1])
    table = RoutingTable(*measured_facts(site, cluster, strategy)[0])
    profiles = tuple(profile_proxy(site, 0, device, is_local=device == 0, sizes=SIZES) for device in devices)
    return Routed(table=table, profiles=profiles)


def central(platform: Platform) -> Machine:
    """As everywhere in the evaluation; the profiler leaves NVLink out (COARSE IV-B)."""
    return CENTRAL.machine(platform, num_nodes=1, nvlink=False)


def with_crossing(machine: Machine, latency_s: float) -> Machine:
    """The machine with another latency of its root complexes."""
    places = tuple(
        replace(place, crossing=replace(place.crossing, latency_s=latency_s)) if place.crossing else place
        for place in machine.tree.places
    )
    return replace(machine, tree=replace(machine.tree, places=places))


def rows() -> list[ClaimRow]:
    """Figure 15's claims."""
    t4, p100, v100 = (routed(central(platform)) for platform in (Platform.T4, Platform.P100, Platform.V100))
    by_latency = [routed(with_crossing(central(Platform.V100), latency_s), ROUTING) for latency_s in LATENCIES_S[1:]]
    found = f"found: latency proxy {v100.table.latency_proxy}, bandwidth proxy {v100.table.bandwidth_proxy}"
    return [
        claim_row(
            "T4: 1 if a client always takes its local proxy", "V-C, Fig. 15a", "always local", Given(),
            [float(t4.is_local)], Unit.COUNT, inputs=("links",), why=T4_WHY,
        ),
        claim_row(
            "V100: small tensors local, large ones remote; threshold", "V-C, Fig. 15b", "local, then remote",
            Order(v100.is_split), [v100.threshold_bytes / MIB], Unit.MIB, inputs=("links", "local latency"), why=found,
        ),
        claim_row(
            "V100: the same for a root complex of 0.5 to 8 us; thresholds", "V-C, Fig. 15b", "local, then remote",
            Order(all(one.is_split for one in by_latency)), [one.threshold_bytes / MIB for one in by_latency], Unit.MIB,
            inputs=("links", "local latency"), why="without the profiler's tie of 10 % on latency; see docs",
        ),
        claim_row(
            "P100: 1 if a client always takes its local proxy", "V-C, Fig. 15c", "always local", Order(p100.is_local),
            [float(p100.is_local)], Unit.COUNT, inputs=("links",),
        ),
    ]  # fmt: skip


def draw(folder: Path) -> None:
    """Bandwidth to each kind of proxy, normalised to the local one."""
    plots = []
    for letter, platform in zip("abc", (Platform.T4, Platform.V100, Platform.P100), strict=True):
        local, *remote = routed(central(platform)).profiles
        best = min(remote, key=lambda profile: profile.longest_s)
        curves = {
            name: [
                (nbytes, local_s / seconds)
                for (nbytes, seconds), (_, local_s) in zip(
                    profile.seconds_by_nbytes, local.seconds_by_nbytes, strict=True
                )
            ]
            for name, profile in (("local", local), ("remote", best))
        }
        plots.append(Plot(f"Fig. 15{letter}: {platform.name}, push and pull at once", curves))
    draw_curves(plots, xlabel="size", ylabel="bandwidth over local", path=folder / "fig15.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
