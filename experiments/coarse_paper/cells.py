"""One simulated training job of the evaluation, and its outcome, computed once however many figures use it."""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from coarse.hardware.compute import FORWARD_SHARE, ComputeProfile, compute_profile
from coarse.hardware.machine import Machine
from coarse.hardware.models import Model, Precision
from coarse.hardware.placement import place
from coarse.protocol.config import MeasuredRouting
from coarse.protocol.units import MIB
from coarse.simulation.job import Job
from coarse.simulation.report import Report
from coarse.simulation.scenario import Scenario
from coarse.simulation.training import simulate
from experiments.coarse_paper.eight_models import model_of
from experiments.coarse_paper.inputs import CENTRAL, Inputs, Platform
from experiments.coarse_paper.machines import with_neighbours_first, with_rings_both_ways
from experiments.validation.declared import Taken

_NUM_ITERATIONS = 1
"""Iterations repeat one another to 0.2 %: each begins when all that the one before has sent has arrived."""
_TWO_NODE_SHARD_BYTES = 16 * MIB
"""Twice the profiler's largest, which changes iterations by less than 1 % and simulates four times as fast."""

_MATTERS: dict[str, tuple[str, ...]] = {
    "dense": (
        "sharer_growth",
        "load_slowdown",
        "store_slowdown",
        "stores_overlap",
        "loads_wait",
        "own_bus",
        "t4_bus_bytes_per_s",
        "bus_bytes_per_s",
    ),
    "allreduce": (
        "hold_back",
        "rings_both_ways",
        "direct_copies",
        "neighbours_reduce",
        "wide_t4",
        "t4_bus_bytes_per_s",
    ),
    "coarse": (
        "copies_over_nvlink",
        "wide_t4",
        "t4_bus_bytes_per_s",
        "hold_back",
        "rings_both_ways",
        "direct_copies",
        "device_ring",
        "profiler_sees_nvlink",
        "push_overlap",
    ),
}
"""Of `Inputs`, beside the precision, what each mode's outcome depends on."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What trains where and how."""

    platform: Platform
    model: str = "bert-large"
    batch: int = 2
    mode: str = "coarse"
    num_workers: int = 2
    num_devices: int = 0
    """0 is as many as workers."""
    num_nodes: int = 1
    policy: str = "auto"
    nvlink: bool = True
    inputs: Inputs = CENTRAL

    def job(self) -> Job:
        """The job that is simulated; planning it may simulate many trials.

        The profiler leaves NVLink out (IV-B), so routes, shards and the formula's rates are those of PCIe.
        """
        late = self.mode == "dense" and not self.inputs.stores_overlap
        overlap = 0.0 if late else self.inputs.push_overlap if self.mode == "coarse" else 1.0
        scenario = self._scenario()

        def run(trial: Job) -> Report:
            return simulate(_leaving(trial, overlap))

        if self.mode != "coarse" or self.inputs.profiler_sees_nvlink:
            return _leaving(scenario.job(run), overlap)
        by_pcie = replace(self, nvlink=False)._scenario()
        probed = by_pcie.measured_job()
        job = _leaving(scenario.decide(scenario.job_by(probed.facts), run), overlap)
        return job.with_split(by_pcie.decide(probed).num_to_devices) if self.policy == "paper" else job

    def _scenario(self) -> Scenario:
        model = model_of(self.model)
        precision = self.inputs.precision(self.platform)
        return Scenario(
            machine=self._machine(),
            model=model,
            profile=self._profile(model, precision),
            mode=self.mode,
            num_workers=self.num_workers,
            num_devices=self.num_devices,
            num_nodes=self.num_nodes,
            policy=self.policy,
            copies="auto" if self.inputs.copies_over_nvlink else "pcie",
            device_ring=self.inputs.device_ring,
            hold_back=self.inputs.hold_back,
            collective="ring",
            num_iterations=_NUM_ITERATIONS,
            routing=MeasuredRouting() if self.num_nodes == 1 else _two_node_routing(),
        )

    def _profile(self, model: Model, precision: Precision) -> ComputeProfile:
        found = compute_profile(model, self.platform.gpu, self.batch, precision, self.inputs.throughputs())
        if self.inputs.compute_speed == 1.0:
            return found
        forward_s, backward_s = (
            tuple(seconds / self.inputs.compute_speed for seconds in one) for one in (found.forward_s, found.backward_s)
        )
        return replace(found, forward_s=forward_s, backward_s=backward_s)

    def _machine(self) -> Machine:
        machine = self.inputs.machine(self.platform, num_nodes=self.num_nodes, nvlink=self.nvlink)
        if self.mode == "allreduce" and self.inputs.neighbours_reduce:
            machine = with_neighbours_first(machine)
        if not self.inputs.rings_both_ways or self.mode == "dense":
            return machine
        num_devices = self.num_devices or self.num_workers if self.mode == "coarse" else 0
        places = place(machine, num_workers=self.num_workers, num_devices=num_devices, num_nodes=self.num_nodes)
        return with_rings_both_ways(machine, places.workers)

    def baseline(self, mode: str) -> "Cell":
        """The same training synchronised otherwise."""
        return replace(self, mode=mode, num_devices=0, policy="auto")

    def essential(self) -> "Cell":
        """An equivalent cell without what its mode does not use, so that equivalent ones are equal."""
        compute = ("mixed_precision", "bert_container", "compute_speed")
        kept = {name: getattr(self.inputs, name) for name in (*compute, *_MATTERS[self.mode])}
        inputs = replace(CENTRAL, **kept)
        if not self.platform.has_tensor_cores:
            inputs = replace(inputs, mixed_precision=True)
        if self.model != "bert-large":
            inputs = replace(inputs, bert_container=None)
        if self.platform is not Platform.V100:
            inputs = replace(
                inputs,
                rings_both_ways=True,
                profiler_sees_nvlink=False,
                direct_copies=False,
                copies_over_nvlink=True,
            )
        elif not self.nvlink:
            inputs = replace(inputs, profiler_sees_nvlink=False, copies_over_nvlink=True)
        if self.platform is not Platform.T4:
            t4 = CENTRAL.t4_bus_bytes_per_s
            inputs = replace(inputs, wide_t4=False, own_bus=True, t4_bus_bytes_per_s=t4)
        elif inputs.own_bus:
            inputs = replace(inputs, bus_bytes_per_s=CENTRAL.bus_bytes_per_s)
        nvlink = self.nvlink or self.platform is not Platform.V100 or self.mode == "dense"
        num_devices = self.num_devices or self.num_workers if self.mode == "coarse" else 0
        return replace(self, inputs=inputs, nvlink=nvlink, num_devices=num_devices)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one cell's last iteration."""

    iteration_s: float
    exposed_s: float
    compute_s: float
    proxy_share: float
    """Of the gradient bytes, what the memory devices synchronise (the paper's m / n)."""
    samples_per_s: float
    busiest: str
    """The link whose bytes take longest at its full rate."""
    busiest_s: float

    @property
    def backward_s(self) -> float:
        """What there is to hide communication beneath."""
        return (1 - FORWARD_SHARE) * self.compute_s

    @property
    def least_blocked_s(self) -> float:
        """A bound for any schedule of the same transfers: the busiest link's time that backward can't hide."""
        return max(0.0, self.busiest_s - self.backward_s)


