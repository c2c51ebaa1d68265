# Pure: no MPI, threads, clock or environment.
"""Tree between workers and an optimizer node: memory devices that add pushes, and copy pulls.

A host's workers share a device of that host, by mapped memory: their sum leaves it once, and pulled values come to it
once (LuWu, supporting multi-GPU workers). Other devices may be switches on the way.

[Note: order of sums] A device adds its children's values one after the other: workers and devices in the order of the
least worker below each. So with one worker a host the sum is that of the workers in their order, for any shape of the
tree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from coarse.errors import ConfigError
from coarse.protocol.plan import Placement

Switches = Mapping[int, Sequence[int]]
"""Memory devices below each memory device that is a switch."""


@dataclass(frozen=True)
class Tree:
    """Tree whose endpoints are numbered as in a Placement: workers first, then memory devices."""

    root: int
    """Device of the optimizer node."""
    parents: Mapping[int, int]
    """Device above each device that takes part, except for the root."""
    hubs: Mapping[int, int]
    """Device that the workers of each host with workers are attached to."""
    placement: Placement

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """All devices that take part, the root first."""
        return (self.root, *sorted(self.parents))

    def hub_of(self, worker: int) -> int:
        """Return the device that a worker is attached to."""
        return self.hubs[self.placement.client_nodes[worker]]

    def children(self, device: int) -> tuple[int, ...]:
        """Return the endpoints below a device; see [Note: order of sums]."""
        workers = [worker for worker in range(self.placement.num_clients) if self.hub_of(worker) == device]
        below = [child + self.placement.num_clients for child, parent in self.parents.items() if parent == device]
        return tuple(sorted([*workers, *below], key=lambda endpoint: self.workers_below(endpoint)[0]))

    def child_workers(self, device: int) -> tuple[int, ...]:
        """Return the workers that are attached to a device."""
        return tuple(endpoint for endpoint in self.children(device) if endpoint < self.placement.num_clients)

    def child_devices(self, device: int) -> tuple[int, ...]:
        """Return the devices below a device."""
        first = self.placement.num_clients
        return tuple(endpoint - first for endpoint in self.children(device) if endpoint >= first)

    def workers_below(self, endpoint: int) -> tuple[int, ...]:
        """Return the workers whose values come through an endpoint."""
        if endpoint < self.placement.num_clients:
            return (endpoint,)
        device = endpoint - self.placement.num_clients
        found = []
        for worker in range(self.placement.num_clients):
            at = self.hub_of(worker)
            while at != device and at in self.parents:
                at = self.parents[at]
            if at == device:
                found.append(worker)
        return tuple(found)


def plan_tree(root: int, number: int, placement: Placement, switches: Switches) -> Tree:
    """Plan the tree of the optimizer node of a number, whose device is `root`.

    A switch with no worker below it takes no part.

    Raises:
        ConfigError: devices that there are not, that stand below two others or in a circle on a worker's way, and hosts
            with workers and no device.
    """
    hubs = {}
    for host in placement.nodes:
        devices = placement.devices_on(host)
        if not devices:
            raise ConfigError(
                f"node {host} has workers and no memory device; give it one, by which its workers reach the others",
                key="partition",
            )
        hubs[host] = root if root in devices else devices[number % len(devices)]
    parents: dict[int, int] = {}
    for switch, below in switches.items():
        for device in below:
            if device in parents and parents[device] != switch:
                raise ConfigError(
                    f"memory device {device} stands below {parents[device]} and below {switch}; name it once",
                    key="switches",
                )
            parents[device] = switch
    _require_devices({*switches, *parents}, placement)
    parents.pop(root, None)
    taking_part: set[int] = set()
    for hub in hubs.values():
        at, passed = hub, [hub]
        while at != root:
            at = parents.setdefault(at, root)
            if at in passed:
                raise ConfigError(f"the switches {passed} stand in a circle; have them end at one", key="switches")
            passed.append(at)
        taking_part.update(passed)
    return Tree(root, {device: parents[device] for device in taking_part - {root}}, hubs, placement)


def plan_roles(
    optimizers: Sequence[int] | None, switches: int | Switches | None, placement: Placement
) -> tuple[tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]]:
    """Return the devices that are roots, and each switch with those below it.

    Args:
        optimizers: the roots; by default all devices that are no switches.
        switches: one device, with all that are no roots below it, or each with those below it.
        placement: the job's workers and memory devices.

    Raises:
        ConfigError: no roots, or some that there are not.
    """
    devices = range(placement.num_devices)
    named = [switches] if isinstance(switches, int) else list(switches or ())
    nodes = tuple(device for device in devices if device not in named) if optimizers is None else tuple(optimizers)
    if not nodes or len(set(nodes)) < len(nodes) or not set(nodes) <= set(devices):
        raise ConfigError(
            f"optimizers must be different memory devices of the {placement.num_devices} there are, counted from 0 on; "
            f"got {list(nodes)}",
            key="optimizers",
        )
    if switches is None:
        return nodes, ()
    if isinstance(switches, int):
        return nodes, ((switches, tuple(device for device in devices if device not in (switches, *nodes))),)
    return nodes, tuple((switch, tuple(below)) for switch, below in switches.items())


def _require_devices(named: set[int], placement: Placement) -> None:
    unknown = sorted(device for device in named if not 0 <= device < placement.num_devices)
    if unknown:
        raise ConfigError(
            f"switches name memory devices {unknown}; there are {placement.num_devices}, counted from 0 on",
            key="switches",
        )
