"""`coarse predict`: the times of a training job on a stated machine, mode by mode."""

import shlex
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coarse.cli.fields import Asked, with_options
from coarse.cli.options import (
    MACHINE_HELP,
    OWN_MODEL_HELP,
    TRACE_HELP,
    Intervals,
    Samples,
    of_possible_modes,
    require_seed,
    stated_keys,
)
from coarse.cli.own_mode import OWN_MODE
from coarse.cli.own_model.source import is_traced
from coarse.cli.progress import shown_tasks
from coarse.cli.report.chakra import stale_files
from coarse.cli.report.command import show
from coarse.cli.report.luwu import show_luwu
from coarse.cli.report.outcome import Outcome, Simulated, outcome_of
from coarse.cli.report.perfetto import write_trace
from coarse.cli.report.prediction import Scenarios, places_of, profile_notes, scenarios_of
from coarse.cli.report.ranges import NO_RANGES, Ranges, ranges_of
from coarse.cli.report.run import Run, write_run
from coarse.cli.report.sharded_prediction import ALL, AnyMode, any_modes_of
from coarse.cli.report.sharded_prediction import NOTE as SHARDED_NOTE
from coarse.cli.report.simulated import timeline_of
from coarse.cli.report.timeline import Timeline
from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.errors import ConfigError
from coarse.hardware.compute import PEAK_SHARE as OWN_PEAK_SHARE
from coarse.hardware.gpt import OPT_SHAPES
from coarse.hardware.machine import Machine
from coarse.hardware.presets import lines_without_source, machine_named, machine_path
from coarse.luwu.simulation.capacity import LUWU
from coarse.luwu.simulation.capacity import MODES as LUWU_MODES
from coarse.luwu.simulation.scenario import PEAK_SHARE, PagedScenario
from coarse.luwu.simulation.scenario import modes_of as luwu_modes_of
from coarse.protocol.fields import options_of
from coarse.protocol.run_file import RUN_FILE
from coarse.protocol.toml import TomlFile
from coarse.protocol.units import GIB
from coarse.simulation.question import Question
from coarse.simulation.report import mean_durations
from coarse.simulation.sites import STEPWISE_RANKS
from coarse.strategy.named import BUILT_IN, require_classes
from coarse.strategy.sharding import PREDICTED, Sharding

TRACE = ".trace.json"
"""Suffix of a mode's trace file, behind its name."""
_ALL_MODES = ",".join((*BUILT_IN, *PREDICTED, ALL))
_LUWU_MODES = ",".join(LUWU_MODES)
_BASELINES = set(LUWU_MODES) - {LUWU}
_TAKEN = {"machine", "model", "batch", "workers", "modes", "out", "prefetch", "peak_share"}
"""Options of predictions of LuWu and its baselines."""
_Out = Annotated[Path, typer.Option(help="The folder for rows, traces, pictures and page.")]
app = typer.Typer(add_completion=False)


@app.command()
@with_options(
    Question,
    optional=("machine", "batch", "workers", "seed"),
    helps={
        "machine": f"{MACHINE_HELP} By default aws-p3; of OPT models luwu.",
        "model": f"resnet50, bert-large, {OWN_MODEL_HELP}, {TRACE_HELP}, or of LuWu's modes opt-1.3b to opt-1t, or "
        "LAYERSxHIDDENxHEADS.",
        "batch": "Samples per worker and iteration: 2; of a trace what its step computed.",
        "workers": "Ranks that compute: 4, or of LuWu's modes one a node.",
        "modes": f"Of {_ALL_MODES}, {OWN_MODE}, or of {_LUWU_MODES}; by default the data-parallel ones that model and "
        "machine can do.",
        "peak_share": f"Share of the GPU's peak at which LuWu's modes ({PEAK_SHARE:.3f}) or a model of your own "
        f"({OWN_PEAK_SHARE:g}) compute.",
    },
)
def predict_command(
    context: typer.Context,
    asked: Asked,
    prefetch: Annotated[
        bool, typer.Option(help="Of LuWu's baselines: whether a unit comes while another is computed.")
    ] = False,
    interval: Intervals = None,
    samples: Samples = None,
    out: _Out = Path("results/predict"),
) -> None:
    """Simulate a training job on a machine: a table, a trace per mode for Perfetto, pictures and a page."""
    with wrong_input_ends_with_2():
        if _is_luwu(asked["model"], asked.get("modes")):
            _require_only(context, _TAKEN, "LuWu's modes")
            _predict_luwu(asked, out, prefetch=prefetch)
            return
        _require_only(context, {param.name for param in context.command.params} - {"prefetch"}, "these modes")
        require_seed(has_seed="seed" in asked, has_jitter=asked["jitter"] != 0)
        question = Question(**{**asked, "batch": _batch(asked)})
        toml, scenarios = TomlFile.read(machine_path(question.machine)), scenarios_of(question)
        ranges = ranges_of(toml, interval or (), samples, question.num_workers, factors=scenarios.factors)
        console = Console()
        show(_predicted(scenarios, out, toml, ranges), out, console)
        console.print(f"wrote {(out / RUN_FILE).as_posix()}", highlight=False, markup=False, soft_wrap=True)


