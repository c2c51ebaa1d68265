"""What a job would take on a machine, mode by mode: scenarios from plain settings, and their simulation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from statistics import fmean
from typing import TypeVar

from coarse.cli.own_model.description import OwnModel, StepTimes
from coarse.cli.own_model.source import own_model
from coarse.cli.report.run import Result
from coarse.errors import ConfigError
from coarse.hardware.accelerator import Optimizer
from coarse.hardware.compute import (
    Basis,
    ComputeProfile,
    profile_at_peak_share,
    profile_for,
    profile_of_iteration,
    profile_of_operations,
    profile_of_step,
)
from coarse.hardware.degradation import Degradation
from coarse.hardware.intervals import COMPUTE, RING
from coarse.hardware.machine import Machine
from coarse.hardware.models import MODELS, Model, Precision, model_named
from coarse.hardware.presets import accelerator_named, machine_named
from coarse.protocol.config import POLICIES, require_mode
from coarse.simulation.adaptation import PROFILE_EVERY, Profile
from coarse.simulation.jitter import Jitter
from coarse.simulation.job import Job
from coarse.simulation.report import Report
from coarse.simulation.scenario import Scenario
from coarse.simulation.sites import STEPWISE_RANKS
from coarse.simulation.training import simulate
from coarse.strategy.builtin import Coarse, tables_of
from coarse.strategy.named import ALLREDUCE, BUILT_IN, COARSE, DENSE, mode_name, options_from
from coarse.strategy.rounds import By
from coarse.strategy.routing import local_tables
from coarse.strategy.split_search import most_trials

MAX_WORKERS = 1 << 16
MAX_BATCH = 1 << 20
MAX_ITERATIONS = 100_000
MAX_RING_SLOW_DOWN = 100.0
_NUM_TABLES = 2
"""Routing tables that the policy "auto" tries: as measured, and all tensors local."""

Choice = TypeVar("Choice", bound=StrEnum)
OnProgress = Callable[[float], None]
"""Told the share of a simulation that is done."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What somebody wants to know, checked; the machine and the model are looked up."""

    machine: str
    """A preset's name, or the path of a machine file."""
    model: str
    """One that is known by its name, a config.json, a trace, or MODULE:FUNCTION; see `own_model`."""
    sequence: int | None = None
    """Tokens of a sample of a model of one's own."""
    gpu: str | None = None
    """Whose compute times are replayed; by default those of the machine's accelerator."""
    step: int | None = None
    """Of a model that is a trace: the number of a step; by default the median."""
    peak_share: float | None = None
    """Of the GPU's peak, at which a model of one's own computes."""
    iteration_s: float | None = None
    """Of one worker's forward and backward, as measured by who asks."""
    batch: int = 2
    precision: str = "fp32"
    workers: int = 4
    devices: int = 0
    nodes: int = 1
    policy: str = "auto"
    options: tuple[str, ...] = ()
    """Of strategies of one's own, as --set states them."""
    collective: str | None = None
    """How the mode coarse's devices sum; None: as live where each worker is simulated, in a ring where one stands for
    all."""
    hold_back: bool = False
    """Whether all-reduce waits for the end of backward, as COARSE's evaluation has it (II-B)."""
    ring_slow_down: float | None = None
    """How many times longer a worker computes while a collective of the workers shares its processor; None: 1, and an
    interval where there are ranges."""
    slow_downs: tuple[tuple[int, float], ...] = ()
    """(worker, how many times longer its compute takes)."""
    jitter: float = 0.0
    """By which part compute takes longer by chance, in the mean; 0: by none."""
    seed: int = 0
    """Of the chance."""
    optimizer: str = "adam"
    nvlink: bool = True
    num_iterations: int = 3
    """The last is shown."""
    degradations: tuple[Degradation, ...] = ()
    profile_every: int = PROFILE_EVERY
    """Iterations after which the mode coarse profiles again; 0: never."""

    def __post_init__(self) -> None:
        limits = {
            "batch": (1, MAX_BATCH), "workers": (1, MAX_WORKERS), "devices": (0, MAX_WORKERS), "nodes": (1, MAX_WORKERS)
        }  # fmt: skip
        for key, (least, most) in limits.items():
            if not least <= getattr(self, key) <= most:
                raise ConfigError(f"--{key} must lie in {least}..{most}, got {getattr(self, key)}", key=key)
        for option, value, least in (("iterations", self.num_iterations, 1), ("profile-every", self.profile_every, 0)):
            if not least <= value <= MAX_ITERATIONS:
                raise ConfigError(f"--{option} must lie in {least}..{MAX_ITERATIONS}, got {value}", key=option)
        if self.ring_slow_down is not None and not 1.0 <= self.ring_slow_down <= MAX_RING_SLOW_DOWN:
            raise ConfigError(
                f"--ring-slow-down must lie in 1..{MAX_RING_SLOW_DOWN:g}, got {self.ring_slow_down:g}; 1 is no effect",
                key="ring_slow_down",
            )
        require_policy(self.policy)
        one_of("precision", self.precision, Precision)
        one_of("optimizer", self.optimizer, Optimizer)
        for key in ("workers", "devices"):
            if getattr(self, key) % self.nodes:
                raise ConfigError(
                    f"--{key} must be the same on each of {self.nodes} nodes, got {getattr(self, key)}; "
                    f"choose a multiple of {self.nodes}",
                    key=key,
                )
        self._check_slow_downs()
        self.chance()

    def chance(self) -> Jitter | None:
        """The jitter, None where there is none; ConfigError where there cannot be such."""
        return None if self.jitter == 0 else Jitter(share=self.jitter, seed=self.seed)

    def _check_slow_downs(self) -> None:
        workers = [worker for worker, _ in self.slow_downs]
        for worker, factor in self.slow_downs:
            if workers.count(worker) > 1:
                raise ConfigError(f"--straggler names worker {worker} twice; remove one", key="straggler")
            if not (0 <= worker < self.workers and 0.0 < factor < 1e6):
                raise ConfigError(
                    f"--straggler {worker}={factor:g}: wanted a worker in 0..{self.workers - 1} and how many times "
                    "longer its compute takes, a number above 0; write --straggler 3=1.5",
                    key="straggler",
                )

    def scenarios(self, machine: Machine | None = None) -> "Scenarios":
        """The scenarios of all modes; on another machine than the one named, if it is given."""
        machine = machine or machine_named(self.machine)
        nvlink, num_nodes = machine.nvlink and self.nvlink, max(machine.num_nodes, self.nodes)
        machine = replace(machine, nvlink=nvlink, num_nodes=num_nodes)
        own = None if self.model in MODELS else own_model(self.model, self.sequence, self.step)
        model = own.model if own else model_named(self.model)
        if own and own.times:
            profile = self._traced_profile(model, own.times, machine)
        else:
            profile = self._profile(model, machine, is_own=own is not None)
        return Scenarios(machine=machine, model=model, profile=profile, question=self, own=own)

    def _profile(self, model: Model, machine: Machine, *, is_own: bool) -> ComputeProfile:
        """The compute times: as measured by who asks, else as published of the model, else by FLOPs."""
        precision = one_of("precision", self.precision, Precision)
        needless = {"sequence": self.sequence, "peak-share": self.peak_share}
        for option, value in needless.items():
            if value is not None and not is_own:
                raise ConfigError(
                    f"--{option} means nothing for {model.name}, whose times were published; leave it out", key=option
                )
        if self.step is not None and not is_own:
            raise ConfigError(f"--step is of a trace, and --model {self.model} is none; leave it out", key="step")
        if self.iteration_s is not None:
            self._require_one_pace()
            gpu = self.gpu or machine.accelerator.name
            return profile_of_iteration(model, self.iteration_s, gpu=gpu, batch=self.batch, precision=precision)
        if not is_own:
            return profile_for(model, machine, self.gpu, self.batch, precision)
        accelerator = machine.accelerator if self.gpu is None else accelerator_named(self.gpu)
        return profile_at_peak_share(model, accelerator, self.batch, precision, self.peak_share)

    def _traced_profile(self, model: Model, times: StepTimes, machine: Machine) -> ComputeProfile:
        """The times of a traced step; by its operations where it has no times."""
        precision = one_of("precision", self.precision, Precision)
        if times.are_operations and self.iteration_s is None:
            accelerator = machine.accelerator if self.gpu is None else accelerator_named(self.gpu)
            return profile_of_operations(
                model, times.forward, times.backward, accelerator, batch=self.batch, precision=precision,
                peak_share=self.peak_share, source=times.source,
            )  # fmt: skip
        self._require_one_pace()
        for option, value in {"peak-share": self.peak_share, "gpu": self.gpu}.items():
            if value is not None and not times.are_operations:
                raise ConfigError(
                    f"--{option} means nothing for a trace, which has the times that its step took on {times.gpu}; "
                    "leave it out, or scale them by --iteration-s",
                    key=option,
                )
        basis = Basis.SIMULATED_TRACE if times.is_simulated else Basis.TRACED
        return profile_of_step(
            model, times.forward, times.backward, gpu=self.gpu or times.gpu, batch=self.batch, precision=precision,
            basis=Basis.MEASURED if times.are_operations else basis, source=times.source,
            iteration_s=self.iteration_s,
        )  # fmt: skip

    def _require_one_pace(self) -> None:
        if self.iteration_s is not None and self.peak_share is not None:
            raise ConfigError("--peak-share means nothing beside --iteration-s; leave one out", key="peak-share")


