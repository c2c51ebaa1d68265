"""Times of a job on a machine, mode by mode: scenarios from plain settings, and their simulation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean

from coarse.cli.own_model.description import OwnModel, StepTimes
from coarse.cli.own_model.source import own_model
from coarse.cli.report.run import Result
from coarse.errors import ConfigError
from coarse.hardware.compute import (
    Basis,
    ComputeProfile,
    profile_at_peak_share,
    profile_for,
    profile_of_iteration,
    profile_of_operations,
    profile_of_step,
)
from coarse.hardware.intervals import COMPUTE, RING
from coarse.hardware.machine import Machine
from coarse.hardware.models import MODELS, Model, Precision, model_named
from coarse.hardware.presets import accelerator_named, machine_named
from coarse.protocol.config import require_mode
from coarse.simulation.adaptation import Profile
from coarse.simulation.jitter import Jitter
from coarse.simulation.job import Job
from coarse.simulation.question import Question
from coarse.simulation.report import Report
from coarse.simulation.scenario import Scenario
from coarse.simulation.sites import STEPWISE_RANKS
from coarse.simulation.training import simulate
from coarse.strategy.builtin import Coarse, tables_of
from coarse.strategy.named import ALLREDUCE, BUILT_IN, COARSE, DENSE, mode_name, options_from
from coarse.strategy.rounds import By
from coarse.strategy.routing import local_tables
from coarse.strategy.split_search import most_trials

_NUM_TABLES = 2
"""Routing tables that the policy "auto" tries: as measured, and all tensors local."""

OnProgress = Callable[[float], None]
"""Function that receives the share of a simulation that is done."""


def scenarios_of(question: Question, machine: Machine | None = None) -> "Scenarios":
    """Return the scenarios of all modes; `machine`, if given, replaces the named one."""
    machine = machine or machine_named(question.machine)
    nvlink, num_nodes = machine.nvlink and question.nvlink, max(machine.num_nodes, question.num_nodes)
    machine = replace(machine, nvlink=nvlink, num_nodes=num_nodes)
    own = None if question.model in MODELS else own_model(question.model, question.sequence, question.step)
    model = own.model if own else model_named(question.model)
    if own and own.times:
        profile = _traced_profile(question, model, own.times, machine)
    else:
        profile = _profile(question, model, machine, is_own=own is not None)
    return Scenarios(machine=machine, model=model, profile=profile, question=question, own=own)


def _profile(question: Question, model: Model, machine: Machine, *, is_own: bool) -> ComputeProfile:
    """Return compute times: as the user measured, else as published for the model, else by FLOPs."""
    precision = Precision(question.precision)
    needless = {"sequence": question.sequence, "peak-share": question.peak_share}
    for option, value in needless.items():
        if value is not None and not is_own:
            raise ConfigError(
                f"--{option} means nothing for {model.name}, whose times were published; leave it out", key=option
            )
    if question.step is not None and not is_own:
        raise ConfigError(f"--step is of a trace, and --model {question.model} is none; leave it out", key="step")
    if question.iteration_s is not None:
        _require_one_pace(question)
        gpu = question.gpu or machine.accelerator.name
        return profile_of_iteration(model, question.iteration_s, gpu=gpu, batch=question.batch, precision=precision)
    if not is_own:
        return profile_for(model, machine, question.gpu, question.batch, precision)
    accelerator = machine.accelerator if question.gpu is None else accelerator_named(question.gpu)
    return profile_at_peak_share(model, accelerator, question.batch, precision, question.peak_share)


def _traced_profile(question: Question, model: Model, times: StepTimes, machine: Machine) -> ComputeProfile:
    """Return the times of a traced step, by its operations if it has no times."""
    precision = Precision(question.precision)
    if times.are_operations and question.iteration_s is None:
        accelerator = machine.accelerator if question.gpu is None else accelerator_named(question.gpu)
        return profile_of_operations(
            model, times.forward, times.backward, accelerator, batch=question.batch, precision=precision,
            peak_share=question.peak_share, source=times.source,
        )  # fmt: skip
    _require_one_pace(question)
    for option, value in {"peak-share": question.peak_share, "gpu": question.gpu}.items():
        if value is not None and not times.are_operations:
            raise ConfigError(
                f"--{option} means nothing for a trace, which has the times that its step took on {times.gpu}; "
                "leave it out, or scale them by --iteration-s",
                key=option,
            )
    basis = Basis.SIMULATED_TRACE if times.is_simulated else Basis.TRACED
    return profile_of_step(
        model, times.forward, times.backward, gpu=question.gpu or times.gpu, batch=question.batch, precision=precision,
        basis=Basis.MEASURED if times.are_operations else basis, source=times.source,
        iteration_s=question.iteration_s,
    )  # fmt: skip


def _require_one_pace(question: Question) -> None:
    if question.iteration_s is not None and question.peak_share is not None:
        raise ConfigError("--peak-share means nothing beside --iteration-s; leave one out", key="peak-share")


@dataclass(frozen=True, kw_only=True)
class Scenarios:
    """Question with its machine, model and compute times."""

    machine: Machine
    model: Model
    profile: ComputeProfile
    question: Question
    own: OwnModel | None = None
    """User's own model, if the question names one."""

    @property
    def ring_slow_down(self) -> float:
        """Factor by which a collective of the workers slows a worker's compute beside it."""
        return 1.0 if self.question.ring_slow_down is None else self.question.ring_slow_down

    @property
    def factors(self) -> dict[str, tuple[float, float]]:
        """Ends of factors that differ from every machine's: see `intervals_of`."""
        ring, compute = self.question.ring_slow_down, self.profile.factors
        return {**({COMPUTE: compute} if compute else {}), **({} if ring is None else {RING: (ring, ring)})}

    def of(self, mode: str) -> Scenario:
        """Return the scenario of one mode."""
        question = self.question
        profile_every = question.profile_every if question.num_workers <= STEPWISE_RANKS else 0
        return Scenario(
            **{**question.job_options(), "profile_every": profile_every},
            machine=self.machine,
            model=self.model,
            profile=self.profile,
            mode=mode,
            options={} if mode in BUILT_IN else options_from(question.options, mode),
            hold_back=question.hold_back or None,
            ring_slow_down=self.ring_slow_down,
            slow_downs=question.slow_downs_of(question.num_workers),
            jitter=question.chance(),
            degradations=question.changes_of_links,
        )


