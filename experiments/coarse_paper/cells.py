"""One simulated training job of the evaluation, and its outcome, computed once however many figures use it."""

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from coarse.config import MeasuredRouting
from coarse.emulation.compute import compute_profile
from coarse.emulation.models import model_named
from coarse.simulation.job import Job
from coarse.simulation.scenario import Mode, Policy, Scenario
from coarse.simulation.training import simulate
from coarse.units import MIB
from experiments.coarse_paper.inputs import CENTRAL, Inputs, Platform

_NUM_ITERATIONS = 1
"""Iterations repeat one another to 0.2 %: each begins when all that the one before has sent has arrived."""
_TWO_NODE_SHARD_BYTES = 16 * MIB
"""Twice the profiler's largest, which changes iterations by less than 1 % and simulates four times as fast."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What trains where and how."""

    platform: Platform
    model: str = "bert-large"
    batch: int = 2
    mode: Mode = Mode.COARSE
    num_workers: int = 2
    num_devices: int = 0
    """0 is as many as workers."""
    num_nodes: int = 1
    policy: Policy = Policy.AUTO
    nvlink: bool = True
    inputs: Inputs = CENTRAL

    def job(self) -> Job:
        """The job that is simulated; planning it may simulate many trials."""
        model = model_named(self.model)
        precision = self.inputs.precision(self.platform)
        job = Scenario(
            machine=self.inputs.machine(self.platform, num_nodes=self.num_nodes, nvlink=self.nvlink),
            model=model,
            profile=compute_profile(model, self.platform.gpu, self.batch, precision),
            mode=self.mode,
            num_workers=self.num_workers,
            num_devices=self.num_devices,
            num_nodes=self.num_nodes,
            policy=self.policy,
            device_ring=self.inputs.device_ring,
            ring_blocks_compute=self.inputs.ring_blocks_compute,
            num_iterations=_NUM_ITERATIONS,
            routing=MeasuredRouting() if self.num_nodes == 1 else _two_node_routing(),
        ).job()
        return job if self.inputs.dense_overlaps or self.mode is not Mode.DENSE else _after_backward(job)

    def baseline(self, mode: Mode) -> "Cell":
        """The same training synchronised otherwise."""
        return replace(self, mode=mode, num_devices=0, policy=Policy.AUTO)

    def essential(self) -> "Cell":
        """An equivalent cell without what its mode does not use, so that equivalent ones are equal."""
        match self.mode:
            case Mode.DENSE:
                inputs = replace(self.inputs, device_ring="auto", ring_blocks_compute=True)
                return replace(self, inputs=inputs, nvlink=True)
            case Mode.ALLREDUCE:
                inputs = replace(CENTRAL, mixed_precision=self.inputs.mixed_precision)
                inputs = replace(inputs, ring_blocks_compute=self.inputs.ring_blocks_compute)
            case Mode.COARSE:
                inputs = replace(self.inputs, sharer_growth=None, load_slowdown=None, dense_overlaps=True)
        nvlink = self.nvlink or self.platform is not Platform.V100
        if not self.platform.has_tensor_cores:
            inputs = replace(inputs, mixed_precision=True)
        num_devices = self.num_devices or self.num_workers if self.mode is Mode.COARSE else 0
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


_outcomes: dict[Cell, Outcome] = {}


def outcome(cell: Cell) -> Outcome:
    """Of a cell, simulated if it has not been; deterministic."""
    cell = cell.essential()
    if cell not in _outcomes:
        _outcomes[cell] = simulated(cell)
    return _outcomes[cell]


def simulated(cell: Cell) -> Outcome:
    """Simulate a cell."""
    job = cell.job()
    report = simulate(job)
    nbytes = [gradient.nbytes for gradient in job.gradients]
    return Outcome(
        iteration_s=report.iteration_s,
        exposed_s=report.exposed_s,
        compute_s=report.compute_s,
        proxy_share=sum(nbytes[: job.num_proxy_gradients]) / sum(nbytes),
        samples_per_s=cell.batch * cell.num_workers / report.iteration_s,
    )


def missing(cells: Iterable[Cell]) -> list[Cell]:
    """Those that `outcome` would simulate, the slowest first, each once."""
    wanted = dict.fromkeys(cell.essential() for cell in cells)
    return sorted((cell for cell in wanted if cell not in _outcomes), key=_effort, reverse=True)


def precompute(cells: Iterable[Cell], *, num_processes: int, on_done: Callable[[Cell], None]) -> None:
    """Simulate cells in processes side by side; `outcome` then has them at hand."""
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(simulated, cell): cell for cell in missing(cells)}
        for done in as_completed(running):
            _outcomes[running[done]] = done.result()
            on_done(running[done])


def _effort(cell: Cell) -> tuple[bool, int]:
    return cell.mode is Mode.COARSE and cell.policy is Policy.AUTO, cell.num_workers


def _two_node_routing() -> MeasuredRouting:
    return MeasuredRouting(min_partition_bytes=_TWO_NODE_SHARD_BYTES, max_partition_bytes=_TWO_NODE_SHARD_BYTES)


def _after_backward(job: Job) -> Job:
    """The same job whose gradients all leave when backward has ended."""
    return replace(job, gradients=tuple(replace(one, ready_s=job.backward_s) for one in job.gradients))
