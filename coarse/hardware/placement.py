# Pure: no MPI, threads, clock or environment.
"""Choice of a machine's endpoints that play workers and memory devices (COARSE III-A and V-A)."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from coarse.errors import ConfigError
from coarse.hardware.machine import Machine
from coarse.protocol.partition import PartitionTable, RankPlace, Role


@dataclass(frozen=True, kw_only=True)
class EndpointPlacement:
    """Endpoint by client index and by device index, and each client's local device."""

    workers: tuple[str, ...]
    devices: tuple[str, ...]
    local_devices: tuple[int, ...]
    """Index of the device that shares each worker's switch, or is as near as possible; () without devices."""

    def partition_table(self, machine: Machine) -> PartitionTable:
        """Return the places as the runtime's partition table; ranks are the workers, then the devices."""
        roles = [Role.WORKER] * len(self.workers) + [Role.MEMORY_DEVICE] * len(self.devices)
        places = tuple(
            RankPlace(
                rank=rank, roles=role, node=f"node{machine.node_of(endpoint)}", switch=machine.switch_of(endpoint)
            )
            for rank, (role, endpoint) in enumerate(zip(roles, (*self.workers, *self.devices), strict=True))
        )
        return PartitionTable(places=places, local_proxies=self.local_devices)


def place(machine: Machine, *, num_workers: int, num_devices: int, num_nodes: int = 1) -> EndpointPlacement:
    """Return places of `num_workers` and `num_devices`, spread evenly over the first `num_nodes` nodes.

    If the machine has no memory devices, GPUs play them (COARSE V-A). Each device shares a switch with its first worker
    while there are switches enough; the worker of a 2:1 setting that finds no room there comes as near as it can.
    Without devices the workers stand where they would stand with as many devices.
    """
    _check(machine, num_workers, num_devices, num_nodes)
    per_node = num_workers // num_nodes
    here = _place_on_one(machine, per_node, num_devices // num_nodes)
    of_each = (len(machine.tree.gpus), len(machine.tree.memories))
    return EndpointPlacement(
        workers=tuple(_on_node(node, name, of_each) for node in range(num_nodes) for name in here.workers),
        devices=tuple(_on_node(node, name, of_each) for node in range(num_nodes) for name in here.devices),
        local_devices=tuple(
            node * len(here.devices) + local for node in range(num_nodes) for local in here.local_devices
        ),
    )


def places_named(machine: Machine, workers: Sequence[str], devices: Sequence[str]) -> EndpointPlacement:
    """Return the places of endpoints in the order of their rings.

    Each worker's own device is the nearest of its node.

    Raises:
        ConfigError: an endpoint that the machine has not, one that is named twice, a worker that is no GPU, or
            a worker's node without a device.
    """
    num_gpus, num_memories = (machine.num_nodes * len(of) for of in (machine.tree.gpus, machine.tree.memories))
    known = {f"gpu{n}" for n in range(num_gpus)} | {f"memory{n}" for n in range(num_memories)}
    for endpoint in (*workers, *devices):
        if endpoint not in known:
            near = get_close_matches(endpoint, sorted(known), 1)
            raise ConfigError(
                f"{endpoint!r} is no endpoint of {machine.name}, which has {num_gpus} GPUs (gpu0, ...) and "
                f"{num_memories} memory devices (memory0, ...)"
                + (f"; nearest: {near[0]}" if near else ""),
                key="places",
            )
        if (*workers, *devices).count(endpoint) > 1:
            raise ConfigError(f"{endpoint} is named twice; each rank has an endpoint of its own", key="places")
    if strangers := [worker for worker in workers if not worker.startswith("gpu")]:
        raise ConfigError(f"workers are GPUs, got {strangers[0]}; name memory devices behind the colon", key="places")
    local: list[int] = []
    for worker in workers if devices else ():
        local.append(_nearest(machine, worker, devices, local))
    return EndpointPlacement(workers=tuple(workers), devices=tuple(devices), local_devices=tuple(local))


def _nearest(machine: Machine, worker: str, devices: Sequence[str], taken: Sequence[int]) -> int:
    """Return the nearest device; of equal ones the one that others have taken least often."""
    near = [n for n, device in enumerate(devices) if machine.node_of(device) == machine.node_of(worker)]
    if not near:
        raise ConfigError(
            f"the node of {worker} has no memory device among {', '.join(devices)}; name one on each node", key="places"
        )
    return min(near, key=lambda number: (machine.num_wires_up(devices[number], worker), taken.count(number)))


def _on_node(node: int, name: str, of_each: tuple[int, int]) -> str:
    """Return the endpoint of a node that has a name within it; names count on from node to node."""
    kind = "gpu" if name.startswith("gpu") else "memory"
    return f"{kind}{node * of_each[kind == 'memory'] + int(name.removeprefix(kind))}"


def _place_on_one(machine: Machine, num_workers: int, num_devices: int) -> EndpointPlacement:
    """Return places on the first node, which are those of every node: all have one tree."""
    taken = _Node(machine)
    workers: list[str] = []
    devices: list[str] = []
    local_devices: list[int] = []
    for device in range(num_devices):
        share = [worker for worker in range(num_workers) if worker * num_devices // num_workers == device]
        worker_places, device_place = taken.group(len(share))
        local_devices += [device] * len(share)
        workers += worker_places
        devices.append(device_place)
    if not num_devices:
        workers += taken.lone_workers(num_workers)
    return EndpointPlacement(workers=tuple(workers), devices=tuple(devices), local_devices=tuple(local_devices))


class _Node:
    """Free endpoints of the first node."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._gpus = list(machine.tree.gpus)
        self._devices = list(machine.tree.memories) or list(self._gpus)
        self._used_switches: set[str] = set()

    def group(self, num_workers: int) -> tuple[list[str], str]:
        """Return a device and the workers that share it, as near to one another as free endpoints allow."""
        device = max(self._devices, key=self._num_free_beside)  # the first of the best
        if device in self._gpus and num_workers and self._num_free_beside(device):
            device = self._beside(device)[0]  # the worker goes first
        self._devices.remove(device)
        if device in self._gpus:
            self._gpus.remove(device)
        self._used_switches.add(self._machine.switch_of(device))
        return [self._take_near(device) for _ in range(num_workers)], device

    def lone_workers(self, num_workers: int) -> list[str]:
        """Return every other GPU while that is possible, as if devices stood between."""
        return [*self._gpus[::2], *self._gpus[1::2]][:num_workers]

    def _beside(self, device: str) -> list[str]:
        switch = self._machine.switch_of(device)
        return [gpu for gpu in self._gpus if gpu != device and self._machine.switch_of(gpu) == switch]

    def _num_free_beside(self, device: str) -> int:
        """Return how many GPUs are free on the device's switch; fewer than any if it has a device already."""
        is_used = self._machine.switch_of(device) in self._used_switches
        return len(self._beside(device)) - (len(self._machine.tree.gpus) if is_used else 0)

    def _take_near(self, device: str) -> str:
        gpu = min(self._gpus, key=lambda gpu: self._machine.num_wires_up(device, gpu))
        self._gpus.remove(gpu)
        if gpu in self._devices:
            self._devices.remove(gpu)
        return gpu


def _check(machine: Machine, num_workers: int, num_devices: int, num_nodes: int) -> None:
    if not 1 <= num_nodes <= machine.num_nodes:
        raise ConfigError(
            f"num_nodes must lie in 1..{machine.num_nodes}, the nodes of {machine.name}, got {num_nodes}; "
            "add nodes to the machine or use fewer",
            key="num_nodes",
        )
    for key, count, least in (("num_workers", num_workers, 1), ("num_devices", num_devices, 0)):
        if count < least or count % num_nodes:
            raise ConfigError(
                f"{key} must be at least {least} and the same on each of {num_nodes} nodes, got {count}; "
                f"choose a multiple of {num_nodes}",
                key=key,
            )
    num_gpus, num_memories = len(machine.tree.gpus), len(machine.tree.memories)
    workers, devices = num_workers // num_nodes, num_devices // num_nodes
    gpus = workers if num_memories else workers + devices
    if gpus > num_gpus or (num_memories and devices > num_memories):
        raise ConfigError(
            f"a node of {machine.name} has {num_gpus} GPUs and {num_memories} memory devices, too few for "
            f"{workers} workers and {devices} devices (where there are no memory devices, GPUs play them), "
            "so a rank would be without a device; use fewer, more nodes, or another machine",
            key="num_workers" if gpus > num_gpus else "num_devices",
        )
