"""The command line: `coarse run` starts a training job, `coarse check` looks before one; cli_*.py have the rest."""

import os
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated

from coarse.config import Config, load_config
from coarse.launch import missing_defaults, mpirun_argv, mpirun_beside, run_forwarding_signals
from coarse.memory import available_bytes, total_bytes
from coarse.stated_partition import stated_partition
from coarse.training_run import TrainingRun, chosen_partition
from coarse.units import GIB

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ImportError as error:
    raise SystemExit(f"coarse: the command line needs {error.name}: pip install 'coarse[report]'") from error

from coarse.cli_emulate import emulate
from coarse.cli_input import wrong_input_ends_with_2
from coarse.cli_predict import predict_command
from coarse.cli_profile import profile
from coarse.cli_report import report
from coarse.cli_validate import validate

app = typer.Typer(
    help="Data-parallel training over memory devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigPath = Annotated[Path | None, typer.Option("--config", help="A TOML file with the configuration.")]


def main() -> None:
    """Run the command line; ends the process."""
    app(prog_name="coarse")


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def run(
    script: Annotated[str, typer.Argument(help="The Python file that every worker runs.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    workers: Annotated[int | None, typer.Option(help="Ranks that run the script; 2 by default.")] = None,
    devices: Annotated[int | None, typer.Option(help="Ranks that are memory devices; 2 by default.")] = None,
    config: ConfigPath = None,
    mode: Annotated[str | None, typer.Option(help="Overrides the configuration's mode.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the mpirun line and start nothing.")] = False,
) -> None:
    """Start workers and light memory-device ranks in one mpirun, and end with its status.

    A partition in the configuration says how many ranks there are; then --workers and --devices are not needed.
    """
    with wrong_input_ends_with_2():
        config_path = str(config.resolve()) if config else None
        request = TrainingRun(
            script=script,
            arguments=tuple(arguments or ()),
            partition=chosen_partition(_configured(config_path, mode).partition, workers, devices),
            mode=mode,
            config_path=config_path,
        )
        argv = mpirun_argv(
            mpirun_beside(sys.executable, os.environ),
            request.contexts(sys.executable),
            exports=request.exports(),
            as_root=os.geteuid() == 0,
            fault_tolerant=True,
        )
    print(shlex.join(argv), flush=True)
    if not dry_run:
        raise typer.Exit(
            run_forwarding_signals(argv, os.environ, num_ranks=request.num_ranks, light=request.light_ranks())
        )


@app.command()
def check(config: ConfigPath = None) -> None:
    """Validate the configuration and show what this machine offers."""
    with wrong_input_ends_with_2():
        settings = load_config(config, os.environ)
        if settings.partition is not None:
            stated_partition(settings.partition)
        mpirun = mpirun_beside(sys.executable, os.environ)
    console = Console()
    values = {field.name: str(getattr(settings, field.name)) for field in fields(settings)}
    console.print(_table("configuration", values))
    console.print(_table("environment", _environment(mpirun)))


def _configured(config_path: str | None, mode: str | None) -> Config:
    """The configuration that every rank will read; refuses what every rank would refuse later."""
    chosen = {"COARSE_CONFIG": config_path, "COARSE_MODE": mode}
    exports = {name: value for name, value in chosen.items() if value is not None}
    return load_config(None, {**os.environ, **exports})


def _environment(mpirun: str) -> dict[str, str]:
    """What a job will find here, by name."""
    parameter_file = Path(mpirun).parent.parent / "etc" / "prte-mca-params.conf"
    text = parameter_file.read_text() if parameter_file.is_file() else ""
    missing = missing_defaults(text, os.environ)
    crowded = "yes" if not missing else "no: " + ", ".join(f"{k}={v}" for k, v in missing.items())
    return {
        "MPI": _mpi_version(),
        "mpirun": mpirun,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{available_bytes() / GIB:.1f} GiB free of {total_bytes() / GIB:.1f} GiB",
        "more ranks than cores": f"{crowded} ({parameter_file})",
    }


def _mpi_version() -> str:
    """The MPI library's own first line; MPI is not started for it."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    return MPI.Get_library_version().strip("\0\n ").splitlines()[0]


def _table(title: str, rows: dict[str, str]) -> Table:
    """Names and values, side by side."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


app.command("emulate")(emulate)
app.command("predict")(predict_command)
app.command("profile")(profile)
app.command("report")(report)
app.command("validate")(validate)
