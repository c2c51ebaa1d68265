"""App of the command line: names and help lines of all commands; a command's file is imported on its call."""

import os
import sys
from importlib import import_module
from typing import Any

from coarse.protocol.distribution import NAME, VERSION, how_to_install

try:
    from typer.core import TyperCommand, TyperGroup
    from typer.main import get_command
except ImportError as error:
    raise SystemExit(f"coarse: the command line needs {error.name}: {how_to_install('command')}") from error

HELP_LINES = {
    "run": "Start workers and light memory-device ranks in one mpirun, and end with its status.",
    "calibrate": "Measure a memory device's latency, streams, flushes and sums, and save it as a machine.",
    "check": "Validate the configuration, show what this machine offers and lacks; or check a strategy of your own.",
    "emulate": "Run a training job's synchronisation live on emulated links, and hold it against the simulator.",
    "predict": "Simulate a training job on a machine: a table, a trace per mode for Perfetto, pictures and a page.",
    "profile": "Measure this machine's copies between processes, its records and its adder.",
    "report": "Draw a run: timelines, links over time and comparison bars as PNG, and one self-contained HTML page.",
    "shard": "Simulate sharded training on a machine: samples/s, bytes between nodes, memory, by mode or by plan.",
    "sweep": "Simulate a training job at many points: rows, a picture, and where one mode becomes faster than another.",
    "validate": "Simulate what five papers, and two of pools, claim: paper, ours, verdict.",
}
"""First line of each command's own help text, in the order of `coarse --help`."""
FIRST_HOUR = """\
coarse: data-parallel training over memory devices. Six commands of a first hour, with times on two cores:

  coarse check --start                                            what this machine offers and lacks, a first sum; 3 s
  coarse run --workers 2 --devices 1 train.py                     a script on memory devices; examples/ has ten
  coarse run --machine cxl-cz120 train.py                         the same in the time of a machine that is not here
  coarse predict --machine aws-p3 --model bert-large --workers 4  a known model, simulated in every mode; 10 s
  coarse sweep --vary wire.cci.latency_us=1,10,100                where one mode becomes faster than another; 10 s
  coarse shard --machine fcdp-a40-1gbe --lora-rank 8              ZeRO-3, ZeRO++ and FCDP, simulated; 1 s

coarse --help lists all commands, and coarse COMMAND --help its options."""
_COMPLETION = "_COARSE_COMPLETE"
"""Variable by which a shell asks for completions."""
MODULES = {name: f"coarse.cli.{name}" for name in HELP_LINES} | {"report": "coarse.cli.report.command"}
"""Module of each command; report/ also has code that predictions use to write files."""


class ImportedWhenCalled(TyperCommand):
    """Command known by its name and help line; its module has the rest."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:  # noqa: ANN401
        """Import the command's module and return the context that the command makes of its arguments.

        This method is the first that is called on a command.
        """
        from coarse.cli.wrong_input import missing_packages_end_with_2

        with missing_packages_end_with_2():
            module = import_module(MODULES[str(self.name)])
        return get_command(module.app).make_context(*arguments, **settings)


app = TyperGroup(
    name="coarse",
    help="Data-parallel training over memory devices. coarse --version shows the version.",
    no_args_is_help=True,
    commands=[ImportedWhenCalled(name, help=line) for name, line in HELP_LINES.items()],
)


def main() -> None:
    """Run the command line and end the process."""
    if sys.argv[1:] == ["--version"]:
        print(f"{NAME} {VERSION}")
        return
    if _COMPLETION in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    elif not sys.argv[1:]:
        print(FIRST_HOUR)
        return
    app(prog_name="coarse")