@dataclass(frozen=True, kw_only=True)
class Scenarios:
    """A question with its machine, model and compute times."""

    machine: Machine
    model: Model
    profile: ComputeProfile
    question: Question
    own: OwnModel | None = None
    """Where the model is of one's own."""

    @property
    def ring_slow_down(self) -> float:
        """How many times longer a worker computes beside a collective of the workers."""
        return 1.0 if self.question.ring_slow_down is None else self.question.ring_slow_down

    @property
    def factors(self) -> dict[str, tuple[float, float]]:
        """Ends of factors that are other than every machine's: see `intervals_of`."""
        ring, compute = self.question.ring_slow_down, self.profile.factors
        return {**({COMPUTE: compute} if compute else {}), **({} if ring is None else {RING: (ring, ring)})}

    def of(self, mode: str) -> Scenario:
        """The scenario of one mode."""
        question = self.question
        factors = dict(question.slow_downs)
        return Scenario(
            machine=self.machine,
            model=self.model,
            profile=self.profile,
            mode=mode,
            num_workers=question.workers,
            num_devices=question.devices,
            num_nodes=question.nodes,
            policy=question.policy,
            options={} if mode in BUILT_IN else options_from(question.options, mode),
            collective=question.collective,
            hold_back=question.hold_back or None,
            ring_slow_down=self.ring_slow_down,
            slow_downs=tuple(factors.get(worker, 1.0) for worker in range(question.workers)) if factors else (),
            jitter=question.chance(),
            num_iterations=question.num_iterations,
            degradations=question.degradations,
            profile_every=question.profile_every if question.workers <= STEPWISE_RANKS else 0,
        )


