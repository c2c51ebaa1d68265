"""`coarse emulate`: real processes and real bytes over the emulated links of another machine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from coarse.cli.fields import Asked, with_options
from coarse.cli.options import MACHINE_HELP, of_possible_modes
from coarse.cli.own_mode import OWN_MODE, SetOptions
from coarse.cli.progress import Tasks, shown_tasks
from coarse.cli.report.prediction import modes_of, profile_notes
from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.emulation.launch import emulate as emulate_order
from coarse.emulation.order import EmulationOrder
from coarse.errors import ConfigError
from coarse.protocol.clock import WallClock
from coarse.simulation.adaptation import PROFILE_EVERY, keep_tables
from coarse.simulation.question import JobQuestion
from coarse.simulation.report import mean_durations
from coarse.simulation.training import simulate
from coarse.strategy.named import BUILT_IN, COARSE, mode_name, options_from, require_classes

_LEAST_ITERATIONS = 2
app = typer.Typer(add_completion=False)


@app.command()
@with_options(
    JobQuestion,
    defaults={"batch": 64, "workers": 2, "profile_every": PROFILE_EVERY},
    helps={
        "machine": MACHINE_HELP,
        "model": "resnet50 or bert-large.",
        "nodes": "Nodes of the modelled machine; all ranks run here.",
        "iterations": "The first is not counted.",
    },
)
def emulate(
    asked: Asked,
    modes: Annotated[str | None, typer.Option(help=f"Of {','.join(BUILT_IN)} (by default all), {OWN_MODE}.")] = None,
    options: SetOptions = None,
    checked_pool: Annotated[
        Path | None, typer.Option(help="A file by which devices send, as over a pool without coherence, checked.")
    ] = None,
) -> None:
    """Run a training job's synchronisation live on emulated links, and hold it against the simulator."""
    console = Console()
    with wrong_input_ends_with_2():
        pool = None if checked_pool is None else str(checked_pool.resolve())
        order = EmulationOrder(**asked, mode=COARSE, checked_pool=pool)
        if order.num_iterations < _LEAST_ITERATIONS:
            raise ConfigError(
                f"--iterations must be at least {_LEAST_ITERATIONS}, of which the first is not counted, got "
                f"{order.num_iterations}",
                key="iterations",
            )
        with shown_tasks() as tasks:
            rows = [_row(console, tasks, decided) for decided in _decided(console, tasks, order, modes, options or ())]
    _show(console, order, rows)


def _show(console: Console, order: EmulationOrder, rows: Sequence[tuple[str, ...]]) -> None:
    nodes = f", {order.num_nodes} nodes" if order.num_nodes > 1 else ""
    title = f"{order.model}, batch {order.batch}, {order.num_workers} workers on {order.machine}{nodes} (emulated)"
    table = Table(title=title, title_justify="left")
    for heading in ("mode", "iteration", "exposed", "late", "simulated", "emulated / simulated", "took here"):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _decided(
    console: Console, tasks: Tasks, order: EmulationOrder, modes: str | None, options: Sequence[str]
) -> list[EmulationOrder]:
    """Return the order in each possible mode; all are decided before any of them runs."""
    require_classes(options, (modes or "").split(","))

    def in_mode(mode: str) -> EmulationOrder:
        one = replace(order, mode=mode, options={} if mode in BUILT_IN else options_from(options, mode))
        one.scenario().gpu_memory()
        end = tasks.begin_unmeasured(f"{mode}: decide by simulation")
        try:
            return one.decided()
        finally:
            end()

    def tell(line: str) -> None:
        console.print(line, highlight=False)

    return of_possible_modes(modes_of(modes), in_mode, must_have=modes is not None, on_left_out=tell)


def _row(console: Console, tasks: Tasks, order: EmulationOrder) -> tuple[str, ...]:
    job = order.job()
    simulated_s = fmean(mean_durations(simulate(job, decide=order.decide() or keep_tables).iterations)[order.period :])
    end, clock = tasks.begin_unmeasured(f"{mode_name(order.mode)}: {order.num_ranks} ranks"), WallClock()
    began_s = clock.now_s()
    try:
        emulated = emulate_order(order)
    finally:
        end()
    took_s = clock.now_s() - began_s
    for note in profile_notes(mode_name(order.mode), job, mean_durations(emulated.iterations), emulated.profiles):
        console.print(note, highlight=False)
    return (
        mode_name(order.mode),
        f"{emulated.iteration_s * 1e3:.2f} ms",
        f"{emulated.exposed_s * 1e3:.2f} ms",
        f"{emulated.num_late} of {emulated.num_transfers}",
        f"{simulated_s * 1e3:.2f} ms",
        f"{emulated.iteration_s / simulated_s:.6f}",
        f"{took_s:.1f} s",
    )
