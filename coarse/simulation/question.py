# Pure: no MPI, threads, clock or environment.
"""Question about a training job: fields of commands, sweeps, files and scenarios, declared once.

The files are those of emulated runs.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any

from coarse.errors import ConfigError
from coarse.hardware.accelerator import Optimizer
from coarse.hardware.degradation import Degradation, parse_degradation
from coarse.hardware.models import Precision
from coarse.hardware.quantities import LARGEST, SMALLEST
from coarse.protocol.config import COLLECTIVES, POLICIES
from coarse.protocol.fields import Says, check
from coarse.simulation.adaptation import PROFILE_EVERY
from coarse.simulation.jitter import MAX_SEED, MAX_SHARE, Jitter

_MAX_WORKERS = 1 << 16
_MAX_SEQUENCE = 1 << 24
_MAX_BATCH = 1 << 20
_MAX_ITERATIONS = 100_000
ProfileEvery = Annotated[
    int, Says("Iterations until coarse profiles again and decides anew; 0: never.", low=0, high=_MAX_ITERATIONS)
]


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Ranks of a job, and the way in which they sum; a scenario has them, and so has a question."""

    num_workers: Annotated[int, Says("Ranks that compute.", low=1, high=_MAX_WORKERS, key="workers")] = 4
    num_devices: Annotated[int, Says(
        "Memory devices; 0: as many as workers.", low=0, high=_MAX_WORKERS, key="devices"
    )] = 0
    num_nodes: Annotated[int, Says(
        "Nodes of the machine that workers and devices are spread over.", low=1, high=_MAX_WORKERS, key="nodes"
    )] = 1
    policy: Annotated[str, Says(
        "How coarse decides what goes to the devices: auto, paper or devices (all).", choices=POLICIES
    )] = "auto"
    collective: Annotated[str | None, Says(
        "How coarse's devices sum: in_place, as live, or ring (COARSE IV-A). By default in_place for up to 64 workers.",
        choices=COLLECTIVES,
    )] = None
    num_iterations: Annotated[int, Says(
        "Simulated iterations; the last is shown.", low=1, high=_MAX_ITERATIONS, key="iterations"
    )] = 3
    profile_every: ProfileEvery = 0

    def job_options(self) -> dict[str, Any]:
        """Return these options alone, by the names of their fields."""
        return {item.name: getattr(self, item.name) for item in fields(JobOptions)}


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """Links that lose a part of their rate, or get it back, while a job runs."""

    degradations: Annotated[tuple[str, ...], Says(
        "LINK=FACTOR@SECONDS: the part of its rate that a link has from then on; LINK may have * and ?.",
        key="degrade", is_swept=False,
    )] = ()

    @cached_property
    def changes_of_links(self) -> tuple[Degradation, ...]:
        """Changes that `degradations` state."""
        return tuple(map(parse_degradation, self.degradations))