def one_of(key: str, value: str, choices: type[Choice]) -> Choice:
    """The member of an enumeration that an option names."""
    try:
        return choices(value)
    except ValueError:
        names = ", ".join(choice.value for choice in choices)
        raise ConfigError(f"--{key} must be one of {names}, got {value!r}", key=key) from None


def slow_down(text: str) -> tuple[int, float]:
    """(worker, factor) as an option `--straggler 3=1.5` states them."""
    worker, _, factor = text.partition("=")
    try:
        return int(worker), float(factor)
    except ValueError:
        raise ConfigError(
            f"--straggler must be WORKER=FACTOR such as 3=1.5, got {text!r}; correct it", key="straggler"
        ) from None


def predict(
    scenario: Scenario, on_plan: OnProgress, on_simulation: OnProgress, *, record: bool = True
) -> tuple[Job, Report]:
    """Plan a job as its policy says, and simulate it; the job as decided last. `record` is `simulate`'s."""
    most = _NUM_TABLES * most_trials(len(scenario.gradients))
    num_tried = 0

    def trial(job: Job) -> Report:
        nonlocal num_tried
        done = num_tried
        report = simulate(job, on_progress=lambda now, total: on_plan(min(1.0, (done + now / total) / most)))
        num_tried += 1
        return report

    job = scenario.job(trial)
    on_plan(1.0)
    report = simulate(
        job, on_progress=lambda done, total: on_simulation(done / total), record=record, decide=scenario.decide
    )
    if report.profiles:
        last = report.profiles[-1]
        by = tuple(map(By, last.by))
        job = replace(job, facts=last.facts, round=replace(job.round, by=by))
    return job, report


