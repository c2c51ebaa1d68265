"""A cluster so small that timelines of sharded training can be worked out by hand."""

from coarse.hardware.machine import Accelerator, Machine, MemoryDevice
from coarse.hardware.topology_tree import HOST, Place, PlaceKind, Tree
from coarse.hardware.wire import Wire
from coarse.simulation.sharded.iteration import simulate_sharded
from coarse.simulation.sharded.job import ShardedJob
from coarse.simulation.sharded.modes import Schedule, ShardedPolicy
from coarse.simulation.sharded.report import ShardedReport
from coarse.simulation.sharded.routes import Routes
from coarse.simulation.sharded.units import Unit
from coarse.strategy.sharding import Sharding


def cluster(
    *, num_nodes: int = 2, gpus_per_node: int = 1, port: float = 20.0, network: float = 10.0, latency_s: float = 0.0
) -> Machine:
    """Nodes of one socket: GPUs on ports, and a card; rates in bytes per second."""
    gpu = Wire(name="port", bytes_per_s=port)
    places = [Place(name="socket0", kind=PlaceKind.SOCKET, parent=HOST, wire=Wire(name="socket", bytes_per_s=1e9))]
    places += [
        Place(name=f"gpu{number}", kind=PlaceKind.GPU, parent="socket0", wire=gpu) for number in range(gpus_per_node)
    ]
    return Machine(
        name="small",
        tree=Tree(places=tuple(places)),
        accelerator=Accelerator(
            name="A40", memory_bytes=1000, fp32_flops_per_s=1.0, fp16_flops_per_s=2.0, memory_bytes_per_s=1.0
        ),
        memory_device=MemoryDevice(adder_bytes_per_s=1.0, optimizer_bytes_per_s=1.0, capacity_bytes=1000),
        peer_to_peer=False,
        network=Wire(name="card", bytes_per_s=network, latency_s=latency_s),
        num_nodes=num_nodes,
    )


def units(
    num_units: int = 2, nbytes: int = 20, forward_s: float = 1.0, backward_s: float = 2.0, frozen_nbytes: int = 0
) -> tuple[Unit, ...]:
    """Equal units."""
    return tuple(
        Unit(
            name=f"u{number}",
            trainable_nbytes=nbytes,
            frozen_nbytes=frozen_nbytes,
            forward_s=forward_s,
            backward_s=backward_s,
        )
        for number in range(num_units)
    )


def simulated(
    mode: Sharding,
    machine: Machine | None = None,
    *,
    of: tuple[Unit, ...] | None = None,
    policy: dict[str, object] | None = None,
    schedule: Schedule = Schedule.OVERLAPPED,
    **settings: object,
) -> ShardedReport:
    """One iteration on the first nodes of a machine."""
    machine = machine or cluster()
    routes = Routes(machine=machine, num_nodes=machine.num_nodes, gpus_per_node=len(machine.tree.gpus))
    return simulate_sharded(
        ShardedJob(
            units=of or units(),
            routes=routes,
            policy=ShardedPolicy(sharding=mode, **(policy or {})),
            schedule=schedule,
            **settings,
        )
    )


def spans(report: ShardedReport, what: str) -> list[tuple[str, float, float]]:
    """(unit, begin, end) of moves of a name, in the order of their ends; "compute" for computations."""
    if what == "compute":
        return [(slot.unit.name, begin_s, end_s) for slot, begin_s, end_s in report.computed]
    return [(one.unit, one.begin_s, one.end_s) for one in report.moved if one.what == what]