def _batch(asked: Asked) -> int:
    """Return the samples of a worker and iteration: as asked, else as a trace's step computed."""
    is_step = is_traced(asked["model"], asked.get("step"))
    batch: int = asked.get("batch", 1 if is_step else options_of(Question)["batch"].default)
    return batch


def _is_luwu(model: str, modes: str | None) -> bool:
    """Return whether LuWu and its baselines are asked for: by luwu alone, by a baseline, or by an OPT."""
    if modes is None:
        return model in OPT_SHAPES
    asked = {part.strip() for part in modes.split(",")}
    return model in OPT_SHAPES or asked == {LUWU} or bool(asked & _BASELINES)


def _predict_luwu(asked: Asked, out: Path, *, prefetch: bool) -> None:
    """Show LuWu and its baselines; raise ConfigError for an option that does not suit them."""
    chosen = luwu_modes_of(asked.get("modes", _LUWU_MODES))
    where, num_workers = _a_worker_on_each_node(asked.get("machine", "luwu"), asked.get("num_workers"))
    scenario = PagedScenario(
        machine=where, model_name=asked["model"], num_workers=num_workers, batch=_batch(asked), prefetch=prefetch,
        peak_share=asked.get("peak_share", PEAK_SHARE),
    )  # fmt: skip
    show_luwu(scenario, chosen, out, Console())


def _require_only(context: typer.Context, taken: Collection[str | None], whose: str) -> None:
    """Raise ConfigError if an option was given that means nothing for the modes."""
    stated = stated_keys(context)
    for param in context.command.params:
        if param.name in stated and param.name not in taken:
            option = param.opts[0]
            raise ConfigError(f"{option} means nothing for {whose}; leave it out", key=option.lstrip("-"))


def _a_worker_on_each_node(name: str, workers: int | None) -> tuple[Machine, int]:
    """Return a machine with a node per worker, and the number of workers: by default that of its nodes."""
    machine = machine_named(name)
    num_workers = machine.num_nodes if workers is None else workers
    return replace(machine, num_nodes=max(machine.num_nodes, num_workers)), num_workers


def _predicted(scenarios: Scenarios, out: Path, toml: TomlFile, ranges: Ranges | None) -> Run:
    """Predict all modes in turn; one that the question does not name may be impossible on the machine."""
    modes = scenarios.question.modes
    require_classes(scenarios.question.options, (modes or "").split(","))
    chosen = tuple(any_modes_of(modes, scenarios.question.options))
    must_have = modes is not None and ALL not in modes.split(",")
    notes = [*_notes(scenarios), *_source_note(toml), ranges.note() if ranges else NO_RANGES]
    if any(isinstance(mode, Sharding) for mode in chosen):
        notes.append(SHARDED_NOTE)
    timelines: list[Timeline] = []
    of_runs: list[str] = []
    _clear(out)
    with shown_tasks() as tasks:

        def outcome(mode: AnyMode) -> Outcome:
            found = outcome_of(scenarios, mode, ranges, tasks.begin)
            if found.run is not None:
                timelines.append(_timeline(found.result.name, found.run, out))
                of_runs.extend(_notes_on(found.result.name, found.run))
            of_runs.extend(found.notes)
            return replace(found, run=None)  # which may be large

        outcomes = of_possible_modes(chosen, outcome, must_have=must_have, on_left_out=notes.append)
    run = Run(
        kind="simulated",
        title=_title(scenarios),
        inputs=_inputs(scenarios),
        results=tuple(outcome.result for outcome in outcomes),
        timelines=tuple(timelines),
        notes=(*of_runs, _memory_note(scenarios, outcomes), *notes),
    )
    write_run(run, out)
    return run


def _timeline(name: str, run: Simulated, out: Path) -> Timeline:
    """Return the timeline of a data-parallel mode, and write its trace."""
    write_trace(run.job, run.report, out / f"{name}{TRACE}", name)
    return timeline_of(run.job, run.report, name, places_of(run.scenario))


def _notes_on(name: str, run: Simulated) -> list[str]:
    """Return sentences on what a data-parallel mode's run leaves out, and on its changes."""
    report = run.report
    return profile_notes(name, run.job, mean_durations(report.iterations), report.profiles)


