"""What a job would take on a machine, mode by mode: scenarios from plain settings, and their simulation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from coarse.emulation.compute import ComputeProfile
from coarse.emulation.hardware import Machine
from coarse.emulation.models import Model, Precision, model_named
from coarse.emulation.presets import machine_named
from coarse.emulation.replay import profile_for
from coarse.errors import ConfigError
from coarse.report.run import Result
from coarse.simulation.job import Job
from coarse.simulation.policies import most_trials
from coarse.simulation.report import Report
from coarse.simulation.scenario import Mode, Policy, Scenario
from coarse.simulation.training import simulate

MAX_WORKERS = 1 << 16
MAX_BATCH = 1 << 20
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
    gpu: str | None = None
    """Whose compute times are replayed; by default those of the machine's accelerator."""
    batch: int = 2
    precision: str = "fp32"
    workers: int = 4
    devices: int = 0
    nodes: int = 1
    policy: str = "auto"
    slow_downs: tuple[tuple[int, float], ...] = ()
    """(worker, how many times longer its compute takes)."""
    nvlink: bool = True

    def __post_init__(self) -> None:
        limits = {
            "batch": (1, MAX_BATCH), "workers": (1, MAX_WORKERS), "devices": (0, MAX_WORKERS), "nodes": (1, MAX_WORKERS)
        }  # fmt: skip
        for key, (least, most) in limits.items():
            if not least <= getattr(self, key) <= most:
                raise ConfigError(f"--{key} must lie in {least}..{most}, got {getattr(self, key)}", key=key)
        one_of("policy", self.policy, Policy)
        one_of("precision", self.precision, Precision)
        for key in ("workers", "devices"):
            if getattr(self, key) % self.nodes:
                raise ConfigError(
                    f"--{key} must be the same on each of {self.nodes} nodes, got {getattr(self, key)}; "
                    f"choose a multiple of {self.nodes}",
                    key=key,
                )
        self._check_slow_downs()

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

    def scenarios(self) -> "Scenarios":
        """The scenarios of all modes."""
        machine = machine_named(self.machine)
        nvlink, num_nodes = machine.nvlink and self.nvlink, max(machine.num_nodes, self.nodes)
        machine = replace(machine, nvlink=nvlink, num_nodes=num_nodes)
        model = model_named(self.model)
        return Scenarios(
            machine=machine,
            model=model,
            profile=profile_for(model, machine, self.gpu, self.batch, one_of("precision", self.precision, Precision)),
            question=self,
        )


@dataclass(frozen=True, kw_only=True)
class Scenarios:
    """A question with its machine, model and compute times."""

    machine: Machine
    model: Model
    profile: ComputeProfile
    question: Question

    def of(self, mode: Mode) -> Scenario:
        """The scenario of one mode."""
        question = self.question
        if mode is Mode.DENSE and question.nodes > 1:
            raise ConfigError(
                f"the one memory device of dense serves the workers of its node, and --nodes is {question.nodes}; "
                "leave dense out, or ask for one node",
                key="nodes",
            )
        factors = dict(question.slow_downs)
        return Scenario(
            machine=self.machine,
            model=self.model,
            profile=self.profile,
            mode=mode,
            num_workers=question.workers,
            num_devices=question.devices if mode is Mode.COARSE else 0,
            num_nodes=question.nodes,
            policy=one_of("policy", question.policy, Policy),
            slow_downs=tuple(factors.get(worker, 1.0) for worker in range(question.workers)) if factors else (),
        )


def one_of(key: str, value: str, choices: type[Choice]) -> Choice:
    """The member of an enumeration that an option names."""
    try:
        return choices(value)
    except ValueError:
        names = ", ".join(choice.value for choice in choices)
        raise ConfigError(f"--{key} must be one of {names}, got {value!r}", key=key) from None


def predict(scenario: Scenario, on_plan: OnProgress, on_simulation: OnProgress) -> tuple[Job, Report]:
    """Plan a job as its policy says, and simulate it with everything recorded."""
    most = _NUM_TABLES * most_trials(len(scenario.gradients))
    num_tried = 0

    def trial(job: Job) -> Report:
        nonlocal num_tried
        done = num_tried
        report = simulate(job, on_progress=lambda now, total: on_plan((done + now / total) / most))
        num_tried += 1
        return report

    job = scenario.job(trial)
    on_plan(1.0)
    report = simulate(job, on_progress=lambda done, total: on_simulation(done / total), record=True)
    return job, report


def result_of(scenario: Scenario, job: Job, report: Report) -> Result:
    """What a table and bars show of it."""
    num_iterations = job.num_iterations
    links = sorted(report.link_bytes.items(), key=lambda item: (-item[1], item[0]))
    return Result(
        name=scenario.mode.value,
        policy=_policy_text(scenario, job),
        iteration_s=report.iteration_s,
        compute_s=report.compute_s,
        exposed_s=report.exposed_s,
        idle_s=report.idle_s,
        link_bytes=tuple((name, nbytes / num_iterations) for name, nbytes in links if nbytes > 0),
    )


def _policy_text(scenario: Scenario, job: Job) -> str:
    if scenario.mode is not Mode.COARSE:
        return "-"
    if scenario.policy is Policy.DEVICES:
        return scenario.policy.value
    sizes = [gradient.nbytes for gradient in job.gradients]
    share = sum(sizes[: job.num_proxy_gradients]) / sum(sizes)
    return f"{scenario.policy.value} {share:.0%}"


def modes_of(text: str) -> Iterator[Mode]:
    """The modes that a comma-separated list names, each once."""
    for name in dict.fromkeys(part.strip() for part in text.split(",")):
        yield one_of("modes", name, Mode)
