# Pure: no MPI, threads, clock or environment.
"""Ranks of a job on a modelled machine: the endpoints that play them, and the links of their ways."""

from dataclasses import dataclass
from functools import cached_property

from coarse.hardware.machine import Machine
from coarse.hardware.placement import EndpointPlacement, place
from coarse.hardware.wiring import PathKind
from coarse.protocol.plan import Placement
from coarse.simulation.representative_links import representative_links
from coarse.simulation.ring_order import in_ring_order
from coarse.simulation.sites import Site, coarse_site, dense_site, placement_of
from coarse.strategy.strategy import Access, Strategy


@dataclass(frozen=True, kw_only=True)
class ModelledCluster:
    """Workers and memory devices of a strategy on a machine."""

    machine: Machine
    strategy: Strategy
    num_workers: int
    num_devices: int = 0
    """Number of memory devices; 0: as many as the strategy wants."""
    is_exact: bool = False
    """True if there are exactly so many devices, even if the strategy wants others."""
    num_nodes: int = 1
    worker_ring: PathKind = "auto"
    """Paths of the workers' ring within a node; "pcie" leaves NVLink out."""
    copies: PathKind = "pcie"
    """Paths of pushes and pulls; "auto" takes an NVLink where there is one."""
    device_ring: PathKind | None = None
    """Paths between sync cores; by default the CCI links if the machine has any, else "auto"."""
    num_sync_groups: int = 2
    stated: EndpointPlacement | None = None
    """Endpoints that play them, if they are not chosen here."""

    @cached_property
    def places(self) -> EndpointPlacement:
        """Endpoints of the machine that play workers and memory devices, in the order of their rings."""
        machine = self.machine
        if self.stated is not None:
            return self.stated
        wanted = self.strategy.num_devices(self.num_devices, self.num_workers)
        num_devices = self.num_devices if self.is_exact else wanted
        if self.strategy.access is Access.COHERENT:
            return place(machine, num_workers=self.num_workers, num_devices=num_devices)
        places = place(machine, num_workers=self.num_workers, num_devices=num_devices, num_nodes=self.num_nodes)
        return in_ring_order(machine, places, workers=self.worker_ring, devices=self._device_ring)

    @property
    def placement(self) -> Placement:
        """Places as clients and proxies know them; ConfigError if the strategy does not suit them."""
        placement = placement_of(self.machine, self.places, self.strategy, num_sync_groups=self.num_sync_groups)
        self.strategy.check(placement.cluster)
        return placement

    def site(self, *, one_stands_for_all: bool = False) -> Site:
        """Return the links of every way."""
        if self.strategy.access is Access.COHERENT:
            return dense_site(self.machine, self.places)
        ways = {"device_ring": self._device_ring, "worker_ring": self.worker_ring, "copies": self.copies}
        if one_stands_for_all:
            return representative_links(self.machine, self.places, **ways, num_sync_groups=self.num_sync_groups)
        return coarse_site(self.machine, self.places, **ways)

    @property
    def _device_ring(self) -> PathKind:
        return self.device_ring or ("cci" if self.machine.cci and self.machine.cci_wire else "auto")