def _clear(out: Path) -> None:
    """Remove the files of an earlier prediction, which must not pass for this one's."""
    if (out / RUN_FILE).is_file():
        modes = [path.name.removesuffix(TRACE) for path in out.glob(f"*{TRACE}")]
        for path in stale_files(out, (*BUILT_IN, *modes)):
            path.unlink()
        for pattern in (RUN_FILE, f"*{TRACE}", "timeline-*.png", "bandwidth-*.png", "comparison.png", "report.html"):
            for path in out.glob(pattern):
                path.unlink()
    out.mkdir(parents=True, exist_ok=True)


def _title(scenarios: Scenarios) -> str:
    asked = scenarios.question
    nodes = f" on {asked.num_nodes} nodes" if asked.num_nodes > 1 else ""
    workers = f"{asked.num_workers} workers{nodes}"
    return f"{scenarios.model.name}, batch {asked.batch}, {workers} of {scenarios.machine.name}"


def _memory_note(scenarios: Scenarios, outcomes: list[Outcome]) -> str:
    """Return a sentence on the modes' GPU memory, by the account of `hardware.accelerator`."""
    needs = ", ".join(f"{outcome.result.name} {outcome.memory_bytes / GIB:.1f}" for outcome in outcomes)
    gpu = scenarios.machine.accelerator
    return (
        f"Memory of a GPU: {needs} of {gpu.memory_bytes / GIB:.1f} GiB ({gpu.name}, {scenarios.question.optimizer}); "
        "memory devices, where a mode has them, hold parameters and optimizer states."
    )


def _notes(scenarios: Scenarios) -> tuple[str, ...]:
    profile = scenarios.profile
    compute = f"Compute times ({profile.gpu}, {profile.precision}): {profile.basis}; {profile.source}."
    own = scenarios.own.notes if scenarios.own else ()
    used = [group for group in scenarios.machine.unlike_nodes if group.first < scenarios.question.num_nodes]
    unlike = [f"Nodes unlike the others: {', '.join(group.text() for group in used)}."] if used else []
    if scenarios.question.num_workers <= STEPWISE_RANKS:
        return *own, compute, *unlike
    one = (
        f"Above {STEPWISE_RANKS} workers one, as slow as the slowest and on the slowest of the ways, stands for all; "
        "compute and idle are the means over all. Memory devices sum in a ring."
    )
    return *own, compute, *unlike, one


def _source_note(toml: TomlFile) -> tuple[str, ...]:
    """Return a sentence on numbers of a machine's file that have no source, if any."""
    lines = lines_without_source(toml)
    if not lines:
        return ()
    return (
        f"{toml.path}:{lines[0]}: the first of {len(lines)} lines whose numbers have no source; write what they "
        "rest on in a comment behind each, or above it.",
    )


def _ring_text(scenarios: Scenarios) -> str:
    """Return when the ring of all-reduce begins, and what it costs compute."""
    when = "after backward" if scenarios.question.hold_back else "beside backward"
    return f"{when}, compute beside a ring takes {scenarios.ring_slow_down:g} times as long"


def _inputs(scenarios: Scenarios) -> dict[str, str]:
    asked, profile = scenarios.question, scenarios.profile
    devices = asked.num_devices or "as many as workers"
    slow_downs = ", ".join(f"{worker}={factor:g}" for worker, factor in asked.slow_downs.items())
    degraded = ", ".join(f"{each.link}={each.factor:g}@{each.at_s:g}" for each in asked.changes_of_links)
    return {
        "command": shlex.join(["coarse", *sys.argv[1:]]),
        "machine": f"{scenarios.machine.name} ({asked.machine})",
        "model": f"{scenarios.model.name}, batch {asked.batch} per worker, {profile.precision}",
        **({"model's numbers": " ".join(scenarios.own.notes)} if scenarios.own else {}),
        "compute times": f"{profile.gpu} ({profile.basis}): {profile.source}",
        "workers, devices, nodes": f"{asked.num_workers}, {devices}, {asked.num_nodes}",
        "policy": asked.policy,
        "collective": asked.collective or "as live: in place, or a ring where one worker stands for all",
        "workers' ring": _ring_text(scenarios),
        "NVLink": "on" if scenarios.machine.nvlink and scenarios.machine.nvlinks else "off",
        "stragglers": slow_downs or "none",
        **({"jitter": f"{asked.jitter:g}, seed {asked.seed}"} if asked.jitter else {}),
        "degraded links": degraded or "none",
        "iterations, profiled every": f"{asked.num_iterations}, {asked.profile_every or 'never'}",
    }