def profile_notes(name: str, job: Job, iteration_times_s: Sequence[float], profiles: Sequence[Profile]) -> list[str]:
    """What a job leaves out, and what became of one whose links changed, or that profiled: a sentence on each."""
    notes = []
    if job.encodes_for_nothing:
        notes.append(
            f"{name}: what its wire takes to encode and decode is left out; state encode_bytes_per_s and "
            "decode_bytes_per_s (coarse check --strategy measures them)."
        )
    if job.jitter is not None:
        mean_ms, least_ms, most_ms = (of(iteration_times_s) * 1e3 for of in (fmean, min, max))
        notes.append(
            f"Milliseconds of {len(iteration_times_s)} iterations of {name}: {mean_ms:.4g} in the mean, "
            f"{least_ms:.4g} to {most_ms:.4g}, with jitter {job.jitter.share:g} of seed {job.jitter.seed}."
        )
    if job.rate_changes:
        texts = (f"{seconds * 1e3:.4g}" for seconds in iteration_times_s)
        times = ", ".join(f"{len(list(same))} of {text}" for text, same in groupby(texts))
        notes.append(f"Milliseconds of the iterations of {name}, in order: {times}.")
    if profiles:
        profile_s = sum(profile.duration_s for profile in profiles)
        share = profile_s / (profile_s + sum(iteration_times_s))
        changed = [f"{profile.iteration} ({_decision_text(job, profile)})" for profile in profiles if profile.is_new]
        what = f"decided anew before iteration {', '.join(changed)}" if changed else "found nothing to change"
        notes.append(f"{name} profiled {len(profiles)} times in {share:.2%} of the run's time, and {what}.")
    return notes


def _decision_text(job: Job, profile: Profile) -> str:
    share = _share_to_devices(replace(job, round=replace(job.round, by=tuple(map(By, profile.by)))))
    text = f"{share:.0%} of the bytes to devices"
    if not isinstance(job.strategy, Coarse):
        return text
    tables, local = tables_of(profile.facts), job.placement.local_proxies
    if tables == local_tables(tables, local):
        return f"{text} local"
    routes = sorted({device for table in tables for device in (table.latency_proxy, table.bandwidth_proxy)})
    return f"{text} {', '.join(map(str, routes))}"


def _share_to_devices(job: Job) -> float:
    """Of the bytes of all gradients."""
    to_devices = sum(job.gradients[position].nbytes for position in job.gradients_by(By.DEVICES))
    return to_devices / sum(gradient.nbytes for gradient in job.gradients)


def result_of(scenario: Scenario, job: Job, report: Report) -> Result:
    """What a table and bars show of it."""
    num_iterations = job.num_iterations
    links = sorted(report.link_bytes.items(), key=lambda item: (-item[1], item[0]))
    return Result(
        name=mode_name(scenario.mode),
        policy=_policy_text(scenario, job),
        iteration_s=report.iteration_s,
        compute_s=report.compute_s,
        exposed_s=report.exposed_s,
        idle_s=report.idle_s,
        link_bytes=tuple((name, nbytes / num_iterations) for name, nbytes in links if nbytes > 0),
    )


def places_of(scenario: Scenario) -> tuple[tuple[str, str], ...]:
    """(worker or memory device, the endpoint that plays it, named as its links are), workers first."""
    wiring, is_one_node = scenario.machine.wiring, scenario.machine.num_nodes == 1
    who = {"worker": scenario.places.workers, "device": scenario.places.devices}
    located = [(f"{role} {n}", *wiring.locate(at)) for role, places in who.items() for n, at in enumerate(places)]
    return tuple((name, at if is_one_node else f"node{node} {at}") for name, node, at in located)


def _policy_text(scenario: Scenario, job: Job) -> str:
    if scenario.mode in (DENSE, ALLREDUCE):
        return "-"
    name = scenario.policy if scenario.mode == COARSE else "own"
    return f"{name} {_share_to_devices(job):.0%}" if scenario.strategy.shares else name


def modes_of(text: str | None) -> Iterator[str]:
    """The modes that a comma-separated list names, each once; all of coarse's own, where there is no list."""
    for name in BUILT_IN if text is None else dict.fromkeys(part.strip() for part in text.split(",")):
        require_mode(name)
        yield name


def require_policy(policy: str) -> None:
    """Refuse another policy of the mode coarse."""
    if policy not in POLICIES:
        raise ConfigError(f"--policy must be one of {', '.join(POLICIES)}, got {policy!r}", key="policy")