def predict(
    scenario: Scenario, on_plan: OnProgress, on_simulation: OnProgress, *, record: bool = True
) -> tuple[Job, Report]:
    """Plan a job by its policy and simulate it; return it as decided last. `record` is `simulate`'s."""
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
    """Return sentences on what a job leaves out, and on changed links and profiles."""
    notes = []
    if job.encodes_for_nothing:
        notes.append(
            f"{name}: what its wire takes to encode and decode is left out; state encode_bytes_per_s and "
            "decode_bytes_per_s (coarse check --strategy measures them)."
        )
    notes += disturbed_notes(name, iteration_times_s, job.jitter, has_changes=bool(job.rate_changes))
    if profiles:
        profile_s = sum(profile.duration_s for profile in profiles)
        share = profile_s / (profile_s + sum(iteration_times_s))
        changed = [f"{profile.iteration} ({_decision_text(job, profile)})" for profile in profiles if profile.is_new]
        what = f"decided anew before iteration {', '.join(changed)}" if changed else "found nothing to change"
        notes.append(f"{name} profiled {len(profiles)} times in {share:.2%} of the run's time, and {what}.")
    return notes


def disturbed_notes(
    name: str, iteration_times_s: Sequence[float], jitter: Jitter | None, *, has_changes: bool
) -> list[str]:
    """Return sentences on iterations that differ, by jitter or because links changed."""
    notes = []
    if jitter is not None:
        mean_ms, least_ms, most_ms = (of(iteration_times_s) * 1e3 for of in (fmean, min, max))
        notes.append(
            f"Milliseconds of {len(iteration_times_s)} iterations of {name}: {mean_ms:.4g} in the mean, "
            f"{least_ms:.4g} to {most_ms:.4g}, with jitter {jitter.share:g} of seed {jitter.seed}."
        )
    if has_changes:
        texts = (f"{seconds * 1e3:.4g}" for seconds in iteration_times_s)
        times = ", ".join(f"{len(list(same))} of {text}" for text, same in groupby(texts))
        notes.append(f"Milliseconds of the iterations of {name}, in order: {times}.")
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
    """Return the share of all gradients' bytes that devices sum."""
    to_devices = sum(job.gradients[position].nbytes for position in job.gradients_by(By.DEVICES))
    return to_devices / sum(gradient.nbytes for gradient in job.gradients)


def result_of(scenario: Scenario, job: Job, report: Report) -> Result:
    """Return the numbers for a table and bars."""
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
    """Return (worker or device, its endpoint as links name it) for each rank, workers first."""
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
    """Yield the modes of a comma-separated list, each once; without a list all built-in ones."""
    for name in BUILT_IN if text is None else dict.fromkeys(part.strip() for part in text.split(",")):
        require_mode(name)
        yield name
