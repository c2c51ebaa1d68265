"""What an emulated run is told, as JSON: the scenario, what was decided for it, and the dilation."""

import json
from dataclasses import asdict, dataclass, replace

from coarse.errors import ConfigError
from coarse.hardware.compute import profile_for
from coarse.hardware.degradation import parse_degradation
from coarse.hardware.models import Precision, model_named
from coarse.hardware.presets import machine_named
from coarse.protocol.partition import PartitionTable, RankPlace, Role
from coarse.protocol.place import Anywhere, GpuMemory
from coarse.protocol.plan import RoutingTable
from coarse.simulation.adaptation import Decide
from coarse.simulation.job import Job
from coarse.simulation.scenario import Mode, Policy, Scenario


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """One emulated run; a machine is a preset's name or the path of a TOML file."""

    machine: str
    model: str
    gpu: str | None
    """Whose compute is replayed; None for the machine's own."""
    batch: int
    precision: str
    mode: str
    num_workers: int
    num_devices: int
    num_iterations: int
    dilation: float
    num_nodes: int = 1
    """Of the modelled machine; the ranks all run on this host."""
    collective: str | None = None
    """How the mode coarse's devices sum; None: as live on one node, in a ring on several."""
    hold_back: bool = False
    """Whether all-reduce waits for the end of backward, as COARSE's evaluation has it (II-B)."""
    degradations: tuple[str, ...] = ()
    """What happens to links, as users write it: see hardware/degradation.py."""
    profile_every: int = 0
    """Iterations after which the mode coarse measures again; 0: never."""
    policy: str = Policy.DEVICES
    """By which it decides again then; set by `decided`."""
    num_proxy_gradients: int = -1
    """Decided once, before the ranks start: they would all decide alike, but each for itself. -1: undecided."""
    tables: tuple[tuple[int, int, int, int], ...] = ()
    checked_pool: str | None = None
    """A file by which devices send instead of by MPI, under the sanitizer of pools."""
    num_gpus: int = 0
    """GPUs of this host, in turn the workers' and then the devices': there gradients and device memory lie. 0: on the
    host."""

    def __post_init__(self) -> None:
        if self.collective == "in_place" and self.num_nodes > 1:
            raise ConfigError(
                f"emulated ranks share one host's memory, so collective 'in_place' would add across all of "
                f"{self.num_nodes} nodes; emulate one node, use the ring, or predict (simulated)",
                key="collective",
            )

    @property
    def num_ranks(self) -> int:
        """Workers and memory devices; a job without devices still has one, whose memory holds the gradients."""
        return self.num_workers + max(1, self.num_devices)

    def scenario(self, policy: Policy = Policy.DEVICES) -> Scenario:
        """The question that the run answers."""
        model, machine = model_named(self.model), machine_named(self.machine)
        machine = replace(machine, num_nodes=max(machine.num_nodes, self.num_nodes))
        return Scenario(
            machine=machine,
            model=model,
            profile=profile_for(model, machine, self.gpu, self.batch, Precision(self.precision)),
            mode=Mode(self.mode),
            num_workers=self.num_workers,
            num_devices=self.num_devices,
            num_nodes=self.num_nodes,
            policy=policy,
            collective=self.collective or ("ring" if self.num_nodes > 1 else None),
            hold_back=self.hold_back or None,
            num_iterations=self.num_iterations,
            profile_every=self.profile_every,
            degradations=tuple(map(parse_degradation, self.degradations)),
        )

    def decided(self, policy: Policy) -> "RunOrder":
        """The same run with what the policy chose."""
        job = self.scenario(policy).job()
        return replace(
            self,
            policy=policy,
            num_proxy_gradients=job.num_proxy_gradients,
            tables=tuple(table.row for table in job.tables),
            num_devices=job.placement.num_devices,
        )

    def job(self) -> Job:
        """The job as decided."""
        tables = tuple(RoutingTable.of_row(row) for row in self.tables)
        return replace(self.scenario().job(), num_proxy_gradients=self.num_proxy_gradients, tables=tables)

    def decide(self) -> Decide | None:
        """How tables and split are chosen from what is measured; None for a mode that chooses nothing."""
        return self.scenario(Policy(self.policy)).decide if self.mode == Mode.COARSE else None

    def gpu_of(self, worker: int) -> int | None:
        """Where a worker's gradients lie; None on the host."""
        return worker % self.num_gpus if self.num_gpus else None

    def partition(self, job: Job) -> PartitionTable:
        """Workers first, then devices, all on the one host that there is: it has the memory that all map, and
        tables and links keep the modelled nodes apart."""
        roles = [Role.WORKER] * self.num_workers + [Role.MEMORY_DEVICE] * max(1, self.num_devices)
        places = tuple(
            RankPlace(
                rank=rank,
                roles=role,
                node="node0",
                switch="emulated",
                memory=GpuMemory(rank % self.num_gpus) if self.num_gpus and role is Role.MEMORY_DEVICE else Anywhere(),
                memory_said_at="this run",
            )
            for rank, role in enumerate(roles)
        )
        local = job.placement.local_proxies or (0,) * self.num_workers
        return PartitionTable(places=places, local_proxies=local)


def order_json(order: RunOrder) -> str:
    """An order as JSON."""
    return json.dumps(asdict(order))


def parse_run_order(text: str) -> RunOrder:
    """What `order_json` wrote."""
    found = json.loads(text)
    found["tables"] = tuple(tuple(row) for row in found["tables"])
    found["degradations"] = tuple(found["degradations"])
    return RunOrder(**found)
