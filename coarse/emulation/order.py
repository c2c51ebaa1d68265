"""Order of an emulated run, as JSON: the scenario, and the decisions for it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

from coarse.hardware.compute import profile_for
from coarse.hardware.models import Precision, model_named
from coarse.hardware.presets import machine_named
from coarse.protocol.fields import from_mapping
from coarse.protocol.partition import PartitionTable, RankPlace, Role
from coarse.protocol.place import Anywhere, GpuMemory
from coarse.simulation.adaptation import Decide
from coarse.simulation.job import Job
from coarse.simulation.question import JobQuestion
from coarse.simulation.scenario import Scenario
from coarse.strategy.named import BUILT_IN, strategy_named
from coarse.strategy.rounds import By, Round, first_to_devices


@dataclass(frozen=True, kw_only=True)
class EmulationOrder(JobQuestion):
    """Order of one emulated run: a question about one mode, and its decisions.

    All ranks run on this host.
    """

    mode: str
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of a strategy that is not coarse's own."""
    by: tuple[str, ...] = ()
    """Members that sum each gradient. This is decided once, before the ranks start: they would all decide equally,
    but each for itself. (): undecided."""
    is_held_back: bool = True
    """True if gradients that the workers sum wait for the end of backward; decided, too."""
    facts: tuple[tuple[int, ...], ...] = ()
    """Facts of each worker; decided, too."""
    checked_pool: str | None = None
    """File by which devices send instead of by MPI, under the coherence checker of pools."""
    num_gpus: int = 0
    """GPUs of this host, in turn the workers' and then the devices'. Gradients and device memory lie there. 0: on
    the host."""

    @property
    def num_ranks(self) -> int:
        """Number of workers and memory devices.

        A job without devices still has one, whose memory holds the gradients.
        """
        return self.num_workers + max(1, self.num_devices)

    @cached_property
    def period(self) -> int:
        """Rounds after which the strategy's repeat."""
        return 1 if self.mode in BUILT_IN else strategy_named(self.mode, options=self.options).period

    def scenario(self) -> Scenario:
        """Return the question that the run answers."""
        model, machine = model_named(self.model), machine_named(self.machine)
        machine = replace(machine, num_nodes=max(machine.num_nodes, self.num_nodes))
        periods = 1 if self.period == 1 else 2 * self.period
        return Scenario(
            **{**self.job_options(), "num_iterations": max(self.num_iterations, periods)},
            machine=machine,
            model=model,
            profile=profile_for(model, machine, self.gpu, self.batch, Precision(self.precision)),
            mode=self.mode,
            options=self.options,
            hold_back=self.hold_back or None,
            degradations=self.changes_of_links,
        )

    def decided(self) -> "EmulationOrder":
        """Return the order with its strategy's decisions."""
        job = self.scenario().job()
        return replace(
            self,
            by=tuple(by.value for by in job.round.by),
            is_held_back=job.round.hold_back,
            facts=tuple(tuple(row) for row in job.facts),
            num_devices=job.placement.num_devices,
        )

    @property
    def num_to_devices(self) -> int:
        """Number of gradients that the devices sum; decided."""
        return self.by.count(By.DEVICES.value)

    def with_split(self, num_to_devices: int) -> "EmulationOrder":
        """Return the order with so many first gradients summed by the devices and the others by the workers."""
        by = first_to_devices(num_to_devices, len(self.by)).by
        return replace(self, by=tuple(each.value for each in by))

    def job(self) -> Job:
        """Return the job as decided."""
        decided = Round(by=tuple(map(By, self.by)), hold_back=self.is_held_back)
        return self.scenario().job_of(self.facts, decided)

    def decide(self) -> Decide | None:
        """Return the function that decides by measurements; None for a strategy that measures nothing.

        It chooses facts and rounds.
        """
        strategy = self.scenario().strategy
        return self.scenario().decide if strategy.probes and strategy.uses_devices else None

    def gpu_of(self, worker: int) -> int | None:
        """Return the GPU of a worker's gradients; None on the host."""
        return worker % self.num_gpus if self.num_gpus else None

    def partition(self, job: Job) -> PartitionTable:
        """Return the partition: workers first, then devices, all on the one host that there is.

        It has the memory that all map, and tables and links keep the modelled nodes apart.
        """
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


def order_json(order: EmulationOrder) -> str:
    """Return an order as JSON."""
    return json.dumps(asdict(order))


def parse_emulation_order(text: str) -> EmulationOrder:
    """Return the order that `order_json` wrote."""
    return from_mapping(EmulationOrder, json.loads(text), lambda _: "the order of an emulated run")
