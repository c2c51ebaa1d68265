"""`coarse emulate`: real processes and real bytes over the links of a machine that is not here."""

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from coarse.cli_input import wrong_input_ends_with_2
from coarse.emulated.launch import emulate as emulate_order
from coarse.emulated.order import RunOrder
from coarse.emulation.models import Precision
from coarse.errors import ConfigError
from coarse.report.prediction import one_of
from coarse.simulation.scenario import Mode, Policy
from coarse.simulation.training import simulate

_MODES = ",".join(mode.value for mode in Mode)


def emulate(
    machine: Annotated[str, typer.Option(help="A preset, or the path of a TOML file.")] = "aws-p3",
    model: Annotated[str, typer.Option(help="resnet50 or bert-large.")] = "resnet50",
    gpu: Annotated[str | None, typer.Option(help="Whose compute is replayed; by default the machine's.")] = None,
    batch: Annotated[int, typer.Option(help="Samples per worker and iteration.")] = 64,
    precision: Annotated[str, typer.Option(help="Of the replayed compute: fp32 or fp16.")] = "fp32",
    workers: Annotated[int, typer.Option(help="Worker GPUs.")] = 2,
    devices: Annotated[int, typer.Option(help="Memory devices; 0 for as many as workers.")] = 0,
    modes: Annotated[str, typer.Option(help="Which of dense, allreduce and coarse to run.")] = _MODES,
    policy: Annotated[Policy, typer.Option(help="How coarse splits the gradients.")] = Policy.AUTO,
    iterations: Annotated[int, typer.Option(min=2, help="The first is not counted.")] = 3,
    dilation: Annotated[float, typer.Option(min=0.0, help="Wall seconds per emulated second; 0 to choose.")] = 0.0,
) -> None:
    """Run a training job's synchronisation live on emulated links, and hold it against the simulator."""
    console = Console()
    with wrong_input_ends_with_2():
        order = RunOrder(
            machine=machine,
            model=model,
            gpu=gpu,
            batch=batch,
            precision=one_of("precision", precision, Precision),
            mode=Mode.COARSE,
            num_workers=workers,
            num_devices=devices,
            num_iterations=iterations,
            dilation=dilation,
        )
        rows = [_row(console, replace(order, mode=mode), policy) for mode in _chosen(modes)]
    table = Table(title=f"{model}, batch {batch}, {workers} workers on {machine} (emulated)", title_justify="left")
    for heading in ("mode", "iteration", "exposed", "dilation", "overran", "simulated", "emulated / simulated"):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _row(console: Console, order: RunOrder, policy: Policy) -> tuple[str, ...]:
    decided = order.decided(policy)

    def announce(dilation: float) -> None:
        console.print(f"{order.mode}: {decided.num_ranks} ranks, 1 emulated second in {dilation:.3g} s ...")

    emulated = emulate_order(decided, on_try=announce)
    simulated_s = simulate(decided.job()).iteration_s
    return (
        order.mode,
        f"{emulated.iteration_s * 1e3:.2f} ms",
        f"{emulated.exposed_s * 1e3:.2f} ms",
        f"{emulated.order.dilation:.3g}",
        f"{emulated.overrun_share:.2%} of {emulated.num_transfers}",
        f"{simulated_s * 1e3:.2f} ms",
        f"{emulated.iteration_s / simulated_s:.3f}",
    )


def _chosen(modes: str) -> list[Mode]:
    names = [name.strip() for name in modes.split(",") if name.strip()]
    known = {mode.value for mode in Mode}
    if not names or set(names) - known:
        raise ConfigError(f"--modes takes a list of {', '.join(sorted(known))}, got {modes!r}")
    return [Mode(name) for name in names]