@dataclass(frozen=True, kw_only=True)
class SlowDownOptions:
    """Workers that compute longer than others, always or by chance."""

    stragglers: Annotated[tuple[str, ...], Says(
        "3=1.5: worker 3 computes 1.5 times longer.", key="straggler"
    )] = ()
    jitter: Annotated[float, Says(
        "0.1: by chance each iteration's compute takes 10 % longer, in the mean.", low=0, high=MAX_SHARE
    )] = 0.0
    seed: Annotated[int, Says(
        "Seed of --jitter: another one gives other draws; 0 by default.", low=0, high=MAX_SEED
    )] = 0

    @cached_property
    def slow_downs(self) -> dict[int, float]:
        """Factor on the compute time of each worker that is named."""
        found: dict[int, float] = {}
        for worker, factor in map(slow_down, self.stragglers):
            if worker in found:
                raise ConfigError(f"--straggler names worker {worker} twice; remove one", key="straggler")
            found[worker] = factor
        return found

    def slow_downs_of(self, num_workers: int) -> tuple[float, ...]:
        """Return each worker's factor; () if all are equal.

        Raises:
            ConfigError: a named worker does not exist.
        """
        for worker, factor in self.slow_downs.items():
            if worker not in range(num_workers):
                raise ConfigError(
                    f"--straggler {worker}={factor:g}: wanted a worker in 0..{num_workers - 1} and how many times "
                    "longer its compute takes, a number above 0; write --straggler 3=1.5",
                    key="straggler",
                )
        if not self.slow_downs:
            return ()
        return tuple(self.slow_downs.get(worker, 1.0) for worker in range(num_workers))

    def chance(self) -> Jitter | None:
        """Return the jitter, None if there is none.

        Raises:
            ConfigError: its share or seed is out of range.
        """
        return None if self.jitter == 0 else Jitter(share=self.jitter, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class JobQuestion(LinkOptions, JobOptions):
    """Job by names, as it can be simulated and emulated; checked when it is made.

    It is refused in the words of commands.
    """

    machine: Annotated[str, Says("A preset, or the path of a machine file (.toml).")] = "aws-p3"
    model: Annotated[str, Says("A model by its name, or one of your own.")] = "resnet50"
    gpu: Annotated[str | None, Says("GPU whose compute times are taken; by default the machine's own.")] = None
    batch: Annotated[int, Says("Samples per worker and iteration.", low=1, high=_MAX_BATCH)] = 2
    precision: Annotated[str, Says("fp32 or fp16.", choices=tuple(Precision))] = "fp32"
    hold_back: Annotated[bool, Says(
        "All-reduce waits for backward's end, as COARSE's evaluation has it (II-B); live it does not."
    )] = False

    def __post_init__(self) -> None:
        check(self, as_flags=True)
        _ = self.changes_of_links


@dataclass(frozen=True, kw_only=True)
class Question(SlowDownOptions, JobQuestion):
    """Question to the simulator: a job, its compute times, and its disturbances."""

    modes: Annotated[str | None, Says(
        "Modes with commas between; by default all that coarse has.",
        wanted="one or more of dense, allreduce, coarse and others with commas between",
    )] = None
    options: Annotated[tuple[str, ...], Says(
        "NAME=VALUE, or CLASS.NAME=VALUE for one: options of strategies of your own.", flag="--set"
    )] = ()
    sequence: Annotated[int | None, Says(
        "Tokens of a sample of a model of your own.", low=1, high=_MAX_SEQUENCE
    )] = None
    step: Annotated[int | None, Says("ProfilerStep of a trace; by default the median.")] = None
    peak_share: Annotated[float | None, Says(
        "Share of the GPU's peak at which a model of your own computes.", low=SMALLEST, high=1.0
    )] = None
    iteration_s: Annotated[float | None, Says(
        "Seconds of forward and backward on one GPU, as you measured them.", low=SMALLEST, high=LARGEST
    )] = None
    ring_slow_down: Annotated[float | None, Says(
        "How many times longer a worker computes beside a collective of the workers: 1, and 1 to 1.4 in ranges, where "
        "it is not stated.",
        low=1, high=100,
    )] = None
    optimizer: Annotated[str, Says(
        "Optimizer whose states take memory: sgd, sgd-momentum or adam.", choices=tuple(Optimizer)
    )] = "adam"
    nvlink: Annotated[bool, Says("Use NVLinks where the machine has any.")] = True
    profile_every: ProfileEvery = PROFILE_EVERY

    def __post_init__(self) -> None:
        super().__post_init__()
        for flag, count in (("--workers", self.num_workers), ("--devices", self.num_devices)):
            if count % self.num_nodes:
                raise ConfigError(
                    f"{flag} must be the same on each of {self.num_nodes} nodes, got {count}; choose a multiple of "
                    f"{self.num_nodes}",
                    key=flag.lstrip("-"),
                )
        self.slow_downs_of(self.num_workers)
        self.chance()


def slow_down(text: str) -> tuple[int, float]:
    """Return (worker, factor) as an option `--straggler 3=1.5` states them; the factor is above 0."""
    name, _, stated = text.partition("=")
    try:
        worker, factor = int(name), float(stated)
    except ValueError:
        raise ConfigError(
            f"--straggler must be WORKER=FACTOR such as 3=1.5, got {text!r}; correct it", key="straggler"
        ) from None
    if not (worker >= 0 and 0.0 < factor < 1e6):
        raise ConfigError(
            f"--straggler {text}: wanted a worker and how many times longer its compute takes, a number above 0; write "
            "--straggler 3=1.5",
            key="straggler",
        )
    return worker, factor