_outcomes: dict[Cell, Outcome] = {}
_taken = Taken(CENTRAL)
inputs_now = _taken.now
under = _taken.under
"""Take these inputs where a cell has the central ones."""


def taken(cell: Cell) -> Cell:
    """The cell with the inputs that are taken now; see `under`."""
    return replace(cell, inputs=_taken.now()) if cell.inputs == CENTRAL else cell


def outcome(cell: Cell) -> Outcome:
    """Of a cell, simulated if it has not been; deterministic."""
    cell = taken(cell).essential()
    if cell not in _outcomes:
        _outcomes[cell] = simulated(cell)
    return _outcomes[cell]


def simulated(cell: Cell) -> Outcome:
    """Simulate a cell."""
    job = cell.job()
    loads_s = 0.0
    if cell.mode == "dense" and cell.inputs.loads_wait:
        job, loading = _stores_then_loads(job)
        loads_s = simulate(loading).iteration_s
    report = simulate(job)
    nbytes = [gradient.nbytes for gradient in job.gradients]
    iteration_s = report.iteration_s + loads_s
    busy_s = {link.name: report.link_bytes[link.name] / link.bytes_per_s for link in job.site.links}
    busiest = max(busy_s, key=lambda name: busy_s[name])
    return Outcome(
        iteration_s=iteration_s,
        exposed_s=report.exposed_s + loads_s,
        compute_s=report.compute_s,
        proxy_share=sum(nbytes[: job.num_to_devices]) / sum(nbytes),
        samples_per_s=cell.batch * cell.num_workers / iteration_s,
        busiest=busiest,
        busiest_s=busy_s[busiest],
    )


def missing(cells: Iterable[Cell]) -> list[Cell]:
    """Those that `outcome` would simulate, the slowest first, each once."""
    wanted = dict.fromkeys(taken(cell).essential() for cell in cells)
    return sorted((cell for cell in wanted if cell not in _outcomes), key=_effort, reverse=True)


def precompute(cells: Iterable[Cell], *, num_processes: int, on_done: Callable[[Cell], None]) -> None:
    """Simulate cells in processes side by side; `outcome` then has them at hand."""
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(simulated, cell): cell for cell in missing(cells)}
        for done in as_completed(running):
            _outcomes[running[done]] = done.result()
            on_done(running[done])


def _effort(cell: Cell) -> tuple[bool, int]:
    return cell.mode == "coarse" and cell.policy == "auto", cell.num_workers


def _two_node_routing() -> MeasuredRouting:
    return MeasuredRouting(min_partition_bytes=_TWO_NODE_SHARD_BYTES, max_partition_bytes=_TWO_NODE_SHARD_BYTES)


def _leaving(job: Job, overlap: float) -> Job:
    """The same job whose gradients leave later: at 1 as backward produces them, at 0 all when it has ended."""
    if overlap == 1:
        return job
    left_s = [overlap * (job.backward_s - gradient.ready_s) for gradient in job.gradients]
    pairs = zip(job.gradients, left_s, strict=True)
    return replace(job, gradients=tuple(replace(one, ready_s=job.backward_s - before_s) for one, before_s in pairs))


def _stores_then_loads(job: Job) -> tuple[Job, Job]:
    """DENSE in two parts, one after the other: compute, stores and sums; and the loads of all parameters."""
    site, nothing = job.site, dict.fromkeys(job.site.push, ())
    at_once = tuple(replace(one, ready_s=0.0) for one in job.gradients)
    loads = replace(site, push=nothing, adder_bytes_per_s=math.inf)
    return (
        replace(job, site=replace(site, pull=nothing)),
        replace(job, site=loads, gradients=at_once, forward_s=0.0, backward_s=0.0, num_iterations=1),
    )
