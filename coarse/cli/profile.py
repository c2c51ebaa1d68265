"""`coarse profile`: measurements of this machine, or of a model's sample costs on it, saved as a file."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from coarse.cli.sample_costs import profile_costs
from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.errors import ConfigError
from coarse.hardware.machine_file import load_machine
from coarse.hardware.measure.measured import Measurements, labelled_text, machine_of, measure
from coarse.hardware.measure.noise import noise_note
from coarse.hardware.measure.pair import Pair
from coarse.hardware.quantities import require_name
from coarse.parallel.packing.measured_cost import LENGTHS
from coarse.protocol.units import KIB, MIB
from coarse.storage.processor import cpu_name
from coarse.storage.room import total_bytes

GB = 1e9
US_PER_S = 1e6
app = typer.Typer(add_completion=False)


@app.command()
def profile(
    save: Annotated[Path | None, typer.Option(help="Write the machine to this file (.toml).")] = None,
    name: Annotated[str, typer.Option(help="What the machine is called in the file.")] = "this-machine",
    costs: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Measure what samples cost instead; FILE.py:FUNCTION does, too."),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Of --costs: tokens of samples.")] = ",".join(map(str, LENGTHS)),
    repeats: Annotated[int, typer.Option(help="Of --costs: the fastest of so many counts.")] = 5,
) -> None:
    """Measure this machine's copies between processes, its records and its adder.

    With --costs: what a sample costs by its length. FUNCTION() returns a step, a callable that takes the lengths of the
    samples of a microbatch, and runs your model forward and backward over such samples, packed as in training.
    """
    with wrong_input_ends_with_2():
        require_name("--name", name)
        if save is not None and (save.is_dir() or not save.parent.is_dir()):
            raise ConfigError(f"--save {save}: cannot be written; name a file in a folder that exists", key="save")
        console = Console()
        if costs is not None:
            profile_costs(costs, lengths, repeats, save, console)
            return
        found = _measured(console)
        console.print(_table(found))
        if found.is_noisy:
            Console(stderr=True).print(f"coarse: warning: {noise_note(found.noise)}", highlight=False, soft_wrap=True)
        if save is not None:
            machine = machine_of(found, name)
            save.write_text(labelled_text(machine, found), encoding="utf-8")
            assert load_machine(save) == machine, "the file states another machine"
            console.print(f"wrote {save}; try: coarse predict --machine {save} --workers 2",
                          highlight=False, markup=False, soft_wrap=True)  # fmt: skip


def _measured(console: Console) -> Measurements:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress, Pair() as pair:
        task = progress.add_task("start", total=1.0)
        return measure(
            pair,
            memory_bytes=total_bytes(),
            num_cores=len(os.sched_getaffinity(0)),
            cpu=cpu_name(),
            on_step=lambda share, what: progress.update(task, completed=share, description=what),
        )


def _table(found: Measurements) -> Table:
    table = Table(title=f"{found.cpu}, {found.num_cores} cores; all numbers are measured", title_justify="left")
    for head in ("", "value", "how"):
        table.add_column(head)
    rate = "{:.3g} GB/s"
    table.add_row("record", f"{found.latency_s * US_PER_S:.1f} us", "half of the median round trip, two processes")
    pulls = dict(found.pull_s)
    for nbytes, seconds in found.push_s[::3]:
        size = f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"
        pull = rate.format(nbytes / pulls[nbytes] / GB) if nbytes in pulls else "-"
        values = f"{rate.format(nbytes / seconds / GB)}, {pull}"
        table.add_row(f"copy of {size}", values, "into memory of another process, out of it")
    table.add_row("two copies at once", rate.format(found.together_bytes_per_s / GB), "two processes, both together")
    table.add_row("adder", rate.format(found.adder_bytes_per_s / GB), "a sync core's sum of two tensors, one core")
    table.add_row("optimizer", rate.format(found.optimizer_bytes_per_s / GB), "Adam, bytes of parameters, one core")
    table.add_row("noise", f"{found.noise:.0%}", "of the time the measuring processes waited for a core")
    table.add_row("fp32", f"{found.fp32_flops_per_s / 1e9:.3g} GFLOP/s", "matrix product, one core")
    return table
